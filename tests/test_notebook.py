"""Python callers: objects that read well, runs and networks as values, errors in Python's words, and networks
of Transformers in memory.
"""

import contextlib
import dataclasses
import gc
import re
import types
from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import CONFIG, named
from helpers.commands import refused
from helpers.exported import with_head
from helpers.pruned import values_for
from helpers.tiny import TOKENS, network, random_alphas, random_parameters, run, saved_model

import gluon_optbert as opt
from gluon_optbert.architecture.heads import Head
from gluon_optbert.network.saved_model import write_model
from gluon_optbert.notebook import given_on_disk, in_python, predictor_of
from gluon_optbert.reporting import sections
from gluon_optbert.runs.recipe import RecipeError, fill

SENTENCES = Head('classification', ('0', '1'), 'films', ('dull', 'fine'), ('text', 'label'))


class Tensor(types.SimpleNamespace):
    """A tensor of PyTorch, as far as its numbers cross to NumPy."""

    def detach(self):
        return self

    cpu = float = detach

    def numpy(self):
        return self.array


class Bert:
    """A network of Transformers, as far as it is read."""

    def __init__(self, arrays, **changes):
        self.arrays, values = arrays, {**CONFIG, 'architectures': None, **changes}
        self.config = types.SimpleNamespace(to_dict=lambda: values)

    def state_dict(self):
        return {name: Tensor(array=array) for name, array in self.arrays.items()}


class Words:
    """Its tokenizer."""

    def save_pretrained(self, directory):
        Path(directory, 'vocab.txt').write_text(''.join(f'{token}\n' for token in TOKENS))


@pytest.fixture(scope='module')
def deployed(model_directory, tmp_path_factory):
    """An export of the shared network."""
    place = tmp_path_factory.mktemp('exported') / 'deploy'
    opt.export(model_directory, place)
    return place


def test_objects_say_in_five_lines_what_they_are(model_directory, deployed):
    model = opt.read_model(model_directory)
    for value in (model, model.architecture, opt.Predictor(deployed)):
        lines = repr(value).splitlines()
        assert len(lines) <= 5 and max(map(len, lines)) < 100, lines
        assert 'h=8 a=2 k=4 v=4 f=16' in repr(value)
        page = value._repr_html_()
        assert page.count('<tr>') == 3 and '<td>16</td>' in page
    assert network((1, 2, 3, 4), (2, 2, 1, 0), e=4).widths_line == 'h=8 e=4 a=1-2 k=2 v=1-3 f=0-4'


@pytest.fixture
def settings(shards_directory):
    """Those of a short run from a network in memory."""
    short = {'rounds': 1, 'alpha_steps': 1, 'recovery_steps': 1, 'split_half': False}
    return {**values_for(shards_directory, '', '', **short), 'model': opt.Model.of(saved_model())}


def test_a_run_from_a_network_in_memory_is_an_object(settings, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sections, 'drawn', lambda *_: b'')  # pictures, which take long
    made = opt.prune(**{**settings, 'output': None})
    assert 'few to tell networks apart' in caplog.text and '--' not in caplog.text
    assert [row.round for row in made.rounds] == [0, 1]
    assert made.model.architecture == made.rounds[-1].architecture
    assert made.directory == made.output / 'round-1' / 'model'
    table = made.table()
    assert len(table.splitlines()) == 4 and '| 1 |' in table and '100%' in table
    assert len(repr(made).splitlines()) <= 6 and '<td>' in made._repr_html_()
    assert opt.verify(run=made)[-1]['round'] == 1
    opt.export(made, tmp_path / 'deploy')
    assert opt.Predictor(tmp_path / 'deploy').encode(['the']).shape == (1, made.model.architecture.h)
    imported = opt.Run(types.SimpleNamespace(output=made.directory), None)
    assert 'parameters of embeddings' in opt.report(imported, time=False)
    assert opt.plot_widths(made, letter='k')._repr_png_().startswith(b'\x89PNG')
    place = made.output
    del made
    gc.collect()
    assert not place.exists()


@pytest.mark.filterwarnings('ignore')  # the scores may be no better than one answer to all
def test_a_fine_tuning_and_an_import_are_tables(model_directory, tmp_path):
    rows = ''.join(f'{text},{label}\n' for text, label in (('the cat', 'good'), ('a b', 'bad')) * 4)
    for name in ('train', 'dev'):
        (tmp_path / f'{name}.csv').write_text(f'text,label\n{rows}')
    short = {'epochs': 1, 'seeds': (1, 2), 'max_length': 8, 'output': tmp_path / 'tuned'}
    tuned = opt.finetune_glue(data=tmp_path, model=model_directory, **short)
    scores = [one.scores['dev/accuracy'] for one in tuned.result.runs]
    last = [line.strip('| ').split(' | ') for line in tuned.table().splitlines()[2:]]
    wanted = zip(('1', '2', 'mean'), (*scores, np.mean(scores)))
    assert last == [[name, f'{score:.2f}'] for name, score in wanted]
    imported = opt.Run(types.SimpleNamespace(output=model_directory), None)
    assert imported.table().splitlines()[3] == '| 2 | 2 | 4 | 4 | 16 |'
    page = opt.report(tuned, output=tmp_path / 'page.html', time=False)
    assert (tmp_path / 'page.html').read_text() == page


def test_a_network_in_memory_is_written_beside_the_output_once(settings, tmp_path):
    settings['output'] = str(tmp_path / 'run')
    first, again = (opt.prune(**settings, resume=resume) for resume in (False, True))
    assert first.rounds == again.rounds and (tmp_path / 'run.model' / 'model.params').is_file()
    for more in ({'seed': 1}, {'alphas': random_alphas(network())}, {'progress': {'step': 9}}):
        with pytest.raises(ValueError, match='another network'):
            opt.prune(**{**settings, 'model': opt.Model.of(saved_model(**more))})


def test_a_teacher_is_a_run_a_network_or_a_path(model_directory, tmp_path):
    (tmp_path / 'run' / 'round-1' / 'model').mkdir(parents=True)
    run = opt.Run(types.SimpleNamespace(output=tmp_path / 'run'), None)
    model = opt.read_model(model_directory)
    for given, wanted in (
        (run, tmp_path / 'run' / 'round-1' / 'model'),
        (model, tmp_path / 'out.teacher'),
        (model_directory, model_directory),
    ):
        fields = given_on_disk({'teacher': given, 'model': given, 'data': run}, tmp_path / 'out')
        recipe = fill(opt.GlueRecipe, {**fields, 'output': tmp_path / 'out', 'task': 'SST-2'})
        assert recipe.teacher == str(wanted) and recipe.data == run.output
    assert opt.read_model(tmp_path / 'out.teacher').architecture == model.architecture


def test_embeddings_of_a_network_in_memory_are_those_of_its_export(model_directory, deployed):
    texts = ['the cat', 'a b c']
    wanted = opt.Predictor(deployed).encode(texts)
    for given in (model_directory, opt.read_model(model_directory), deployed):
        np.testing.assert_allclose(opt.embed(given, texts), wanted, atol=1e-5)


def test_texts_that_are_cut_are_counted_in_scoring_and_embedding(model_directory, tmp_path):
    saved = dataclasses.replace(with_head(network(), SENTENCES), recipe={'max_length': 8})
    text = 'a b c ' * 9
    (tmp_path / 'dev.tsv').write_text(f'text\tlabel\nthe cat\t0\n{text}\t1\n')
    with pytest.warns(UserWarning, match=r"1 of 2 texts were cut .*; long='split'"):
        assert opt.score(saved, tmp_path / 'dev.tsv').keys() == {'accuracy'}
    predictor = predictor_of(opt.read_model(model_directory))
    for _ in range(2):
        with pytest.warns(UserWarning, match='1 of 2 texts were cut to '):
            assert len(opt.embed(predictor, ['the', text * 9])) == 2


def test_a_network_and_its_file_of_predictions_have_one_score(tmp_path):
    saved = with_head(network(), SENTENCES)
    write_model(tmp_path / 'model', saved)
    (tmp_path / 'dev.tsv').write_text('text\tlabel\nthe cat\t0\na b\t1\nc\t1\nthe\t0\n')
    labels = [one.label for one in predictor_of(saved).predict(['the cat', 'a b', 'c', 'the'])]
    wanted = 100 * np.mean([one == other for one, other in zip(labels, '0110')])
    with (
        contextlib.nullcontext() if wanted > 50 else pytest.warns(UserWarning, match='no better than always')
    ):
        assert opt.score(tmp_path / 'model', tmp_path / 'dev.tsv') == {'accuracy': wanted}


@pytest.mark.filterwarnings('ignore')  # the scores may be no better than one answer to all
def test_data_are_predicted_by_the_columns_that_they_are_scored_by(tmp_path):
    saved = with_head(network(), SENTENCES)
    (tmp_path / 'plain.csv').write_text('text,label\nthe cat,0\na b,1\n')
    wanted = opt.score(saved, tmp_path / 'plain.csv')
    (tmp_path / 'named.csv').write_text('body,mood\nthe cat,0\na b,1\n')
    assert opt.score(saved, tmp_path / 'named.csv', text='body', label='mood') == wanted
    (tmp_path / 'both.csv').write_text('text,body,label\nx,the cat,0\ny,a b,1\n')
    assert opt.score(saved, tmp_path / 'both.csv', text='body') == wanted
    with pytest.raises(ValueError, match='model goes with a file of predictions'):
        opt.score(saved, tmp_path / 'plain.csv', model=tmp_path)


@pytest.mark.parametrize(
    'said, wanted',
    [
        ('keywords: --shards is missing', 'keywords: shards is missing'),
        ('it was cut; --max-length 512', 'it was cut; max_length=512'),
        ('it was cut; --long split', "it was cut; long='split'"),
        ('go on with --resume, or give another --output', 'go on with resume=True, or give another output'),
        (
            'export it first: python tools/export_model.py models/a --output deploy',
            "export it first: opt.export('models/a', output='deploy')",
        ),
        ('fold them with optbert-export first', 'fold them with opt.export first'),
        (
            'next: optbert-prune small_prune --model m --resume',
            "next: opt.prune('small_prune', model='m', resume=True)",
        ),
        (
            'as by hf download a/b --local-dir b; or --output',
            'as by hf download a/b --local-dir b; or output',
        ),
        ('a -- b, x--y and runs/tools/verify.py', 'a -- b, x--y and runs/tools/verify.py'),
        (
            "take: python tools/export_model.py runs/john's --output deploy",
            "take: python opt.export runs/john's output='deploy'",
        ),
    ],
)
def test_messages_name_arguments_and_functions(said, wanted):
    assert in_python(said) == wanted


def test_errors_of_runs_and_exports_name_arguments_and_calls_that_can_be_made(model_directory, tmp_path):
    with pytest.raises(RecipeError) as raised:
        opt.prune(model=tmp_path)
    assert any('shards is missing' in line for line in raised.value.problems)
    assert '--' not in str(raised.value) + ''.join(raised.value.problems)
    with pytest.raises(FileNotFoundError, match=r'^((?!--).)*$'):
        opt.finetune_glue(model=model_directory, task='films.json', output=tmp_path / 'out')
    told = re.escape(f"first: opt.export({str(model_directory)!r}, output='deploy')")
    with pytest.raises(ValueError, match=f'{told}$'):
        opt.Predictor(model_directory)
    for source, said in ((str(tmp_path), str(tmp_path)), (str(tmp_path / 'no.yaml'), 'recipe')):
        with pytest.raises(FileNotFoundError, match=said):
            opt.import_checkpoint(source, output=tmp_path / 'out')


def test_commands_that_share_functions_with_python_name_flags(model_directory, tmp_path):
    assert 'another --output' in refused('tools/export_model.py', model_directory, '--output', tmp_path)


def test_a_notebook_has_its_own_bar():
    """IPython and its widgets are stood in for; tqdm decides by them."""
    program = '\n'.join(
        [
            'import sys',
            'from unittest.mock import MagicMock',
            'shown, Widget = [], type("Widget", (MagicMock,), {})',
            'for name in "IPython IPython.display ipywidgets ipykernel ipykernel.zmqshell".split():',
            '    sys.modules[name] = MagicMock()',
            'for name in ("HTML", "HBox", "FloatProgress"): setattr(sys.modules["ipywidgets"], name, Widget)',
            'sys.modules["IPython.display"].display = shown.append',
            'from gluon_optbert.runs.display import Display',
            'with Display("verifying", 3, seconds=10) as display: display.advance()',
            'print(len(shown))',
        ]
    )
    done = run('-W', 'ignore', '-c', program)
    assert done.stdout.split()[-1:] == ['1'] and 'verifying' not in done.stderr, done.stderr


# Networks of Transformers


def test_numbers_cross_from_memory_as_they_cross_from_disk(tmp_path):
    arrays = named('Hugging Face')
    made = opt.from_transformers(Bert(arrays), Words())
    assert made.architecture == network() and made.head.kind == 'pretraining'
    for name, array in random_parameters(network()).items():
        np.testing.assert_array_equal(made.parameters[name], array)


def test_a_network_that_does_not_fit_is_refused_without_a_path():
    with pytest.raises(ValueError) as raised:
        opt.from_transformers(Bert(named('Hugging Face'), hidden_act='relu', is_decoder=True), Words())
    said = str(raised.value)
    assert 'the model: config.json' in said and 'hidden_act' in said and 'is_decoder' in said
    assert not re.search(r'/tmp|tmp\w{8}', said)
    with pytest.raises(TypeError, match='wanted a model of Transformers, found str'):
        opt.from_transformers('bert-base-uncased', Words())


@pytest.mark.parametrize('layers', [((2, 4, 4, 16),) * 2, ((1, 2, 3, 4), (2, 4, 4, 0))])
@pytest.mark.parametrize(
    'head',
    [
        None,
        Head('classification', ('no', 'yes')),
        Head('question_answering'),
        Head('multi_label', ('news', 'sport', 'town')),
        Head('token_classification', ('O', 'B-town', 'I-town')),
    ],
)
def test_networks_of_transformers_compute_the_same_both_ways(layers, head):
    torch = pytest.importorskip('torch', reason='PyTorch is not installed, and is never required')
    pytest.importorskip('transformers', reason='Transformers is not installed, and is never required')
    architecture = network(*layers)
    saved = opt.Model.of(saved_model(architecture) if head is None else with_head(architecture, head))
    there, words = saved.to_transformers()
    back = opt.from_transformers(there, words)
    assert (back.architecture, back.head) == (architecture, saved.head)
    assert back.vocabulary.idx_to_token == saved.vocabulary.idx_to_token
    random = () if head else ('decoder', 'classifier')
    assert all(
        np.array_equal(back.parameters[name], array)
        for name, array in saved.parameters.items()
        if not name.startswith(random)
    )
    given = words(['the cat', 'a b c d'], padding=True, return_tensors='pt')
    with torch.no_grad():
        outputs = there(**given)
    if head is None:
        states, mask = outputs.last_hidden_state, given['attention_mask'][..., None]
        wanted = ((states * mask).sum(1) / mask.sum(1)).numpy()
        found = opt.embed(saved, ['the cat', 'a b c d'], normalise=False)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    elif head.kind != 'question_answering':
        ids, mask = given['input_ids'].numpy(), given['attention_mask'].numpy()
        scores = predictor_of(saved).outputs(ids, valid_length=mask.sum(axis=1))['scores']
        wanted = outputs.logits.numpy()
        if not head.pooled:  # of tokens, not of padding
            scores, wanted = scores[mask == 1], wanted[mask == 1]
        np.testing.assert_allclose(scores, wanted, atol=1e-5)
