"""Tokens are cut out of every tensor that has a side of tokens, and out of no other."""

import numpy as np
import pytest
from helpers.networks import NETWORKS, SEEDS, UNEVEN
from helpers.tiny import network, random_parameters
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.architecture.heads import Head
from gluon_optbert.architecture.parameters import check_parameters, network_shapes
from gluon_optbert.cutting.shrink import cut_tokens

HEADS = (Head(), Head('regression'), Head('classification', ('no', 'yes')), Head('question_answering'))


@given(NETWORKS, SEEDS, st.sampled_from(HEADS), st.data())
def test_rows_of_tokens_that_stay_are_kept_and_all_else_is_as_it_was(architecture, seed, head, data):
    kept = np.array(data.draw(st.lists(st.integers(0, architecture.vocab_size - 1), min_size=1, unique=True)))
    parameters = random_parameters(architecture, seed, head)
    left, smaller = cut_tokens(parameters, architecture, kept, head)
    check_parameters(left, smaller, head)
    assert smaller.vocab_size == len(kept) and smaller.widths() == architecture.widths()
    with_tokens = {'word_embed.0.weight', *([] if head.outputs else ['decoder.3.bias'])}
    for name, value in parameters.items():
        wanted = value[kept] if name in with_tokens else value
        assert np.array_equal(left[name], wanted), name


def test_every_parameter_that_grows_with_the_vocabulary_is_cut():
    small, large = (network_shapes(network(vocab_size=size)) for size in (11, 12))
    grown = {name for name in small if small[name] != large[name]}
    left, _ = cut_tokens(random_parameters(network(vocab_size=12)), network(vocab_size=12), np.arange(11))
    assert grown == {name for name, value in left.items() if value.shape != large[name]}


@pytest.mark.parametrize(
    'kept', [[], [0, 0], [-1, 2], [0, UNEVEN.vocab_size], [[0, 1]], [0.0, 1.0]], ids=lambda kept: str(kept)
)
def test_numbers_that_are_no_tokens_are_refused(kept):
    with pytest.raises(ValueError, match='^tokens: wanted'):
        cut_tokens(random_parameters(UNEVEN), UNEVEN, np.array(kept))
