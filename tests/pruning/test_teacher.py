"""Learning from a teacher: its scores and states, or its states alone, which needs no heads."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.pruned import Interrupted, interrupted_at, recipe_for, results
from helpers.tiny import contents, network, saved_model, write_saved_model, write_shards

from gluon_optbert.architecture.parameters import PARTS, WORDS
from gluon_optbert.deployment.verify import VerifyRecipe, stages, verify
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.objectives import compare_embeddings
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill


def records(directory, phase):
    lines = map(json.loads, (directory / 'metrics.jsonl').read_text().splitlines())
    return [record for record in lines if record['phase'] == phase]


def recoveries(directory):
    return [record for record in records(directory, 'recovery') if 'mlm' in record]


@pytest.fixture(scope='module')
def taught_run(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted run of two rounds that the network that went in teaches."""
    output = tmp_path_factory.mktemp('taught') / 'run'
    prune(recipe_for(shards_directory, model_directory, output, teacher='parent'))
    return output


def test_recovery_reports_what_it_learns_from_the_teacher(taught_run, pruned_run):
    for record in recoveries(taught_run):
        assert record['scores'] > 0 and record['states'] > 0
    assert all('states' not in record for record in recoveries(pruned_run[0]))
    assert results(taught_run) != results(pruned_run[0])


def test_a_ranking_serves_a_recovery_with_a_teacher(pruned, pruned_run, tmp_path):
    more = {'ranking': str(pruned_run[0]), 'teacher': 'parent', 'teacher_weights': 'states=2'}
    pruned(**more)
    one, other = (contents(run / 'round-1')['selection.json'] for run in (tmp_path / 'run', pruned_run[0]))
    assert one == other


def test_teacher_without_weight_changes_no_more_than_rounding(pruned, pruned_run, tmp_path):
    silent = {'teacher': 'parent', 'teacher_weights': 'scores=0,states=0'}
    pruned(**silent)
    for number in (1, 2):
        silent_run, plain = (
            read_model(place / f'round-{number}' / 'model') for place in (tmp_path / 'run', pruned_run[0])
        )
        for name, value in plain.parameters.items():  # sums run in another order; Adam divides small ones
            np.testing.assert_allclose(silent_run.parameters[name], value, atol=1e-4, err_msg=name)


def test_taught_run_resumes_to_the_same_bits(pruned, taught_run, tmp_path, monkeypatch):
    interrupted_at(monkeypatch, 4, 'recovery')  # behind the checkpoint in the first recovery
    with pytest.raises(Interrupted):
        pruned(teacher='parent')
    monkeypatch.undo()
    assert list((tmp_path / 'run' / 'round-1' / 'recovery-states').iterdir())
    pruned(teacher='parent', resume=True)
    assert results(tmp_path / 'run') == results(taught_run)


@pytest.mark.parametrize('teacher', [None, 'parent'])
def test_network_that_was_trained_without_pairs_is_pruned_without_them(tmp_path, teacher):
    shards = write_shards(tmp_path / 'shards', pairs=False)
    start = write_saved_model(tmp_path / 'start', progress={'step': 1000, 'untrained': ['pooler', 'nsp']})
    recipe = recipe_for(shards, start, tmp_path / 'run', teacher=teacher, rounds=1)
    last = prune(recipe)[-1]
    assert last.recovered.mlm_loss > 0 and last.recovered.nsp_loss is None
    losses = [one for phase in ('gates', 'recovery') for one in records(recipe.output, phase)]
    assert any('mlm' in one for one in losses) and not any('nsp' in one for one in losses)
    assert read_model(recipe.output / 'round-1' / 'model').progress.untrained == ('pooler', 'nsp')
    paired = recipe.replace(shards=write_shards(tmp_path / 'pairs'), output=tmp_path / 'paired', labels='mlm')
    with pytest.raises(ValueError, match='no trained pooler and no trained NSP head'):
        prune(paired)


def test_teacher_with_untrained_heads_teaches_its_states(shards_directory, model_directory, tmp_path):
    teacher = write_saved_model(tmp_path / 'teacher', seed=3, progress={'untrained': ['mlm', 'nsp']})
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', teacher=str(teacher), rounds=1)
    with pytest.raises(ValueError, match='lacks a trained MLM head.* --teacher-weights scores=0'):
        prune(recipe)
    assert not recipe.output.exists()
    prune(recipe.replace(teacher_weights='scores=0'))
    for record in recoveries(recipe.output):
        assert record['states'] > 0 and 'scores' not in record


def test_teacher_that_cannot_teach_is_refused_and_nothing_is_written(
    shards_directory, model_directory, tmp_path
):
    write_saved_model(tmp_path / 'wide', architecture=network(h=12))
    for teacher, problem in (('wide', 'teacher has h = 12'), ('none', 'none')):
        recipe = recipe_for(
            shards_directory, model_directory, tmp_path / 'run', teacher=str(tmp_path / teacher)
        )
        with pytest.raises((ValueError, FileNotFoundError), match=problem):
            prune(recipe)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('kind, without', [(PruneRecipe, {}), (TaskPruneRecipe, {'teacher': 'none'})])
@pytest.mark.parametrize('name, value', [('teacher_weights', {'labels': 0.5}), ('temperature', 7.0)])
def test_what_only_a_teacher_would_read_is_refused_without_one(kind, without, name, value):
    values = {'model': 'm', 'output': 'o', name: value}
    values.update({'shards': 's'} if kind is PruneRecipe else {})
    with pytest.raises(RecipeError, match=f'^{name} goes with --teacher$'):
        fill(kind, {**values, **without})
    assert not fill(kind, {**values, 'teacher': 'parent'}).is_default(name)
    fill(kind, {**values, **without, name: kind.model_fields[name].default})


STATES_ALONE = {
    'gate_teacher': True,
    'teacher': 'parent',
    'teacher_weights': 'labels=0,scores=0',
    'evaluate_every': 2,
    'checkpoint_every': 2,
}
EMBEDDINGS = {**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,embeddings=1,cosines=0.5'}


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
    """A model directory as an import leaves it that had no heads."""
    directory = tmp_path_factory.mktemp('encoder') / 'encoder'
    progress = Progress(untrained=tuple(part for part in PARTS if part != 'pooler'))
    write_model(directory, dataclasses.replace(saved_model(network()), progress=progress))
    return directory


@pytest.fixture(scope='module')
def headless_run(shards_directory, encoder, tmp_path_factory):
    output = tmp_path_factory.mktemp('headless') / 'run'
    return output, prune(recipe_for(shards_directory, encoder, output, **EMBEDDINGS))


def test_an_encoder_without_heads_is_pruned_on_its_states(headless_run):
    output, rounds = headless_run
    assert rounds[2].parameters < rounds[1].parameters < rounds[0].parameters
    assert all('mlm' not in record for record in records(output, 'gates') + records(output, 'recovery'))
    gates, recovery = (records(output, phase) for phase in ('gates', 'recovery'))
    assert any(record['states'] > 0 for record in gates)
    for part in ('embeddings', 'cosine_distance'):
        assert any(record.get(part, 0) > 0 for record in recovery)
    # random heads have no losses to report
    assert rounds[1].recovered is None and rounds[1].after_cut is None
    kept = [row.state_difference for row in rounds]
    assert (
        kept[0] is None and min(kept[1:]) > 0 and f'| {kept[2]:.3f} |' in (output / 'pruning.md').read_text()
    )
    assert json.loads((output / 'rounds.json').read_text())[2]['state_difference'] == kept[2]
    for stage in ('shrunk', 'model'):
        untrained = read_model(output / 'round-2' / stage).progress.untrained
        assert set(untrained) == {part for part in PARTS if part != 'pooler'}


def test_the_embeddings_are_reported_after_cut_and_recovery(headless_run):
    output, _ = headless_run
    record = json.loads((output / 'round-1' / 'embeddings.json').read_text())
    assert set(record) == {'round', 'instances', 'cut', 'recovered'}  # nothing was reconstructed
    for name in ('cut', 'recovered'):
        assert 0 < record[name]['cosine'] <= 1 and -1 <= record[name]['pair_similarity'] <= 1
    page = (output / 'pruning.md').read_text()
    assert '## Embeddings' in page and f'{record["recovered"]["cosine"]:.3f}' in page


def test_a_run_without_heads_is_verified(headless_run):
    recipe = VerifyRecipe(run=headless_run[0], batches=1)
    rows = verify(recipe)
    assert len(rows) == 2 and all(row['export'] < 1e-5 for row in rows)
    networks = stages(recipe)  # random heads have no losses to report
    assert len(networks) == 6 and not any('mlm_loss' in row for row in networks)


@pytest.mark.parametrize('weight', ['states', 'embeddings', 'cosines'])
def test_each_part_brings_the_states_nearer_alone(shards_directory, encoder, tmp_path, weight):
    alone = {'labels': 0, 'scores': 0, 'states': 0, weight: 1}
    more = {**STATES_ALONE, 'teacher_weights': alone, 'targets': (0.7,)}
    more.update(recovery_steps=30, learning_rate=3e-3, dropout=0.0)
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **more))
    recovery = records(tmp_path / 'run', 'recovery')
    differences = [record['state_difference'] for record in recovery if 'state_difference' in record]
    assert min(differences) < (0.95 if weight == 'states' else 1) * differences[0]
    kept = read_model(tmp_path / 'run' / 'round-1' / 'model').progress
    assert kept.kept_step != 0 and kept.state_difference == min(differences)
    embeddings = json.loads((tmp_path / 'run' / 'round-1' / 'embeddings.json').read_text())
    if weight == 'cosines':
        assert embeddings['recovered']['cosine'] > embeddings['cut']['cosine']


def test_the_heads_are_left_alone_where_states_alone_are_learnt(shards_directory, model_directory, tmp_path):
    output = tmp_path / 'run'
    rows = prune(recipe_for(shards_directory, model_directory, output, targets=(0.8,), **STATES_ALONE))
    cut, model = (read_model(output / 'round-1' / name).parameters for name in ('shrunk', 'model'))
    assert np.array_equal(cut['decoder.0.weight'], model['decoder.0.weight'])
    assert not np.array_equal(cut['word_embed.0.weight'], model['word_embed.0.weight'])
    assert rows[1].recovered is not None  # its heads are trained, so their losses are reported


def test_a_run_on_states_resumes_to_the_same_bits(
    headless_run, shards_directory, encoder, tmp_path, monkeypatch
):
    interrupted_at(monkeypatch, 6)
    with pytest.raises(Interrupted):
        prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **EMBEDDINGS))
    monkeypatch.undo()
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', resume=True, **EMBEDDINGS))
    assert results(tmp_path / 'run') == results(headless_run[0])


def test_an_encoder_without_heads_is_refused_where_they_are_needed(shards_directory, encoder, tmp_path):
    with pytest.raises(ValueError, match='--labels none'):
        prune(recipe_for(shards_directory, encoder, tmp_path / 'run', labels='mlm'))
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('method', ['alpha', 'fisher'])
def test_an_encoder_without_heads_is_pruned_without_labels_by_default(
    shards_directory, encoder, tmp_path, method
):
    more = {'method': method, 'targets': (0.8,), 'prune': 'akvf', 'precision': 'float32'}
    made = []
    for name, labels in (('default', None), ('none', 'none')):
        prune(recipe_for(shards_directory, encoder, tmp_path / name, labels=labels, **more))
        made.append(contents(tmp_path / name / 'round-1' / 'model')['model.params'])
        recovery = records(tmp_path / name, 'recovery')[0]
        assert {'last', 'embeddings', 'cosine_distance'} <= set(recovery) and 'mlm' not in recovery
    assert made[0] == made[1]
    words = [read_model(tmp_path / 'none' / f'round-{i}' / 'model').parameters[WORDS] for i in (0, 1)]
    assert np.array_equal(*words)  # h stayed whole


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'gate_teacher': True, 'method': 'random'}, 'gate_teacher is about trained gates'),
        ({'teacher_weights': 'embeddings=1'}, 'teacher_weights goes with --teacher'),
        ({**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,states=0'}, 'all teacher_weights are 0'),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        fill(PruneRecipe, {'model': 'm', 'shards': 's', 'output': 'o', **changes})


def test_passes_of_one_sentence_are_refused_before_anything_is_written(shards_directory, encoder, tmp_path):
    with pytest.raises(ValueError, match='one sentence in a pass'):
        prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **{**EMBEDDINGS, 'accumulate': 8}))
    assert not (tmp_path / 'run').exists()


def test_embeddings_are_compared_on_the_units_that_stayed():
    before = np.random.RandomState(0).normal(size=(9, 6))
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    units = np.array([0, 2, 3, 5])
    after = before[:, units] / np.linalg.norm(before[:, units], axis=1, keepdims=True)
    assert compare_embeddings(before, after, units)['cosine'] == pytest.approx(1)
    assert compare_embeddings(before, before, np.arange(6))['pair_similarity'] == pytest.approx(1)
    assert compare_embeddings(before, -before[:, ::-1], np.arange(6))['cosine'] < 0.9
