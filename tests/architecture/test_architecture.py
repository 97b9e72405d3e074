"""Architectures: their JSON, their widths, and the tensors that follow from them."""

import pytest
from helpers.examples import examples
from helpers.networks import ARCHITECTURES
from helpers.tiny import network
from hypothesis import given

from gluon_optbert.architecture.architecture import Architecture, LayerDims


@examples(30)
@given(ARCHITECTURES)
def test_json_and_its_own_widths_change_nothing(architecture):
    assert Architecture.from_json(architecture.to_json()) == architecture
    assert Architecture.from_dict(architecture.to_dict()) == architecture
    lines = architecture.to_json().splitlines()
    assert sum(line.strip().startswith('{"a"') for line in lines) == len(architecture.layers)
    assert architecture.with_widths(architecture.widths()) == architecture.with_widths({}) == architecture


def test_with_widths_changes_what_it_names():
    architecture = network((2, 4, 4, 16), (1, 3, 5, 7)).with_widths({'h': 6, 'k1': 2, 'f0': 9})
    assert architecture == network((2, 4, 4, 9), (1, 2, 5, 7), h=6)
    with pytest.raises(ValueError, match='f2, q0'):
        network().with_widths({'q0': 1, 'f2': 1})


def test_every_bad_width_is_named_at_once():
    with pytest.raises(ValueError) as error:
        Architecture(h=0, layers=(LayerDims(1, 2, True, -1), LayerDims(2.0, 1, 1, 0)), vocab_size='x')
    for problem in ('h must', 'v of layer 0', 'f of layer 0', 'a of layer 1', 'vocab_size'):
        assert problem in str(error.value)
    assert 'f of layer 1' not in str(error.value)


def test_epsilon_of_bert_is_not_written():
    values = network().to_dict()
    assert 'layer_norm_eps' not in values and Architecture.from_dict(values).layer_norm_eps == 1e-12
    assert Architecture.from_dict({**values, 'layer_norm_eps': 1e-5}).to_dict()['layer_norm_eps'] == 1e-5


@pytest.mark.parametrize(
    'change, named',
    [
        ({'h': None}, 'h must'),
        ({'h': 10**400}, r'h must be a whole number from 1 to 2147483647, found 10{79}$'),
        ({'e': ..., 'h': ...}, 'missing e; missing h'),
        ({'format': 2}, 'format 2'),
        ({'heads': 3}, "unknown 'heads'"),
        ({'a\nb' * 99: 3}, r"unknown 'a\\nba.{1,80}$"),
        ({'format': 'x' * 99}, "format 'x{79}, this"),
        ({'layers': 4}, 'layers'),
        ({'layers': [{'a': 1, 'k': 1, 'v': 1}]}, 'layers must be a list'),
        ({'layers': [{'a': 1, 'k': 1, 'v': 1, 'f': '8'}]}, 'f of layer 0'),
        ({'layer_norm_eps': 1.0}, 'layer_norm_eps must be a number from 0 to below 1'),
        ({'layer_norm_eps': float('nan')}, 'layer_norm_eps must'),
        ({'layer_norm_eps': '1e-5'}, 'layer_norm_eps must'),
    ],
)
def test_values_that_are_no_architecture_are_refused(change, named):
    with pytest.raises(ValueError, match=named) as error:
        values = {**network().to_dict(), **change}
        kept = {name: value for name, value in values.items() if value is not ...}
        Architecture.from_dict(kept, source='here.json')
    assert 'here.json' in str(error.value)
