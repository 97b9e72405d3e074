"""Learning from a teacher: its scores and states, or its states alone, which needs no heads."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.pruned import interrupted_at, recipe_for, results
from helpers.tiny import network, records, saved_model, write_saved_model, write_shards

from gluon_optbert.architecture.parameters import PARTS, WORDS
from gluon_optbert.deployment.verify import VerifyRecipe, stages, verify
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.ranking import check_ranking
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill


def of_phase(directory, phase):
    return [record for record in records(directory) if record['phase'] == phase]


def test_teacher_without_weight_changes_no_more_than_rounding(pruned, pruned_run, tmp_path):
    silent = {'teacher': 'parent', 'teacher_weights': 'scores=0,states=0'}
    pruned(targets=[0.8], **silent)
    silent_run, plain = (
        read_model(place / 'round-1' / 'model') for place in (tmp_path / 'run', pruned_run[0])
    )
    for name, value in plain.parameters.items():  # sums run in another order; Adam divides small ones
        np.testing.assert_allclose(silent_run.parameters[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize('teacher', [None, 'parent'])
def test_network_that_was_trained_without_pairs_is_pruned_without_them(tmp_path, teacher):
    shards = write_shards(tmp_path / 'shards', pairs=False)
    start = write_saved_model(tmp_path / 'start', progress={'step': 1000, 'untrained': ['pooler', 'nsp']})
    recipe = recipe_for(shards, start, tmp_path / 'run', teacher=teacher, rounds=1)
    last = prune(recipe)[-1]
    assert last.recovered.mlm_loss > 0 and last.recovered.nsp_loss is None
    losses = [one for phase in ('gates', 'recovery') for one in of_phase(recipe.output, phase)]
    assert any('mlm' in one for one in losses) and not any('nsp' in one for one in losses)
    for name in ('scores', 'states'):
        assert any(one.get(name, 0) > 0 for one in losses) == (teacher is not None)
    assert read_model(recipe.output / 'round-1' / 'model').progress.untrained == ('pooler', 'nsp')
    paired = recipe.replace(shards=write_shards(tmp_path / 'pairs'), output=tmp_path / 'paired', labels='mlm')
    with pytest.raises(ValueError, match='no trained pooler and no trained NSP head'):
        prune(paired)


def test_teacher_with_untrained_heads_teaches_its_states(shards_directory, model_directory, tmp_path):
    teacher = write_saved_model(tmp_path / 'teacher', seed=3, progress={'untrained': ['mlm', 'nsp']})
    more = {'teacher': str(teacher), 'rounds': 1}
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', **more)
    with pytest.raises(ValueError, match='lacks a trained MLM head.* --teacher-weights scores=0'):
        prune(recipe)
    assert not recipe.output.exists()
    prune(recipe.replace(teacher_weights='scores=0'))
    for record in of_phase(recipe.output, 'recovery'):
        assert 'mlm' not in record or (record['states'] > 0 and 'scores' not in record)


def test_teacher_that_cannot_teach_is_refused_and_nothing_is_written(pruned, tmp_path):
    write_saved_model(tmp_path / 'wide', architecture=network(h=12))
    for teacher, problem in (('wide', 'teacher has h = 12'), ('none', 'none')):
        with pytest.raises((ValueError, FileNotFoundError), match=problem):
            pruned(teacher=str(tmp_path / teacher))
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('kind, without', [(PruneRecipe, {}), (TaskPruneRecipe, {'teacher': 'none'})])
def test_what_only_a_teacher_would_read_is_refused_without_one(kind, without):
    values = {'model': 'm', 'output': 'o', **({'shards': 's'} if kind is PruneRecipe else {})}
    for name, value in (('teacher_weights', {'labels': 0.5}), ('temperature', 7.0)):
        with pytest.raises(RecipeError, match=f'^{name} goes with --teacher$'):
            fill(kind, {**values, **without, name: value})
        assert not fill(kind, {**values, 'teacher': 'parent', name: value}).is_default(name)
    unread = {'teacher': 'parent', 'teacher_weights': 'scores=0', 'temperature': 7.0}
    with pytest.raises(RecipeError, match='^temperature is about scores, whose weight is 0'):
        fill(kind, {**values, **unread})


STATES_ALONE = {
    'gate_teacher': True,
    'teacher': 'parent',
    'teacher_weights': 'labels=0,scores=0',
    'evaluate_every': 2,
    'checkpoint_every': 2,
}
EMBEDDINGS = {**STATES_ALONE, 'teacher_weights': 'labels=0,scores=0,embeddings=1,cosines=0.5', 'rounds': 1}


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
    """Its random heads have no losses to report, and its embeddings are compared instead."""
    output, rounds = headless_run
    assert rounds[1].parameters < rounds[0].parameters
    gates, recovery = (of_phase(output, phase) for phase in ('gates', 'recovery'))
    assert all('mlm' not in record for record in gates + recovery)
    assert any(record['states'] > 0 for record in gates)
    for part in ('embeddings', 'cosine_distance'):
        assert any(record.get(part, 0) > 0 for record in recovery)
    assert rounds[1].recovered is None and rounds[1].after_cut is None
    kept, page = [row.state_difference for row in rounds], (output / 'pruning.md').read_text()
    assert kept[0] is None and kept[1] > 0 and f'| {kept[1]:.3f} |' in page
    assert 'encoder.\n' in page and 'nats' not in page  # no losses were measured
    for stage in ('shrunk', 'model'):
        untrained = read_model(output / 'round-1' / stage).progress.untrained
        assert set(untrained) == {part for part in PARTS if part != 'pooler'}
    record = json.loads((output / 'round-1' / 'embeddings.json').read_text())
    assert set(record) == {'round', 'instances', 'cut', 'recovered'}  # nothing was reconstructed
    for name in ('cut', 'recovered'):
        assert 0 < record[name]['cosine'] <= 1 and -1 <= record[name]['pair_similarity'] <= 1
    assert '## Embeddings' in page and f'{record["recovered"]["cosine"]:.3f}' in page
    recipe = VerifyRecipe(run=output, batches=1)
    rows, networks = verify(recipe), stages(recipe)
    assert len(rows) == 1 and all(row['export'] < 1e-5 for row in rows)
    assert len(networks) == 3 and not any('mlm_loss' in row for row in networks)


def test_recovery_brings_states_and_embeddings_nearer(pruned, encoder, tmp_path):
    weights = {'labels': 0, 'scores': 0, 'states': 1, 'cosines': 1}
    more = {**STATES_ALONE, 'teacher_weights': weights, 'targets': (0.7,)}
    more.update(recovery_steps=30, learning_rate=3e-3, dropout=0.0)
    pruned(model=encoder, **more)
    recovery = of_phase(tmp_path / 'run', 'recovery')
    differences = [record['state_difference'] for record in recovery if 'state_difference' in record]
    assert min(differences) < 0.95 * differences[0]
    kept = read_model(tmp_path / 'run' / 'round-1' / 'model').progress
    assert kept.kept_step != 0 and kept.state_difference == min(differences)
    embeddings = json.loads((tmp_path / 'run' / 'round-1' / 'embeddings.json').read_text())
    assert embeddings['recovered']['cosine'] > embeddings['cut']['cosine']


def test_the_heads_are_left_alone_where_states_alone_are_learnt(pruned, tmp_path):
    rows = pruned(targets=(0.8,), **STATES_ALONE)
    cut, model = (read_model(tmp_path / 'run/round-1' / name).parameters for name in ('shrunk', 'model'))
    assert np.array_equal(cut['decoder.0.weight'], model['decoder.0.weight'])
    assert not np.array_equal(cut['word_embed.0.weight'], model['word_embed.0.weight'])
    assert rows[1].recovered is not None  # its heads are trained, so their losses are reported


def test_a_run_on_states_resumes_to_the_same_bits(headless_run, pruned, encoder, tmp_path):
    with interrupted_at(6):
        pruned(model=encoder, **EMBEDDINGS)
    pruned(model=encoder, resume=True, **EMBEDDINGS)
    assert results(tmp_path / 'run') == results(headless_run[0])


def test_an_encoder_without_heads_is_pruned_without_labels_by_default(shards_directory, encoder, tmp_path):
    more = {'method': 'fisher', 'targets': (0.8,), 'prune': 'akvf', 'precision': 'float32'}
    recipe = recipe_for(shards_directory, encoder, tmp_path / 'run', **more)
    assert recipe.decided(read_model(encoder)) == recipe.replace(labels='none')
    prune(recipe)
    recovery = of_phase(recipe.output, 'recovery')[0]
    assert {'last', 'embeddings', 'cosine_distance'} <= set(recovery) and 'mlm' not in recovery
    words = [read_model(recipe.output / f'round-{i}' / 'model').parameters[WORDS] for i in (0, 1)]
    assert np.array_equal(*words)  # h stayed whole


def test_gates_that_have_no_labels_by_default_rank_by_their_teacher(shards_directory, encoder, tmp_path):
    recipe = recipe_for(shards_directory, encoder, tmp_path / 'run', targets=(0.8,), alpha_steps=1)
    prune(recipe.replace(recovery_steps=1))
    taken = recipe.replace(ranking=recipe.output)
    check_ranking(taken, read_model(encoder))
    with pytest.raises(ValueError, match='other settings of teacher'):
        check_ranking(taken.replace(teacher='other'), read_model(encoder))


def test_passes_of_one_sentence_are_refused_before_anything_is_written(pruned, encoder, tmp_path):
    with pytest.raises(ValueError, match='one sentence in a pass'):
        pruned(model=encoder, **EMBEDDINGS, accumulate=8)
    assert not (tmp_path / 'run').exists()
