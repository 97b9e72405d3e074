"""Pruning runs: the documented files, the exactness of every round, and what each method does."""

import json
import os
import re

import numpy as np
import pytest
import yaml
from helpers.processor import needs_bfloat16
from helpers.pruned import MODEL, alphas_of, recipe_for, records, selection_of, with_more_tokens
from helpers.tiny import ROOT, network, saved_model, write_saved_model

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.rounds import Round
from gluon_optbert.cutting.selection import select_units
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.export import deployment_of
from gluon_optbert.deployment.lineage import lineage_of
from gluon_optbert.deployment.model_card import model_card
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.objectives import PretrainingObjective
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.pruning.report import summary
from gluon_optbert.pruning.run import Run, smaller
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.objective import Phase

ROUND = {'alphas.npz', 'scores.npz', 'gates.json', 'selection.json', 'shrunk', 'model'}


def test_run_leaves_the_documented_files(pruned_run):
    output, _ = pruned_run
    assert os.listdir(output.parent) == ['run']
    files = {'recipe.yaml', 'origin.json', 'metrics.jsonl', 'rounds.json', 'pruning.md'}
    assert set(os.listdir(output)) == files | {'round-0', 'round-1', 'round-2'}
    assert os.listdir(output / 'round-0') == ['model']
    for number in (1, 2):
        assert set(os.listdir(output / f'round-{number}')) == ROUND
        assert set(os.listdir(output / f'round-{number}' / 'shrunk')) == MODEL
        assert set(os.listdir(output / f'round-{number}' / 'model')) == MODEL | {'origin.json'}
    assert fill(PruneRecipe, yaml.safe_load((output / 'recipe.yaml').read_text())).rounds == 2
    logged = [record for record in records(output) if 'mlm' in record]
    assert all(('penalty' in record) == (record['phase'] == 'gates') for record in logged)
    steps = [(record['round'], record['phase'], record['step']) for record in logged]
    phases = [('gates', 2), ('gates', 3), ('recovery', 2), ('recovery', 4)]
    assert steps == [(number, *phase) for number in (1, 2) for phase in phases]


def test_every_round_is_a_plain_model_directory_at_its_target(pruned_run):
    output, rows = pruned_run
    whole = ParameterCost().cost(read_model(output / 'round-0' / 'model').architecture)
    for number in (1, 2):
        selection = selection_of(output / f'round-{number}')
        for name in ('shrunk', 'model'):
            saved = read_model(output / f'round-{number}' / name)
            assert saved.alphas is None
            assert ParameterCost().cost(saved.architecture) == selection.cost == rows[number].parameters
        assert selection.target == pytest.approx(whole * (1 - 0.4 * number / 2))
        before = read_model(output / f'round-{number - 1}' / 'model').architecture
        dearest = max(ParameterCost().prices(before).values())
        assert selection.target - dearest < selection.cost <= selection.target


@pytest.mark.parametrize('number', [1, 2])
def test_every_round_follows_from_its_own_files(pruned_run, number):
    """alphas.npz decides selection.json, and both decide the shrunk network, bit for bit."""
    directory, cost = pruned_run[0] / f'round-{number}', ParameterCost()
    before = read_model(pruned_run[0] / f'round-{number - 1}' / 'model')
    shrunk, alphas = read_model(directory / 'shrunk'), alphas_of(directory)
    selection = selection_of(directory)
    again = select_units(alphas, before.architecture, cost, selection.target)
    assert again.to_dict() == selection.to_dict()
    parameters, architecture = shrink(before.parameters, before.architecture, alphas, selection)
    assert architecture == shrunk.architecture
    assert all(np.array_equal(value, shrunk.parameters[name]) for name, value in parameters.items())

    story = json.loads((directory / 'selection.json').read_text())
    assert story['round'] == number and story['cost_before'] == cost.cost(before.architecture)
    assert story['prices'] == cost.prices(before.architecture)
    for key, removed in story['removed_unit_and_alpha'].items():
        units = [unit for unit, _ in removed]
        assert sorted(units + story['kept'][key]) == list(range(before.architecture.widths()[key]))
        assert [alpha for _, alpha in removed] == pytest.approx(alphas[key][units].tolist(), abs=1e-6)


def test_rounds_json_is_the_summary_and_tells_every_loss(pruned_run):
    output, rows = pruned_run
    written = json.loads((output / 'rounds.json').read_text())
    assert rows == summary(output) == [Round.from_dict(row) for row in written]
    assert written == [row.to_dict() for row in rows]
    assert [row.round for row in rows] == [0, 1, 2] and rows[0].before is None
    assert rows[2].before.mlm_loss == pytest.approx(rows[1].recovered.mlm_loss, rel=1e-5)
    for row in rows[1:]:
        for measured in (row.before, row.after_cut, row.recovered):
            assert np.isfinite(measured.mlm_loss) and measured.instances == 16
    text = (output / 'pruning.md').read_text()
    assert text.partition('## Gates')[0].count('\n| ') == 5 and f'{rows[2].recovered.mlm_loss:.3f}' in text


def test_recorded_rounds_are_written_again_as_they_are():
    points = json.loads((ROOT / 'results' / 'pruning' / 'points.json').read_text())
    for run in points['runs'].values():
        for row in run['rounds']:
            for added in {'sha256', 'gates', 'embeddings'} & row.keys():
                del row[added]
            assert json.dumps(Round.from_dict(row).to_dict()) == json.dumps(row)


def test_what_is_no_round_is_refused(pruned_run):
    good = pruned_run[1][1].to_dict()
    for change in ({'architecture': 3}, {'before': 3}, {'recovered': {'mlm_loss': 1.0}}):
        with pytest.raises(ValueError, match='there: '):
            Round.from_dict({**good, **change}, source='there')


@pytest.mark.parametrize('letters', ['hakvf', 'hfv'])
def test_any_architecture_loses_units_of_the_letters_asked_for_alone(pruned, tmp_path, letters):
    architecture = network((2, 4, 4, 0), (1, 2, 2, 3), (2, 3, 4, 8), e=4)
    start = write_saved_model(tmp_path / 'start', architecture=architecture)
    rows = pruned(model=start, rounds=1, target=0.7, recovery_steps=1, prune=letters)
    assert rows[1].parameters <= 0.7 * rows[0].parameters
    left = read_model(tmp_path / 'run' / 'round-1' / 'model').architecture
    assert [layer.f == 0 for layer in left.layers] == [True, False, False] and left.e == 4
    for key, alpha in alphas_of(tmp_path / 'run' / 'round-1').items():
        trained = key[0] in letters and len(alpha) > 0
        assert trained == (alpha != 1).any()
        assert key[0] in letters or left.widths()[key] == architecture.widths()[key]


@needs_bfloat16
def test_run_in_bfloat16_trains_gates_near_those_of_one_in_float32(pruned, pruned_run, tmp_path):
    pruned(precision='bfloat16', targets=[0.8])
    rounded, wanted = (alphas_of(directory / 'round-1') for directory in (tmp_path / 'run', pruned_run[0]))
    assert any((alpha != wanted[key]).any() for key, alpha in rounded.items())  # to eight bits on the way
    # three steps of up to 0.05
    assert all(np.abs(alpha - wanted[key]).max() < 0.02 for key, alpha in rounded.items())
    left = read_model(tmp_path / 'run' / 'round-1' / 'model')
    assert {value.dtype for value in left.parameters.values()} == {np.dtype(np.float32)}


def test_trimming_to_the_shards_counts_in_the_target(shards_directory, model_directory, tmp_path):
    """The network knows four tokens more than the shards; its teacher loses them, too."""
    small, larger = read_model(model_directory), with_more_tokens(read_model(model_directory))
    write_model(tmp_path / 'larger', larger)
    more = {'teacher': str(tmp_path / 'larger'), 'rounds': 1, 'target': 0.8}
    recipe = recipe_for(shards_directory, tmp_path / 'larger', tmp_path / 'run', **more)
    with pytest.raises(ValueError, match='vocabular'):
        prune(recipe)
    with pytest.raises(ValueError, match='trim: .* has the whole vocabulary of .* nothing is left to trim'):
        prune(recipe.replace(model=model_directory, trim=True))
    assert not recipe.output.exists()
    rows = prune(recipe.replace(trim=True))
    size = ParameterCost().cost(larger.architecture)
    assert rows[0].parameters == ParameterCost().cost(small.architecture)
    assert 0.8 * size - 50 < rows[1].parameters <= 0.8 * size
    start = read_model(tmp_path / 'run' / 'round-0' / 'model')
    assert all(np.array_equal(start.parameters[name], small.parameters[name]) for name in small.parameters)
    assert '32 of 36 tokens' in (tmp_path / 'run' / 'pruning.md').read_text()


def test_run_from_a_pruned_network_says_nothing_of_the_run_before(pruned_run, pruned, tmp_path):
    """Nor does it report what was measured on more instances."""
    output, start = tmp_path / 'run', pruned_run[0] / 'round-2' / 'model'
    assert read_model(start).progress.after_cut is not None
    rows = pruned(model=start, rounds=1, target=0.9, evaluation_limit=8)
    of_cut = ('before', 'after_cut', 'after_reconstruction', 'kept_step', 'state_difference')
    assert [getattr(rows[0], name) for name in of_cut] == [None] * len(of_cut)
    assert rows[0].recovered == rows[1].before and rows[0].recovered.instances == 8
    page = (output / 'pruning.md').read_text()
    assert 'ound 0: ' not in page and 'ound 1' in page
    assert re.search(rf'^\| 0 \|.*\| {rows[1].before.mlm_loss:.3f} \|', page, flags=re.MULTILINE)
    saved = read_model(output / 'round-1' / 'model')
    lineage = lineage_of(saved, output / 'round-1' / 'model')
    card = model_card(deployment_of(saved, 'encoder'), format='mxnet', files={}, lineage=lineage)
    assert lineage.pruning.again and 'Pruned again in 1 round' in card
    assert '| before the last pruning |' in card


def test_rounds_go_on_after_the_batches_that_the_network_has_read(shards_directory, tmp_path):
    start = saved_model(progress={'step': 30, 'earlier_steps': 70})
    recipe = recipe_for(shards_directory, tmp_path, tmp_path / 'run')
    objective = PretrainingObjective(recipe, start, Workers())
    rounds = [Run(objective, number, None, objective.round_steps(), None) for number in (1, 2)]
    begun = [run.phase(name).first_batch for run in rounds for name in ('gates', 'recovery')]
    assert begun == [100, 103, 107, 110]  # gates of 3 steps, recovery of 4, twice


def test_text_of_batches_that_are_counted_in_tokens_begins_where_they_do():
    phase = smaller(Phase('importance', 2, 8, batch_tokens=64, first_batch=3))
    assert (phase.batch_tokens, phase.first_batch, phase.steps) == (16, 12, 2)
    assert smaller(Phase('importance', 2, 8, first_batch=3)) == Phase('importance', 2, 8, first_batch=3)
