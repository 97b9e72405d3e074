"""Pruning against the states of the network before: gates and recovery that need no heads of pre-training."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.pruned import recipe_for, results
from helpers.tiny import network, saved_model

from gluon_optbert.architecture.parameters import PARTS
from gluon_optbert.deployment.verify import VerifyRecipe, stages, verify
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.embeddings import compare
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.training import loop

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


def records(directory, phase):
    lines = map(json.loads, (directory / 'metrics.jsonl').read_text().splitlines())
    return [record for record in lines if record['phase'] == phase]


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


def test_recovery_from_states_brings_them_nearer(shards_directory, encoder, tmp_path):
    more = {**STATES_ALONE, 'recovery_steps': 60, 'learning_rate': 3e-3, 'targets': (0.7,), 'dropout': 0.0}
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **more))
    differences = [
        record['state_difference']
        for record in records(tmp_path / 'run', 'recovery')
        if 'state_difference' in record
    ]
    assert differences[-1] < 0.9 * differences[0]


def test_embeddings_can_be_learnt_alone(shards_directory, encoder, tmp_path):
    more = {**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,states=0,embeddings=1', 'targets': (0.7,)}
    more.update(recovery_steps=30, learning_rate=3e-3, dropout=0.0)
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **more))
    kept = read_model(tmp_path / 'run' / 'round-1' / 'model').progress
    assert kept.kept_step != 0 and kept.state_difference > 0


def test_cosines_can_be_learnt_alone(shards_directory, encoder, tmp_path):
    more = {**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,states=0,cosines=1', 'targets': (0.7,)}
    more.update(recovery_steps=60, learning_rate=3e-3, dropout=0.0, reconstruct=False)
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **more))
    record = json.loads((tmp_path / 'run' / 'round-1' / 'embeddings.json').read_text())
    assert record['recovered']['cosine'] > record['cut']['cosine']


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
    class Killed(Exception):
        """Stands for whatever ends a process."""

    step, moments = loop._step, []

    def dies(*args):
        moments.append(args)
        if len(moments) == 6:
            raise Killed
        return step(*args)

    monkeypatch.setattr(loop, '_step', dies)
    with pytest.raises(Killed):
        prune(recipe_for(shards_directory, encoder, tmp_path / 'run', **EMBEDDINGS))
    monkeypatch.undo()
    prune(recipe_for(shards_directory, encoder, tmp_path / 'run', resume=True, **EMBEDDINGS))
    assert results(tmp_path / 'run') == results(headless_run[0])


def test_an_encoder_without_heads_is_refused_where_they_are_needed(shards_directory, encoder, tmp_path):
    with pytest.raises(ValueError, match='--gate-teacher --teacher parent'):
        prune(recipe_for(shards_directory, encoder, tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'gate_teacher': True, 'method': 'random'}, 'gate_teacher is about trained gates'),
        ({'teacher_weights': 'embeddings=1'}, 'teacher_weights goes with --teacher'),
        ({**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,states=0'}, 'all weights of recovery are 0'),
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
    assert compare(before, after, units)['cosine'] == pytest.approx(1)
    assert compare(before, before, np.arange(6))['pair_similarity'] == pytest.approx(1)
    assert compare(before, -before[:, ::-1], np.arange(6))['cosine'] < 0.9
