"""A network with a trimmed vocabulary computes what the whole one computes, and is written whole."""

import dataclasses
import json

import mxnet as mx
import numpy as np
import pytest
from helpers.networks import UNEVEN
from helpers.tiny import network, outputs_of, random_alphas, random_inputs
from helpers.trimmed import TEXT, TOKENS, whole_model, write_whole

import gluon_optbert as opt
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.trimming import trim
from gluon_optbert.runs.files import sha256
from gluon_optbert.text.tokenizer import vocabulary_of
from gluon_optbert.text.trimming import FORMAT, TRIM, VERSION, read_trim_record

LEFT = vocabulary_of([token for token in TOKENS if token not in ('[unused0]', 'dog', '##gone', 'abc')])
EVEN = network()
MODELS = {
    'pre-training heads': dict(layers=EVEN.layers, h=8),
    'factorised embedding': dict(layers=EVEN.layers, h=8, e=5),
    'pruned, uneven': dict(layers=UNEVEN.layers, h=6),
}


def model_of(layers, **more):
    return whole_model(*(dataclasses.astuple(layer) for layer in layers), **more)


@pytest.mark.parametrize('kind', MODELS)
def test_for_tokens_that_stay_every_output_is_that_of_the_whole_network(kind):
    saved = model_of(**MODELS[kind])
    kept = np.array(saved.vocabulary[LEFT.idx_to_token])
    small = trim(saved, LEFT)
    ids, *others = random_inputs(small.architecture)
    before = mx.nd.array(kept[ids.asnumpy().astype(int)])
    wanted = outputs_of(build(saved.architecture, saved.parameters), [before, *others])
    computed = outputs_of(build(small.architecture, small.parameters), [ids, *others])
    wanted['masked'] = wanted['masked'][..., kept]
    for name, value in wanted.items():
        np.testing.assert_allclose(computed[name], value, rtol=0, atol=1e-6 * np.abs(value).max())


@pytest.mark.parametrize(
    'tokens, said',
    [
        (
            [*LEFT.idx_to_token, 'new'],
            "1 of .* tokens are not in the vocabulary of the network, such as 'new'",
        ),
        (LEFT.idx_to_token[:5], 'text would be read with another casing'),
    ],
)
def test_a_vocabulary_that_is_no_part_of_the_whole_is_refused(tokens, said):
    with pytest.raises(ValueError, match=said):
        trim(model_of(EVEN.layers), vocabulary_of(tokens))


@pytest.fixture
def place(tmp_path):
    """A folder with a model directory and a file of text."""
    write_whole(tmp_path / 'whole')
    return tmp_path


def trimmed_in(place, **more):
    fields = dict(model=place / 'whole', text=(place / 'text.txt',), output=place / 'trimmed')
    return opt.trim_vocabulary(**{**fields, **more})


def test_the_directory_has_the_tokens_of_the_text_and_says_where_it_comes_from(place):
    trimmed = trimmed_in(place)
    saved, whole = read_model(place / 'trimmed'), read_model(place / 'whole')
    gone = set(whole.vocabulary.idx_to_token) - set(saved.vocabulary.idx_to_token)
    assert gone == {'[unused0]', 'abc', '##cat', '##gone'}
    assert saved.architecture == trimmed.model.architecture and saved.vocabulary == trimmed.model.vocabulary
    assert (saved.recipe, saved.progress) == (whole.recipe, whole.progress)
    record = read_trim_record(place / 'trimmed')
    assert record.model == place / 'whole' and record.text == (place / 'text.txt',)
    assert record.model_sha256 == sha256(place / 'whole' / 'model.params')
    assert record.tokens == (len(TOKENS), len(TOKENS) - 4)
    assert record.parameters[0] - record.parameters[1] == 4 * saved.architecture.h
    assert record.splits['share'] == 0 and record.splits['words'] == len(TEXT.replace('.', ' .').split())
    names = {path.name for path in (place / 'trimmed').iterdir()}
    assert {'metrics.jsonl', 'origin.json', TRIM} <= names and 'other.txt' not in names


def test_an_output_that_exists_and_a_network_with_gates_are_refused(place):
    saved = model_of(EVEN.layers)
    write_model(place / 'gated', dataclasses.replace(saved, alphas=random_alphas(saved.architecture)))
    with pytest.raises(ValueError, match='gated still has its gates; fold them with'):
        trimmed_in(place, model=place / 'gated')
    assert not (place / 'trimmed').exists()
    (place / 'trimmed').mkdir()
    with pytest.raises(FileExistsError, match='nothing is overwritten'):
        trimmed_in(place)


def test_what_is_no_record_is_refused_by_name(tmp_path):
    whole = {'format': FORMAT, 'version': VERSION, 'recipe': {'model': 'm', 'text': ['t']}, 'splits': {}}
    whole.update(model_sha256='0', tokens=[3, 2], parameters=[30, 20], origin={})
    (tmp_path / TRIM).write_text(json.dumps(whole))
    assert read_trim_record(tmp_path).parameters == (30, 20)
    spoilt = ({'recipe': {}}, {'recipe': {'model': 3, 'text': []}}, {'tokens': 5}, {'format': 'x'})
    for content in ('[]', *(json.dumps({**whole, **change}) for change in spoilt)):
        (tmp_path / TRIM).write_text(content)
        with pytest.raises(ValueError, match='trim.json: '):
            read_trim_record(tmp_path)
