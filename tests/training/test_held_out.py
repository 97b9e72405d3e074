"""Differences of losses on the same instances are those of the losses, and their errors those of a mean."""

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import network, saved_model
from hypothesis import given, strategies as st

from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.running import run
from gluon_optbert.runs.progress import HeldOut
from gluon_optbert.text.batches import evaluation_batches
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import Losses, difference, losses_of


def built(seed):
    model = saved_model(network((2, 4, 4, 16), (1, 2, 6, 3), h=6), seed=seed)
    return build(model.architecture, model.parameters, trainable=False)


def made(sums, tokens):
    """The losses of so many instances, of which nothing else is known."""
    held_out = HeldOut(0.0, 0.0, 0.0, 0.0, instances=len(tokens))
    return Losses(held_out, np.asarray(sums, float), np.asarray(tokens, float))


def apart(one, other):
    return difference(one, other, Workers())


def test_accuracies_are_shares_of_the_masked_tokens_and_of_the_instances(shards):
    model, (batch,) = built(0), evaluation_batches(shards['heldout'], batch_size=16)
    outputs = run(model, batch, INPUTS)
    pairs, tokens = (one.argmax(axis=-1) for one in outputs[-2:])
    measured = losses_of(model, shards['heldout'], Workers(), batch_size=4).measured
    assert measured.nsp_accuracy == pytest.approx((pairs == batch.next_sentence_labels).mean())
    right = (tokens == batch.masked_ids)[batch.masked_weights > 0]
    assert measured.mlm_accuracy == pytest.approx(right.mean())


@pytest.mark.parametrize('limit', [None, 7])
def test_losses_add_up_to_what_training_measures(shards, limit):
    """Sixteen instances in batches of five: the last batch is filled up."""
    losses = losses_of(built(0), shards['heldout'], Workers(), batch_size=5, limit=limit)
    whole = losses_of(built(0), shards['heldout'], Workers(), batch_size=4, limit=limit).measured
    assert losses.measured.instances == (limit or 16) and not losses.tokens[limit or 16 :].any()
    assert np.count_nonzero(losses.tokens) <= len(losses.sums) == len(losses.tokens)
    for name, value in whole.to_dict().items():
        assert getattr(losses.measured, name) == pytest.approx(value, rel=1e-5), name
    ratio = losses.sums.sum() / losses.tokens.sum()
    assert ratio == pytest.approx(whole.mlm_loss, rel=1e-5)
    count, scatter = limit or 16, np.square(losses.sums - ratio * losses.tokens).sum()
    error = np.sqrt(count / (count - 1) * scatter) / losses.tokens.sum()
    assert whole.mlm_standard_error == pytest.approx(error, rel=1e-4)


def test_losses_of_two_workers_are_gathered_in_the_order_of_the_instances(shards):
    """Sixteen instances in batches of six, three for each worker: the last two places are filled up."""
    ranks, parts = [Workers(), Workers()], []
    for rank, one in enumerate(ranks):
        one.rank, one.size = rank, 2
        one.sum = lambda values, name: list(values)  # the share of this worker alone
        one.total = lambda array, name: parts.append(array) or array
        losses_of(built(0), shards['heldout'], one, batch_size=6).gathered(one, batch_size=6)
    ranks[0].total = lambda array, name: parts[0] + parts[1]
    both = losses_of(built(0), shards['heldout'], ranks[0], batch_size=6).gathered(ranks[0], batch_size=6)
    alone = losses_of(built(0), shards['heldout'], Workers(), batch_size=16)
    assert np.array_equal(both.tokens, alone.tokens) and len(both.tokens) == 16
    np.testing.assert_allclose(both.sums, alone.sums, rtol=1e-5)


def test_difference_is_that_of_the_losses_and_surer_than_they_are(shards):
    one = losses_of(built(0), shards['heldout'], Workers(), batch_size=8)
    near = made(1.01 * one.sums + 0.001 * np.arange(16), one.tokens)
    mean, error = apart(one, near)
    assert mean == pytest.approx((near.sums - one.sums).sum() / one.tokens.sum())
    assert 0 < error < 0.2 * one.measured.mlm_standard_error
    assert apart(one, one) == (0.0, 0.0)
    assert apart(near, one)[0] == -mean


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 9))
@examples(20)
def test_error_is_that_of_a_mean_where_instances_have_equally_many_tokens(seed, count, tokens):
    one, other = np.random.RandomState(seed).normal(size=(2, count))
    mean, error = apart(made(one, [tokens] * count), made(other, [tokens] * count))
    assert mean == pytest.approx((other - one).mean() / tokens)
    assert error == pytest.approx((other - one).std(ddof=1) / count**0.5 / tokens)


def test_an_instance_with_more_tokens_counts_for_more_and_other_instances_are_refused():
    assert apart(made([0, 0], [1, 3]), made([1, 3], [1, 3])) == (1.0, 0.0)
    assert apart(made([1], [2]), made([3], [2])) == (1.0, None)
    with pytest.raises(ValueError, match='measured on different instances'):
        apart(made([1, 2], [1, 1]), made([1, 2], [1, 2]))
