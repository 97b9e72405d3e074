"""Rotation and reconstruction: what they leave alone, what they repair, and runs with both."""

import dataclasses
import json
import os

import numpy as np
import pytest
from helpers.networks import UNEVEN, random_batches
from helpers.pruned import Interrupted, interrupted_at, recipe_for, results
from helpers.tiny import network, random_parameters, random_selection, saved_model
from mxnet import autograd

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.parameters import PARTS
from gluon_optbert.architecture.rounds import Round
from gluon_optbert.cutting.selection import Selection, keep_all
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.verify import (
    LEFT_OUT,
    VerifyRecipe,
    described_stages,
    stages,
    stages_table,
    verify,
)
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.running import feed_of, squared_errors
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.pruning import algorithm, run
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.objectives import PretrainingObjective
from gluon_optbert.pruning.repairs import reconstruct, rotated, tokens_wanted
from gluon_optbert.runs.progress import CUT, Progress
from gluon_optbert.training.distillation import OF_STATES
from gluon_optbert.training.distributed import Workers

WORKERS = Workers()


def saved(architecture, seed=0):
    return SavedModel(architecture, random_parameters(architecture, seed), None)


def test_a_fit_wants_tokens_for_its_widest_product():
    one = network()
    widest = max(max(dims.a * dims.v, dims.f) for dims in one.layers)
    assert tokens_wanted(saved(one), 10) == 10 * max(one.h, widest)
    assert tokens_wanted(saved(dataclasses.replace(one, layers=())), 10) == 10 * one.h


def cut_by(whole, selection, parameters=None):
    smaller, architecture = shrink(parameters or whole.parameters, whole.architecture, None, selection)
    return dataclasses.replace(whole, architecture=architecture, parameters=smaller)


def error_of(network, whole, selection):
    """The relative error of the last layer's output, on tokens that no repair has read."""
    fresh = random_batches(whole.architecture, 1, seed=9)
    difference, size = squared_errors(whole, network, selection.kept['h'], fresh)
    return np.sqrt(difference / size)


def errors(whole, smaller, selection):
    """Of a cut network before and after reconstruction."""
    batches = random_batches(whole.architecture, 6)
    repaired = reconstruct(whole, smaller, selection, batches, workers=WORKERS)
    assert repaired.architecture == smaller.architecture
    return [error_of(network, whole, selection) for network in (smaller, repaired)]


def everything(architecture, **kept):
    """All units but of the widths that are given."""
    return dict(keep_all(architecture, ParameterCost()).kept, **kept)


def test_nothing_changes_where_nothing_was_cut():
    whole = saved(network(), 1)
    found = errors(whole, whole, keep_all(whole.architecture, ParameterCost()))
    assert found == pytest.approx([0, 0], abs=1e-5)


def test_filters_that_have_a_double_can_go():
    whole = saved(network((2, 4, 4, 8)), 4)
    for name in ('weight', 'bias'):
        values = whole.parameters[f'encoder.transformer_cells.0.ffn.ffn_1.{name}']
        values[4:] = values[:4]
    selection = Selection(everything(whole.architecture, f0=np.arange(4)), 0, 0)
    before, after = errors(whole, cut_by(whole, selection), selection)
    assert before > 0.1 and after < 0.02


DEEP = network(*((2, 4, 4, 16),) * 4)
NO_BLOCKS = everything(DEEP, f0=np.arange(0), f2=np.arange(0))


@pytest.mark.parametrize(
    'architecture, selection',
    [
        (network(), 'h'),
        (network(e=4), 'hakvf'),
        (UNEVEN, 'hakvf'),
        (DEEP, Selection(NO_BLOCKS, 0, 0, layers=(0, 2))),
        (DEEP, Selection(everything(DEEP), 0, 0, layers=(1,))),
    ],
    ids=['hidden', 'e<h', 'uneven', 'blocks and layers', 'one layer'],
)
def test_reconstruction_brings_the_cut_network_nearer(architecture, selection):
    whole = saved(architecture, 5)
    if isinstance(selection, str):
        selection = random_selection(architecture, 6, letters=selection)
    before, after = errors(whole, cut_by(whole, selection), selection)
    assert after < 0.9 * before


@pytest.mark.parametrize('untrained', [(), ('mlm', 'nsp')])
def test_mlm_head_is_fitted_if_it_is_trained(untrained):
    whole = dataclasses.replace(saved(network(), 5), progress=Progress(untrained=untrained or None))
    selection = random_selection(whole.architecture, 6, letters='h')
    smaller = cut_by(whole, selection)
    fitted = reconstruct(whole, smaller, selection, random_batches(whole.architecture, 6), workers=WORKERS)
    for name in ('decoder.0.weight', 'decoder.2.gamma'):
        same = np.array_equal(fitted.parameters[name], smaller.parameters[name])
        assert same == bool(untrained)


def test_reconstruction_refuses_a_selection_of_another_network():
    whole = saved(network(), 1)
    with pytest.raises(ValueError, match='selection does not lead'):
        errors(whole, whole, random_selection(whole.architecture, 1))


# the last has second moments of low rank and a large mean: single precision would make them indefinite
@pytest.mark.parametrize('architecture', [UNEVEN, network(e=4), network((2, 32, 32, 7), (1, 32, 2, 0), h=8)])
def test_rotation_leaves_the_function_as_it_is(architecture):
    whole = saved(architecture, 8)
    turned = rotated(whole, random_batches(architecture, 2), WORKERS)
    assert error_of(turned, whole, keep_all(architecture, ParameterCost())) < 1e-4
    name = 'encoder.transformer_cells.0.attention_cell.proj_value.weight'
    assert not np.allclose(whole.parameters[name], turned.parameters[name])


REPAIRS = {'rotate_heads': True, 'reconstruct': True, 'rounds': 1, 'target': 0.7}
FOLDERS = ('rotated', 'shrunk', 'reconstructed')


@pytest.fixture(scope='module')
def repaired_run(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted run of a round with both: its directory and what `prune` returned."""
    output = tmp_path_factory.mktemp('repaired') / 'run'
    return output, prune(recipe_for(shards_directory, model_directory, output, **REPAIRS))


def test_every_stage_of_a_round_is_a_model_directory(
    repaired_run, shards_directory, model_directory, tmp_path
):
    output, (_, row) = repaired_run
    place = output / 'round-1'
    files = {'alphas.npz', 'scores.npz', 'gates.json', 'selection.json', 'model'}
    assert set(os.listdir(place)) == {*FOLDERS, *files}
    shrunk, repaired = (read_model(place / name) for name in ('shrunk', 'reconstructed'))
    assert shrunk.architecture == repaired.architecture == row.architecture
    for part in ('ffn.ffn_2.weight', 'attention_cell.proj_key.weight', 'layer_norm.gamma'):
        name = f'encoder.transformer_cells.1.{part}'
        assert not np.array_equal(shrunk.parameters[name], repaired.parameters[name])
    page = (output / 'pruning.md').read_text()
    assert '| after the cut | reconstructed | recovered |' in page
    assert row.start == min(row.after_reconstruction, row.after_cut, key=lambda measured: measured.loss)
    assert (row.start == row.after_cut) == ('Round 1: the fit' in page)
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', **REPAIRS)
    asked = algorithm.room(PretrainingObjective(recipe, read_model(model_directory), WORKERS))
    written = sum(path.stat().st_size for path in output.rglob('model.params'))
    assert 0.5 * written < asked < written  # headers are not counted, nor heads that stay whole


def test_verify_proves_the_rotation_and_shows_every_stage(repaired_run):
    recipe = VerifyRecipe(run=repaired_run[0])
    (row,) = verify(recipe)
    assert 0 < row['rotation'] < 1e-5
    rows = stages(recipe)
    fitted = 'reconstructed' if repaired_run[1][1].started_from is None else LEFT_OUT
    assert [row['network'] for row in rows] == ['before', 'cut', fitted, 'recovered']
    before, cut, repaired, _ = rows
    assert before['error'] == 0 < repaired['error'] < cut['error']
    assert stages_table(rows).count('\n| ') == 1 + len(rows)
    scales = rows[0]['layer_norm_scales']
    largest = max(scales, key=lambda name: abs(np.log(scales[name])))
    assert len(scales) == 1 + 2 * 2
    assert described_stages(rows)[0].endswith(f'{scales[largest]:.2f} ({largest})')


def test_run_that_ends_behind_every_stage_resumes_to_the_same_bits(
    pruned, repaired_run, tmp_path, monkeypatch
):
    write = run.write_model

    def dies_afterwards(directory, *args, **more):
        write(directory, *args, **more)
        if directory.name in FOLDERS:
            raise Interrupted

    monkeypatch.setattr(run, 'write_model', dies_afterwards)
    for folder in FOLDERS:
        with pytest.raises(Interrupted):
            pruned(resume=True, **REPAIRS)
        assert (tmp_path / 'run' / 'round-1' / folder).is_dir()
    monkeypatch.undo()
    pruned(resume=True, **REPAIRS)
    assert results(tmp_path / 'run') == results(repaired_run[0])


@pytest.fixture
def spoilt(monkeypatch):
    """Every fit makes the network worse: it gets the embeddings of other tokens."""

    def spoil(whole, cut, *args, **more):
        name = 'word_embed.0.weight'
        return dataclasses.replace(cut, parameters={**cut.parameters, name: -3 * cut.parameters[name][::-1]})

    monkeypatch.setattr(algorithm, 'reconstruct', spoil)


ONE_ROUND = {'rounds': 1, 'reconstruct': True, 'warmup': 0.0}


def same_weights(output, one, other):
    one, other = (read_model(output / 'round-1' / name).parameters for name in (one, other))
    return all(np.array_equal(value, other[name]) for name, value in one.items())


def test_recovery_after_a_fit_that_harms_ends_no_worse_than_the_cut(spoilt, pruned, tmp_path):
    """Also where the run is interrupted behind the fit."""
    more = {**ONE_ROUND, 'learning_rate': 10.0}
    with interrupted_at(4, 'recovery'):  # there is a checkpoint after two steps
        pruned(**more)
    row = pruned(resume=True, **more)[1]
    assert row.after_reconstruction.loss > row.after_cut.loss == row.recovered.loss
    assert row.started_from == CUT and row.start == row.after_cut and row.kept_step == 0
    assert same_weights(tmp_path / 'run', 'shrunk', 'model')
    page = (tmp_path / 'run' / 'pruning.md').read_text()
    assert 'Round 1: the fit of the layers made the held-out MLM loss worse, so it was left out.' in page
    written = json.loads((tmp_path / 'run' / 'rounds.json').read_text())[1]
    assert Round.from_dict(written) == row
    names = [stage['network'] for stage in stages(VerifyRecipe(run=tmp_path / 'run'))]
    assert names == ['before', 'cut', LEFT_OUT, 'recovered']


def test_a_fit_that_harms_is_kept_where_held_out_data_choose_nothing(pruned, spoilt):
    more = {**ONE_ROUND, 'learning_rate': 1e-12, 'weight_decay': 0.0, 'keep_best': False}
    row = pruned(**more)[1]
    assert row.started_from is None and row.after_reconstruction.loss > row.after_cut.loss
    # the steps are far below what float32 resolves
    assert row.recovered.loss == pytest.approx(row.after_reconstruction.loss, rel=1e-5)


@pytest.mark.parametrize('heads', [True, False])
def test_the_states_decide_where_they_alone_are_learnt(spoilt, pruned, tmp_path, monkeypatch, heads):
    """The MLM loss of a network with heads would take the fit."""
    progress = Progress(untrained=None if heads else tuple(part for part in PARTS if part != 'pooler'))
    write_model(tmp_path / 'start', dataclasses.replace(saved_model(), progress=progress))
    evaluate, losses = PretrainingObjective.evaluate, [3.0, 3.0, 2.0, 2.0]

    def falling(self, saved):
        measured = evaluate(self, saved)
        return measured and dataclasses.replace(measured, mlm_loss=losses.pop(0))

    monkeypatch.setattr(PretrainingObjective, 'evaluate', falling)
    states = {'gate_teacher': True, 'teacher': 'parent', 'teacher_weights': 'labels=0,scores=0'}
    row = pruned(model=tmp_path / 'start', **ONE_ROUND, **states, learning_rate=10.0)[1]
    assert (row.after_cut is None) != heads and row.started_from == CUT and row.kept_step == 0
    assert same_weights(tmp_path / 'run', 'shrunk', 'model')
    page = (tmp_path / 'run' / 'pruning.md').read_text()
    assert 'the fit of the layers made the difference of the states worse' in page


def test_repairs_begin_where_the_gates_of_their_round_do(shards_directory, model_directory, tmp_path):
    read = {}
    for size in (32, 128):
        recipe = recipe_for(shards_directory, model_directory, tmp_path, batch_size=size)
        start = dataclasses.replace(read_model(model_directory), progress=Progress())  # nothing read before
        objective = PretrainingObjective(recipe, start, Workers())
        steps = 8 // (size // 32)
        read[size] = run.Run(objective, 2, None, (steps, steps), None).text(3000)
        assert all(len(batch.input_ids) == 32 for batch in read[size])
        assert sum(batch.token_total for batch in read[size][:-1]) < 3000
    assert [batch.index for batch in read[32]] == [16 + i for i in range(len(read[32]))]
    for one, other in zip(read[32], read[128]):
        assert np.array_equal(one.input_ids, other.input_ids)
    assert len(read[32]) == len(read[128])
    every = run.Run(objective, 1, None, (0, 0), None).text(10**9)  # one pass, and no text twice
    assert sum(batch.instance_total for batch in every[:-1]) < objective.instances()
    assert sum(batch.instance_total for batch in every) >= objective.instances()


def gradient_norm(saved):
    """Of the summed squares of the last states, towards all parameters of the encoder."""
    network = build(saved.architecture, saved.parameters, **OF_STATES)
    (batch,) = random_batches(saved.architecture, 1, seed=4)
    feed = feed_of(batch, TOKEN_INPUTS).values()
    with autograd.record():
        loss = (network(*feed)[0][-1] ** 3).sum()
    loss.backward()
    encoder = network.encoder.collect_params().values()
    gradients = [parameter.grad() for parameter in encoder if parameter.grad_req != 'null']
    return float(np.sqrt(sum((gradient**2).sum().asscalar() for gradient in gradients)))


def test_gradients_of_a_rotated_and_fitted_network_are_as_large_as_before():
    """Whitened values alone would leave most of the scale in P."""
    whole = saved(network((2, 3, 4, 16), (2, 3, 4, 16)), 1)
    for i in range(2):  # values that are small where they are read, as in a trained network
        name = f'encoder.transformer_cells.{i}.attention_cell.proj_value.weight'
        whole.parameters[name] = whole.parameters[name] * np.float32(0.05)
    turned = rotated(whole, random_batches(whole.architecture, 6), WORKERS)
    everything = keep_all(whole.architecture, ParameterCost())
    fitted = reconstruct(whole, turned, everything, random_batches(whole.architecture, 6), workers=WORKERS)
    before = gradient_norm(whole)
    assert before / 2 < gradient_norm(turned) < 2 * before
    assert before / 2 < gradient_norm(fitted) < 2 * before
