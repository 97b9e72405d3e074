"""The model card of an export says what is known, loads in hubs, and runs where it is code."""

import dataclasses
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.commands import call
from helpers.pages import HOSTILE
from helpers.tiny import network, random_alphas, random_parameters, saved_model, vocabulary
from hypothesis import given
from hypothesis import strategies as st

import gluon_optbert
from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.cutting.selection import packed_alphas
from gluon_optbert.deployment.card_parts import bar, millions, plain, widths_picture
from gluon_optbert.deployment.card_usage import Usage, used
from gluon_optbert.deployment.description import read_description
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.model_card import LIBRARIES, CardFacts, model_card, write_card
from gluon_optbert.deployment.onnx_directory import export_onnx
from gluon_optbert.deployment.onnx_export import run_onnx
from gluon_optbert.deployment.story import Finetuning, Pruning, PruningRound, Story, Trimming
from gluon_optbert.deployment.transformers_export import export_transformers
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.runs.progress import Progress

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0))
HEADS = {
    'encoder': ('encoder', PRETRAINING),
    'pretraining': ('pretraining', PRETRAINING),
    'sentences': ('task', Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('a', 'b'))),
    'pairs': ('task', Head('regression', (), 'STS-B', (), ('a', 'b', 'c'))),
    'questions': ('task', Head('question_answering', task='SQuAD2.0')),
}
FILES = {'model.onnx': 2_000_000, 'model-0000.params': 1_000_000, 'vocab.txt': 10}


def facts_of(case='sentences', **more):
    kind, head = HEADS[case]
    return CardFacts(UNEVEN, head, kind, more.pop('format', 'mxnet'), more.pop('files', FILES), **more)


def front_matter(card):
    opening, block, body = card.split('---\n', 2)
    assert opening == '' and body.startswith('# ')
    return yaml.safe_load(block)


def python_examples(card):
    return re.findall(r'```python\n(.*?)```', card, re.DOTALL)


@pytest.mark.parametrize('format', LIBRARIES)
@pytest.mark.parametrize('case', HEADS)
def test_hubs_read_what_a_card_is_about(format, case):
    card = model_card(facts_of(case, format=format, license='apache-2.0'))
    values = front_matter(card)
    assert values['library_name'] == LIBRARIES[format] and values['license'] == 'apache-2.0'
    assert {'bert', 'optbert', 'onnx'} <= set(values['tags']) and 'pruning' not in values['tags']
    tags = {'sentences': 'text-classification', 'pairs': 'text-classification', 'pretraining': 'fill-mask'}
    tags.update(questions='question-answering', encoder='feature-extraction')
    if format == 'sentence-transformers':
        tags['encoder'] = 'sentence-similarity'
    assert values['pipeline_tag'] == tags[case]
    for code in python_examples(card):
        compile(code, 'card', 'exec')
    assert python_examples(card)


@pytest.mark.parametrize('format, nsp', [('mxnet', True), ('transformers', True), ('onnx', False)])
def test_card_names_the_next_sentence_only_where_its_scores_are_given(format, nsp):
    card = model_card(facts_of('pretraining', format=format))
    assert ('next sentence' in card) == ('the heads of pre-training' in card) == nsp
    assert ('with the MLM head' in card) == ('scores of every token' in card) == (not nsp)


def test_a_licence_that_nobody_stated_is_not_invented():
    card = model_card(facts_of())
    assert 'license' not in front_matter(card) and 'licence of the weights is not stated' in card


def test_scores_stand_beside_the_other_seeds_and_the_majority_class():
    tuned = Finetuning(
        {'dev/accuracy': 78.784, 'dev/f1': 40.0},
        seeds=2,
        mean={'dev/accuracy': 77.0, 'dev/f1': 41.0},
        std={'dev/accuracy': 1.5, 'dev/f1': 1.0},
        majority={'dev/accuracy': 50.917, 'dev/f1': 45.0},
        samples={'train': 2500},
        commit='abcdef0123',
    )
    card = model_card(facts_of(story=Story(finetuning=tuned)))
    assert '| dev/accuracy | 78.78 | 77.00 ± 1.50 | 50.92 |' in card
    assert '| dev/f1 | 40.00 * | 41.00 ± 1.00 | 45.00 |' in card and 'no better than the majority' in card
    assert 'train: 2,500' in card and 'Fine-tuned on SST-2, commit `abcdef0123`' in card
    (index,) = front_matter(card)['model-index']
    assert index['results'][0]['metrics'][0] == {'type': 'accuracy', 'name': 'accuracy', 'value': 78.784}


def test_thresholds_are_no_scores():
    tuned = Finetuning({'dev/f1': 60.0, 'dev/best_f1': 61.0, 'dev/best_f1_thresh': 1.36})
    card = model_card(facts_of('questions', story=Story(finetuning=tuned)))
    assert 'thresh' not in card and card.count('| 61.00 |') == 1
    (index,) = front_matter(card)['model-index']
    assert [one['type'] for one in index['results'][0]['metrics']] == ['f1', 'best_f1']


@pytest.mark.parametrize('optimistic', [False, True])
def test_a_learning_rate_that_was_chosen_on_the_scored_data_is_said(optimistic):
    tuned = Finetuning({'dev/accuracy': 80.0}, optimistic=optimistic)
    card = model_card(facts_of(story=Story(finetuning=tuned)))
    assert ('so the scores are optimistic.' in card) is optimistic


def test_a_vocabulary_that_was_trimmed_before_pruning_is_said_before_it():
    pruning = Pruning(UNEVEN, (PruningRound(0, 20), PruningRound(1, 10)), {}, whole_vocabulary=30522)
    made = model_card(facts_of(story=Story(pruning=pruning, trimming=Trimming(30522, 14750, False))))
    assert made.index('The vocabulary was trimmed to a text: 14,750') < made.index('Pruned in 1 round')


def test_steps_of_recovery_are_told_from_those_of_pre_training():
    made = model_card(facts_of(story=Story(pretrained_steps=1700)))
    assert 'Pre-trained for 1,700 steps' in made and 'recovery' not in made
    made = model_card(facts_of(story=Story(trained_steps=2120)))
    assert 'Trained for 2,120 steps, those of recovery from pruning included.' in made
    assert 'Pre-trained' not in made


def test_scores_in_float32_are_not_said_of_a_network_in_int8():
    measured = {'score': 0.7, 'float32_score': 0.8, 'agreement': {'texts': 9, 'same_label': 0.9}}
    story = Story(finetuning=Finetuning({'dev/accuracy': 80.0}))
    card = model_card(facts_of(precision='int8', measured=measured, story=story))
    assert 'model-index' not in front_matter(card) and 'int8' in front_matter(card)['tags']
    assert 'scored 0.7000' in card and 'on 9 texts, the label is that of float32 for 90.0%' in card


@pytest.mark.parametrize('last', [False, True])
def test_a_trimmed_vocabulary_is_said_and_scores_of_the_whole_one_are_not_this_network_s(last):
    story = Story(
        finetuning=Finetuning({'dev/accuracy': 80.0}), trimming=Trimming(30522, 14750, last), checkpoint='x'
    )
    card = model_card(facts_of(story=story))
    assert ('model-index' in front_matter(card)) is not last
    made = card.split('## How it was made')[1]
    assert 'The vocabulary was trimmed to a text: 14,750 of 30,522 tokens are left.' in made
    assert ('Scores and losses are those before that.' in made) is last
    assert (made.index('trimmed') > made.index('Fine-tuned')) is last
    assert 'In other text, more words split into pieces.' in made
    assert 'vocabulary' not in model_card(facts_of()).split('## How it was made')[1]


def test_sizes_stand_beside_those_before_pruning():
    before = network((2, 4, 6, 10), (2, 4, 6, 10))
    rounds = (PruningRound(0, 2000, 3.0), PruningRound(1, 1000, None))
    recipe = {'method': 'alpha', 'prune': 'hakvf', 'penalty': '<b>'}
    pruning = Pruning(before, rounds, recipe, 'abcdef0123+')
    card = model_card(facts_of(story=Story(pruning=pruning)))
    assert re.search(r'\| FLOPs of \d+ tokens \| [\d.]+ k \| [\d.]+ k \| \d\d % \|', card)
    assert '| `model.onnx` | 2.0 MB | | |' in card and 'vocab.txt' not in card
    assert 'Pruned in 1 round (method `alpha`, prune `hakvf`), commit `abcdef0123+`' in card
    assert '  - before: 2.0 k parameters (100%), MLM loss 3.000' in card
    assert '  - round 1: 1.0 k parameters (50%)\n' in card
    assert 'pruning' in front_matter(card)['tags'] and card.split('---\n')[2].startswith('# Pruned BERT for')


def test_bars_are_as_long_as_the_widths():
    lines = widths_picture(network((2, 4, 4, 8), (2, 4, 4, 8), (1, 2, 1, 0)), None).splitlines()
    assert lines[0] == lines[-1] == '```' and lines[3].split() == [
        'layer',
        'heads',
        'a',
        'keys',
        'k',
        'values',
        'v',
        'filters',
        'f',
    ]
    equal, last = lines[4], lines[5]
    assert equal.split() == ['1-2', *(word for width in '2448' for word in ('█' * 10, width))]
    assert last.split() == ['3', '█' * 5, '1', '█' * 5, '2', '██▌', '1', '0']


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_bar_shows_every_width_above_zero(width, most):
    drawn = bar(width, max(width, most))
    assert len(drawn) == 10 and (drawn.strip() != '') == (width > 0)
    assert (drawn == '█' * 10) >= (width == most > 0)


@pytest.mark.parametrize('count, words', [(13_633_161, '13.6 M'), (2.9e9, '2.9 G'), (950, '950'), (0, '0')])
def test_large_numbers_are_short(count, words):
    assert millions(count) == words


def test_what_a_user_should_know_is_said():
    card = model_card(facts_of('encoder', untrained=('pooler',), lower_case=False))
    assert 'The pooler is random' in card and 'Capitals are kept' in card
    assert 'pooler' not in model_card(facts_of('encoder')).split('## Limits')[1]
    assert 'read in windows' in model_card(facts_of('questions'))
    for format in ('transformers', 'onnx'):
        limits = model_card(facts_of('questions', format=format)).split('## Limits')[1]
        assert 'truncation=True' in limits and 'windows' not in limits


def test_code_of_the_package_is_trusted_only_where_there_is_some():
    plain_files, uneven = {'model.safetensors': 1}, {'model.safetensors': 1, 'modeling_optbert.py': 1}
    one, other = (model_card(facts_of(format='transformers', files=files)) for files in (plain_files, uneven))
    assert 'trust_remote_code' not in one and other.count('trust_remote_code=True)') == 2  # tokenizer, model
    assert 'AutoModelForSequenceClassification' in one


def rendered(card):
    """The text that a reader of Markdown shows, and its elements."""
    markdown = pytest.importorskip('markdown_it', reason='markdown-it-py is not installed')
    reader = markdown.MarkdownIt('commonmark', {'html': True}).enable('table')
    content = reader.render(card.split('---\n', 2)[2])
    return content, set(re.findall(r'<([a-zA-Z]\w*)', content))


@pytest.mark.parametrize('text', HOSTILE)
def test_names_are_shown_and_not_obeyed(text):
    head = Head('classification', ('no', text), text, ('one', text + '!'))
    tuned = Finetuning({f'{text}/x': 1.0}, samples={text: 3})
    facts = CardFacts(UNEVEN, head, 'task', 'mxnet', FILES, story=Story(tuned, checkpoint=text))
    card = model_card(facts)
    assert front_matter(card)['pipeline_tag'] == 'text-classification'
    _, elements = rendered(card)
    assert elements <= {
        'h1',
        'h2',
        'p',
        'table',
        'thead',
        'tbody',
        'tr',
        'th',
        'td',
        'pre',
        'code',
        'ul',
        'li',
    }


@given(st.text(alphabet=st.characters(blacklist_categories=()), max_size=40))
def test_other_words_stay_in_their_line(text):
    line = plain(text)
    shown = ' '.join(text.encode('utf-8', 'replace').decode('utf-8').split())
    assert line.isprintable() and line.encode('utf-8').decode('utf-8') == line
    assert re.sub(r'\\([\\`*_\[\]<>|~&])', r'\1', line) == ''.join(filter(str.isprintable, shown))


# Cards of real exports


class ReferenceSession:
    """Stands for onnxruntime's: ONNX's own implementation."""

    def __init__(self, path, providers):
        self._path = path

    def run(self, names, feed):
        return list(run_onnx(Path(self._path), feed).values())


def exported(place, case, **options):
    """A directory with the export of a case, and its card."""
    kind, head = HEADS[case]
    parameters = read_parameters(
        build(UNEVEN, head=head, use_decoder=True, use_classifier=True, initial_std=0.5)
    )
    if head.outputs:
        parameters = read_parameters(build(UNEVEN, head=head, initial_std=0.5))
    saved = SavedModel(UNEVEN, parameters, vocabulary(), {}, Progress.from_dict({'step': 7}), head=head)
    export(saved, place / 'deploy', head=kind, **options)
    return place / 'deploy', (place / 'deploy' / 'README.md').read_text(encoding='utf-8')


@pytest.mark.filterwarnings('ignore:Cannot decide type')
@pytest.mark.parametrize('case', HEADS)
def test_the_examples_of_an_export_run(tmp_path, monkeypatch, capsys, case):
    directory, card = exported(tmp_path, case, onnx=True)
    stand_in = types.ModuleType('onnxruntime')
    stand_in.InferenceSession = ReferenceSession
    own, onnx, plain_mxnet = python_examples(card)
    results = {}
    exec(compile(own.replace('DIRECTORY', str(directory)), 'card', 'exec'), {})
    assert capsys.readouterr().out.strip()
    monkeypatch.setitem(sys.modules, 'onnxruntime', stand_in)
    for name, code in (('onnx', onnx), ('mxnet', plain_mxnet)):
        variables = {}
        exec(compile(code.replace('DIRECTORY', str(directory)), 'card', 'exec'), variables)
        outputs = variables['outputs']
        first = outputs[0] if name == 'onnx' or isinstance(outputs, (list, tuple)) else outputs
        results[name] = first if name == 'onnx' else first.asnumpy()
    if case == 'questions':
        results['mxnet'] = results['mxnet'][..., 0]  # ONNX gives starts and ends apart
    np.testing.assert_allclose(results['onnx'], results['mxnet'], atol=1e-5)  # float32, another order


def test_the_card_tells_the_licence_and_the_files_and_no_path(tmp_path):
    directory, card = exported(tmp_path, 'sentences', license='mit')
    assert front_matter(card)['license'] == 'mit' and str(tmp_path) not in card
    assert 'gluon_optbert 0.1.0' in card and '`model-0000.params`' in card


def test_an_export_whose_card_was_edited_is_still_read(tmp_path):
    directory, card = exported(tmp_path, 'sentences')
    (directory / 'README.md').write_text(card + '\nTrained by us.\n', encoding='utf-8')
    assert read_description(directory).kind == 'task'


@pytest.mark.parametrize('license', ['apache 2', 'a\nb', '<b>', 'x' * 61])
def test_a_licence_is_a_name(tmp_path, license):
    with pytest.raises(ValueError, match='license: wanted a name'):
        write_card(tmp_path, saved_model(), 'encoder', format='mxnet', license=license)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('write', [export, export_onnx, export_transformers])
def test_a_licence_is_checked_before_anything_is_computed(tmp_path, write):
    with pytest.raises(ValueError, match='license: wanted a name'):
        write(None, tmp_path / 'export', license='apache 2')
    assert list(tmp_path.iterdir()) == []


def test_gates_that_are_folded_make_another_network_than_the_one_scored(tmp_path):
    head, architecture = HEADS['sentences'][1], network()
    saved = SavedModel(architecture, random_parameters(architecture, head=head), vocabulary(), head=head)
    alphas = random_alphas(architecture)
    alphas['h'][:4] = 0
    (tmp_path / 'alphas.npz').write_bytes(packed_alphas(alphas, h_gate='stream'))
    story = Story(finetuning=Finetuning({'dev/accuracy': 80.0}))
    for name, gates in (('as it is', None), ('cut', tmp_path / 'alphas.npz')):
        gluon_optbert.export(saved, tmp_path / name, alphas=gates, story=story)
        card = (tmp_path / name / 'README.md').read_text(encoding='utf-8')
        assert ('80.00' in card) is (gates is None)


@pytest.mark.parametrize('format', LIBRARIES)
def test_the_command_writes_the_licence_and_the_rounds(tmp_path, pruned_run, format):
    model = pruned_run[0] / 'round-2' / 'model'
    words = ['--format', format, '--output', tmp_path / 'out', '--license', 'apache-2.0']
    if format == 'mxnet':
        words.append('--onnx')
    done = call('tools/export_model.py', model, *words)
    assert done.returncode == 0, done.stderr
    card = (tmp_path / 'out' / 'README.md').read_text(encoding='utf-8')
    assert front_matter(card)['license'] == 'apache-2.0' and front_matter(card)['library_name'] == format
    assert 'Pruned in 2 rounds' in card and ('.onnx`' in card or format == 'transformers')
    assert str(tmp_path) not in card and str(pruned_run[0].parent) not in card
    for code in python_examples(card):
        for path in re.findall(r'DIRECTORY/([\w/.-]+)', code):
            assert (tmp_path / 'out' / path).is_file(), path


def test_files_in_int8_are_named():
    files = {'onnx/model.onnx': 4, 'onnx/model_quantized.onnx': 1, 'model_dynamic.onnx': 1}
    card = model_card(facts_of('encoder', format='sentence-transformers', files=files))
    limits = card.split('## Limits')[1]
    assert '`onnx/model_quantized.onnx`, `model_dynamic.onnx`, in int8' in limits
    assert (
        "model_kwargs={'file_name': 'onnx/model_quantized.onnx'}" in card and 'an embedding of a text' in card
    )
    optimum = model_card(facts_of('encoder', format='onnx', files={'model_quantized.onnx': 1}))
    assert "file_name='model_quantized.onnx'" in optimum
    assert 'int8' not in model_card(facts_of()).split('## Limits')[1]


def test_examples_name_the_inputs_of_the_file():
    usage = Usage(onnx_inputs=('input_ids', 'token_types', 'valid_length'), ids=(1, 2, 3, 4))
    text = used('mxnet', 'encoder', PRETRAINING, FILES, usage)
    assert "'valid_length': [4]" in text and "'input_ids': [[1, 2, 3, 4]]" in text
    assert 'attention_mask' not in text


def test_a_card_is_the_same_for_the_same_facts():
    assert model_card(facts_of()) == model_card(dataclasses.replace(facts_of()))
