"""The page pruning.md of a run: which differences of its losses are larger than chance."""

import dataclasses
import json
import logging

import pytest
from helpers.pruned import recipe_for
from helpers.tiny import network

from gluon_optbert.analysis.sample import network_of
from gluon_optbert.architecture.rounds import Round
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.report import chance, readable, unclear, unclear_below
from gluon_optbert.runs.progress import CUT, RECOVERY, HeldOut
from gluon_optbert.text.shards import Shards
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import difference, losses_of


def measured(loss, error=0.01):
    return HeldOut(loss, 0.5, 0.5, 0.5, instances=512, mlm_standard_error=error)


def round_of(before, after_cut, recovered, number=1, error=0.01):
    steps = dict(before=before, after_cut=after_cut, recovered=recovered)
    return Round(
        number, 1000, 1000, network(), **{name: measured(loss, error) for name, loss in steps.items()}
    )


def test_difference_within_two_standard_errors_may_be_chance():
    assert chance(measured(4.0, 0.03), measured(4.1, 0.04)) == pytest.approx(2 * 0.05)
    assert chance(measured(4.0, 0.03), measured(4.0, 0.01), measured(4.1, 0.04)) == pytest.approx(2 * 0.05)
    assert chance(measured(4.0), None) is None and chance(measured(4.0, None), measured(4.0)) is None


def test_steps_of_a_round_that_may_be_chance_are_named():
    assert unclear(round_of(4.0, 4.5, 4.2)) == []
    (sentence,) = unclear(round_of(4.0, 4.02, 4.2))
    assert 'the cut took' in sentence and 'from 4.000 to 4.020' in sentence and 'less than 0.028' in sentence
    (sentence,) = unclear(round_of(4.0, 4.5, 4.49))
    assert 'recovery took' in sentence and 'from 4.500 to 4.490' in sentence
    assert unclear(round_of(4.0, 4.0, 4.0, error=None)) == []  # no error is known


def test_the_error_of_a_difference_counts_where_it_is_known():
    row = dataclasses.replace(round_of(4.0, 4.5, 4.49), difference_errors={RECOVERY: 0.004})
    assert unclear(row) == []
    row = dataclasses.replace(row, difference_errors={RECOVERY: 0.006})
    assert unclear(row)[0].endswith('from 4.500 to 4.490; on 512 instances, less than 0.012 may be chance')
    assert Round.from_dict(row.to_dict()) == row


def test_page_says_what_a_difference_has_to_be(tmp_path):
    recipe = recipe_for(tmp_path, tmp_path, tmp_path / 'run')
    text = readable([round_of(4.0, 4.5, 4.2), round_of(4.2, 4.21, 4.0, number=2)], recipe)
    assert 'losses that differ by less than 0.028 may differ by chance' in text
    assert text.count('\n- round') == 1 and '\n- round 2: the cut' in text and '--evaluation-limit' in text
    assert '--evaluation-limit' not in readable([round_of(4.0, 4.5, 4.2)], recipe)
    assert 'chance' not in readable([round_of(4.0, 4.5, 4.2, error=None)], recipe)


def test_page_of_states_alone_has_no_column_of_losses(tmp_path):
    row = Round(1, 1000, 1000, network(), state_difference=0.25)
    lines = readable([row], recipe_for(tmp_path, tmp_path, tmp_path / 'run', labels='none')).splitlines()
    head, _, cells = (line.split(' | ')[3:5] for line in lines if line.startswith('|'))
    assert head == ['difference of the states', 'h'] and cells[0] == '0.250'


def test_changes_of_a_round_are_taken_instance_by_instance(pruned, shards_directory, tmp_path, caplog):
    """So little training changes the loss by much less than the loss is uncertain, and yet for certain."""
    with caplog.at_level(logging.WARNING):
        pruned(rounds=1, learning_rate=1e-4, method='random')
    (_, row) = (Round.from_dict(values) for values in json.loads((tmp_path / 'run/rounds.json').read_text()))
    assert unclear_below(row.start, row.recovered) and 'recovery took' not in caplog.text
    assert 'there are 16 held-out instances' in caplog.text  # a doubt, before the run
    for said in (caplog.text, (tmp_path / 'run' / 'pruning.md').read_text()):
        assert 'round 1: the cut took' in said
    heldout = Shards.open(shards_directory, split='heldout')
    losses = [
        losses_of(network_of(read_model(tmp_path / 'run' / place)), heldout, Workers(), batch_size=8)
        for place in ('round-0/model', 'round-1/shrunk', 'round-1/model')
    ]
    errors = [difference(*losses[i : i + 2], Workers())[1] for i in (0, 1)]
    assert [row.difference_errors[name] for name in (CUT, RECOVERY)] == pytest.approx(errors, rel=1e-3)
    assert errors[1] < 0.1 * row.recovered.standard_error
