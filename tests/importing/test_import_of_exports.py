"""An export for Transformers comes back as the same model."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers.checkpoints import write_hugging_face
from helpers.examples import examples
from helpers.exported import ARCHITECTURES, UNEVEN, with_head, write_for_transformers
from helpers.networks import NETWORKS, SEEDS
from helpers.tiny import saved_model, vocabulary
from hypothesis import given

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.export import UntrainedHeads, export
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source
from gluon_optbert.text.tokenizer import vocabulary_of

HEADS = [
    Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label')),
    Head('regression', (), 'STS-B'),
    Head('question_answering', (), 'SQuAD2.0'),
]


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """An export of a classifier of uneven widths, made once."""
    return write_for_transformers(tmp_path_factory.mktemp('export') / 'out', UNEVEN, HEADS[0])


@pytest.fixture
def directory(exported, tmp_path):
    """A copy of it."""
    return shutil.copytree(exported, tmp_path / 'out')


def changed(directory, **fields):
    """The directory, with other fields in its configuration; None takes one away."""
    path = directory / 'config.json'
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return directory


def read(directory):
    return convert(read_source(str(directory))).model


def same_arrays(model, other):
    """Bit for bit."""
    assert model.parameters.keys() == other.parameters.keys()
    for name, value in other.parameters.items():
        np.testing.assert_array_equal(model.parameters[name], value)


@pytest.mark.parametrize('head', HEADS, ids=lambda head: f'{head.kind} {len(head.labels)}')
def test_a_task_comes_back_with_its_labels_names_and_arrays(tmp_path, head):
    for widths in ('even', 'factorised') if head == HEADS[0] else ('uneven',):
        saved = with_head(ARCHITECTURES[widths], head)
        export_transformers(saved, tmp_path / widths)
        after = read(tmp_path / widths)
        assert after.architecture == saved.architecture
        assert after.vocabulary.idx_to_token == saved.vocabulary.idx_to_token
        same_arrays(after, saved)
        assert after.head == head
        assert not head.names or (after.head.names, after.head.columns) == (head.names, head.columns)


@given(architecture=NETWORKS, seed=SEEDS)
@examples(5)
def test_any_widths_come_back(tmp_path_factory, architecture, seed):
    tokens = vocabulary_of(vocabulary().idx_to_token[: architecture.vocab_size])
    saved = dataclasses.replace(saved_model(architecture, seed=seed), vocabulary=tokens)
    place = tmp_path_factory.mktemp('export') / 'out'
    export_transformers(saved, place, head='pretraining')
    model = read(place)
    assert model.architecture == architecture and model.progress.untrained is None
    same_arrays(model, saved)


def test_the_code_of_a_directory_is_never_run(directory, tmp_path):
    (directory / 'modeling_optbert.py').write_text(f'open({str(tmp_path / "run")!r}, "w")\n')
    assert read(directory).architecture.widths_line.endswith('a=1-3 k=1-4 v=2-5 f=0-9')
    assert not (tmp_path / 'run').exists()


def test_what_others_changed_in_an_export_counts(directory, tmp_path):
    """Somebody fine-tuned it in Transformers, which saves the vocabulary in the tokenizer alone."""
    changed(directory, id2label={'0': 'ham', '1': 'spam'})
    (directory / 'vocab.txt').unlink()
    model = read(directory)
    assert model.head.labels == ('ham', 'spam')
    assert model.vocabulary.idx_to_token == vocabulary().idx_to_token
    random = write_for_transformers(tmp_path / 'random', UNEVEN, Head())
    changed(random, gluon_optbert={'head': Head().to_dict(), 'untrained': ['pooler']})
    assert read(random).progress.untrained == ('pooler',)


@pytest.mark.parametrize('labels', [('Negative', 'POSITIVE'), ('1', '0')])
def test_labels_in_another_order_or_other_capitals_are_those_of_the_export(directory, labels):
    numbers = dict(enumerate(labels))
    changed(directory, id2label=numbers, label2id={label: i for i, label in numbers.items()})
    source = read_source(str(directory))
    wanted = ('0', '1') if labels[0] == 'Negative' else ('1', '0')
    assert source.head.labels == wanted and source.head.columns == HEADS[0].columns
    assert source.head.names == tuple({'0': 'negative', '1': 'positive'}[label] for label in wanted)
    assert any('id2label counts' in note for note in source.notes) == (wanted != ('0', '1'))
    same_arrays(convert(source).model, with_head(UNEVEN, HEADS[0]))
    changed(directory, label2id={label.lower(): 1 - i for i, label in numbers.items()})
    with pytest.raises(ValueError, match='in label2id and 0 in id2label; write the right one into both'):
        read_source(str(directory))


@pytest.mark.parametrize('widths', ['even', 'factorised'])
def test_an_mlm_head_is_exported_without_random_heads_beside_it(tmp_path, widths):
    saved = saved_model(ARCHITECTURES[widths], progress={'untrained': ['pooler', 'nsp']})
    with pytest.raises(UntrainedHeads, match='no pooler and no NSP head'):
        export(saved, tmp_path / 'deploy', head='pretraining')
    export_onnx(saved, tmp_path / 'optimum', head='pretraining')
    export_transformers(saved, tmp_path / 'hub', head='pretraining')
    (name,) = json.loads((tmp_path / 'hub' / 'config.json').read_text())['architectures']
    assert name.endswith('BertForMaskedLM')
    assert 'AutoModelForMaskedLM.from_pretrained' in (tmp_path / 'hub' / 'README.md').read_text()
    again = read(tmp_path / 'hub')
    assert again.progress.untrained == ('pooler', 'nsp')
    for name in (name for name in saved.parameters if not name.startswith(('pooler', 'classifier'))):
        np.testing.assert_array_equal(again.parameters[name], saved.parameters[name], err_msg=name)


LAYERS = [dataclasses.asdict(layer) for layer in UNEVEN.layers]


@pytest.mark.parametrize(
    'fields, complaint',
    [
        ({'layer_widths': [{**LAYERS[0], 'x\ny': 1}, *LAYERS[1:]]}, r'layer_widths.0.x\\ny Extra inputs'),
        ({'layer_widths': LAYERS[:2]}, 'num_hidden_layers is not the length'),
        (
            {'layer_widths': [{**LAYERS[0], 'f': 8}, *LAYERS[1:]]},
            r'intermediate.dense.weight has shape \(7, 8\), wanted \(8, 8\)',
        ),
        ({'embedding_size': 0}, 'embedding_size must be .* 1, found 0'),
        ({'gluon_optbert': 3}, 'gluon_optbert must have a head'),
        ({'gluon_optbert': {'head': {}, 'untrained': []}}, 'wanted kind, labels and task'),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(directory, fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        read(changed(directory, **fields))


def tokenizer_of(vocab, added=()):
    return {'model': {'type': 'WordPiece', 'vocab': vocab}, 'added_tokens': list(added)}


WHOLE = {token: i for i, token in enumerate(vocabulary().idx_to_token)}


@pytest.mark.parametrize(
    'values, complaint',
    [
        ({'model': {'type': 'BPE', 'vocab': WHOLE}}, 'wanted a model of type WordPiece'),
        (tokenizer_of({**WHOLE, 'new': 10**12}), 'numbers from 0 on'),
        (tokenizer_of(WHOLE, [{'content': 'x', 'id': 0}]), 'numbers from 0 on'),
        (tokenizer_of(WHOLE, [{'content': 'x\ny', 'id': len(WHOLE)}]), 'has a line break'),
        (tokenizer_of(WHOLE, [{'content': '\ud800', 'id': len(WHOLE)}]), 'half a surrogate pair'),
        (tokenizer_of([1, 2]), 'tokenizer.json: not read by `tokenizers`'),
    ],
)
def test_a_tokenizer_that_is_no_vocabulary_is_refused(tmp_path, values, complaint):
    directory = write_hugging_face(tmp_path / 'out')
    (directory / 'vocab.txt').unlink()
    (directory / 'tokenizer.json').write_text(json.dumps(values))
    with pytest.raises(ValueError, match=complaint):
        read(directory)
