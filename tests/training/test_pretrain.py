"""Pre-training runs: what they write, what they refuse, and that they go on after an interruption."""

import dataclasses
import os

import numpy as np
import pytest
from helpers.exported import with_head
from helpers.pretrained import recipe_for
from helpers.processor import needs_bfloat16
from helpers.pruned import MODEL, interrupted_at
from helpers.tiny import (
    Interrupted,
    contents,
    network,
    random_alphas,
    records,
    saved_model,
    write_saved_model,
    write_shards,
)

from gluon_optbert.architecture.heads import Head
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.runs.run_directory import work_directory
from gluon_optbert.text.batches import stream
from gluon_optbert.training import pretrain as pretraining
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import TrainingDiverged
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.recipe import PretrainRecipe


@pytest.fixture(scope='module')
def finished(shards_directory, tmp_path_factory):
    """An uninterrupted run: the model directory and what `pretrain` returned."""
    output = tmp_path_factory.mktemp('pretrained') / 'model'
    return output, pretrain(recipe_for(shards_directory, output))


@pytest.fixture
def pretrained(shards_directory, tmp_path):
    """Pre-trains into a directory of its own, with other settings."""
    return lambda name='model', **more: pretrain(recipe_for(shards_directory, tmp_path / name, **more))


def test_run_leaves_a_model_directory_with_its_metrics_and_nothing_beside_it(finished):
    output, measured = finished
    assert os.listdir(output.parent) == ['model']
    assert {*os.listdir(output)} == {*MODEL, 'metrics.jsonl', 'origin.json'}
    saved = read_model(output)
    assert saved.architecture == network() and saved.progress == measured and measured.step == 6
    assert fill(PretrainRecipe, saved.recipe).steps == 6
    assert measured.held_out.instances == 16 and measured.best_mlm_loss <= measured.mlm_loss
    lines = records(output)
    assert [record['step'] for record in lines if 'mlm' in record] == [2, 4, 6]
    assert [record['step'] for record in lines if 'mlm_loss' in record] == [3, 6]
    assert all(record['phase'] == 'pretraining' for record in lines)


@needs_bfloat16
def test_a_run_in_bfloat16_leaves_float32_parameters_near_those_of_one_in_float32(
    pretrained, finished, tmp_path
):
    measured = pretrained(precision='bfloat16')
    resumed, wanted = (read_model(path).parameters for path in (tmp_path / 'model', finished[0]))
    assert {value.dtype for value in resumed.values()} == {np.dtype(np.float32)}
    assert any((value != wanted[name]).any() for name, value in resumed.items())
    # after six steps, rounded to eight bits
    assert measured.mlm_loss == pytest.approx(finished[1].mlm_loss, rel=0.02)


def test_without_pairs_the_heads_of_next_sentence_prediction_are_left_as_they_are(finished, tmp_path):
    """They have no loss, and weight decay would change them all the same."""
    shards = write_shards(tmp_path / 'shards', pairs=False)
    start = read_model(finished[0])
    pretrain(recipe_for(shards, tmp_path / 'on', model=str(finished[0]), weight_decay=0.5))
    on = read_model(tmp_path / 'on')
    table = parameter_table(start.architecture)
    for name, value in on.parameters.items():
        same = (value == start.parameters[name]).all()
        assert same == (table[name].part in ('pooler', 'nsp')) or not value.any(), name
    assert not on.progress.untrained and on.progress.held_out.nsp_loss is None
    assert not any(name.startswith('nsp') for record in records(tmp_path / 'on') for name in record)
    measured = pretrain(recipe_for(shards, tmp_path / 'new', steps=1))
    assert measured.untrained == ('pooler', 'nsp') and measured.held_out.nsp_accuracy is None
    again = pretrain(recipe_for(shards, tmp_path / 'more', model=str(tmp_path / 'new'), steps=1))
    assert again.untrained == ('pooler', 'nsp')
    with pytest.raises(ValueError, match='shards without pairs do not train its pooler and NSP head'):
        pretrain(recipe_for(shards, tmp_path / 'heads', model=str(tmp_path / 'new'), train='heads'))
    with_pairs = write_shards(tmp_path / 'pairs')
    whole = recipe_for(with_pairs, tmp_path / 'all', model=str(tmp_path / 'new'), steps=1)
    assert pretrain(whole).untrained is None


def test_a_network_of_one_token_type_is_trained_without_pairs_alone(tmp_path):
    one = dataclasses.replace(network(), token_types=1)
    shards = {pairs: write_shards(tmp_path / f'shards{pairs}', pairs=pairs) for pairs in (True, False)}
    with pytest.raises(ValueError, match='one token type; make shards with --next-sentence false'):
        pretrain(recipe_for(shards[True], tmp_path / 'model', architecture=one.to_json()))
    recipe = recipe_for(shards[False], tmp_path / 'model', architecture=one.to_json(), steps=1)
    assert pretrain(recipe).step == 1


@pytest.fixture
def begun(monkeypatch):
    """Where in the order of the batches phases begin: a list that runs fill."""
    begun = []

    def recorded(shards, *, start, **settings):
        begun.append(start)
        return stream(shards, start=start, **settings)

    monkeypatch.setattr(pretraining, 'stream', recorded)
    return begun


def test_training_goes_on_after_the_steps_and_the_batches_of_earlier_phases(
    pretrained, finished, tmp_path, begun
):
    measured = pretrained('second', model=str(finished[0]), steps=1)
    assert (measured.step, measured.earlier_steps) == (1, 6)
    assert pretrained('third', model=str(tmp_path / 'second'), steps=1).earlier_steps == 7
    start = write_saved_model(tmp_path / 'start', progress={'head_steps': 5, 'earlier_steps': 9})
    pretrained('fourth', model=str(start), steps=1)
    pretrained('fifth', model=str(tmp_path / 'fourth'), steps=1)
    assert begun == [6, 7, 14, 15]


def test_weights_are_decayed_that_the_parameter_table_names(shards_directory, tmp_path):
    model = build(network())
    optimizer = recipe_for(shards_directory, tmp_path / 'model').weight_optimizer(model, Workers())
    assert {name: parameter.wd_mult for name, parameter in optimizer.parameters.items()} == {
        name: float(spec.decayed) for name, spec in parameter_table(network()).items()
    }


def test_optimizer_and_schedule_are_those_of_the_recipe(shards_directory, tmp_path):
    more = {'beta2': 0.98, 'weight_decay': 0.3, 'clip_norm': 2.0, 'learning_rate': 0.4, 'warmup': 0.5}
    recipe = recipe_for(shards_directory, tmp_path / 'model', **more)
    optimizer = recipe.weight_optimizer(build(network()), Workers())
    made = optimizer._trainer._optimizer
    assert (made.beta2, made.wd, optimizer._clip_norm) == (0.98, 0.3, 2.0)
    assert [recipe.schedule(4)(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.4, 0.2])


@pytest.mark.parametrize('parts', [('mlm', 'nsp'), ('mlm',), ('pooler', 'nsp')])
def test_heads_are_trained_with_everything_else_frozen(pretrained, tmp_path, parts):
    """After a recovery of 1,000 steps, of which the tenth was kept; in a network that was cut."""
    progress = {'step': 1000, 'kept_step': 10, 'earlier_steps': 50}
    progress.update(head_steps=2, untrained=list(parts))
    architecture = network((1, 2, 3, 4), (2, 1, 1, 0), h=6)
    start = write_saved_model(tmp_path / 'start', architecture=architecture, progress=progress)
    measured = pretrained(model=str(start), train='heads', steps=3)
    before, after = read_model(start).parameters, read_model(tmp_path / 'model')
    changed = {name for name, value in before.items() if not np.array_equal(value, after.parameters[name])}
    assert after.architecture == architecture
    table = parameter_table(after.architecture)
    assert changed == {name for name in before if table[name].part in parts}
    assert after.progress == measured and measured.untrained is None
    assert (measured.head_steps, measured.trained_steps) == (2 + 3, 60)  # the former are none of pre-training


def test_resumed_run_equals_the_uninterrupted_one(finished, shards_directory, tmp_path):
    output = tmp_path / 'model'
    with interrupted_at(5):
        pretrain(recipe_for(shards_directory, output))
    assert not output.exists()
    with pytest.raises(FileExistsError, match='--resume'):
        pretrain(recipe_for(shards_directory, output))
    with pytest.raises(ValueError, match='other settings of learning_rate .*, steps'):
        pretrain(recipe_for(shards_directory, output, resume=True, steps=7, learning_rate=1.0))
    assert pretrain(recipe_for(shards_directory, output, resume=True)) == finished[1]
    assert contents(output)['model.params'] == contents(finished[0])['model.params']
    assert records(output) == records(finished[0])
    assert os.listdir(tmp_path) == ['model']


def test_run_that_ended_before_it_cleared_up_resumes_to_nothing_to_do(
    finished, shards_directory, tmp_path, monkeypatch
):
    output = tmp_path / 'model'

    def killed(path, *_, **__):
        if str(path).endswith('.training'):
            raise Interrupted

    monkeypatch.setattr(pretraining.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        pretrain(recipe_for(shards_directory, output))
    monkeypatch.undo()
    before = contents(output)
    assert work_directory(output).exists()
    assert pretrain(recipe_for(shards_directory, output, resume=True)) == finished[1]
    assert contents(output) == before and os.listdir(tmp_path) == ['model']


def test_finished_run_resumes_to_nothing_to_do_and_resume_of_nothing_begins(
    pretrained, finished, shards_directory
):
    before = contents(finished[0].parent)
    assert pretrain(recipe_for(shards_directory, finished[0], resume=True)) == finished[1]
    with pytest.raises(ValueError, match='other settings of steps'):
        pretrain(recipe_for(shards_directory, finished[0], resume=True, steps=7))
    assert contents(finished[0].parent) == before
    assert pretrained(resume=True) == finished[1]


HEAD = Head('classification', ('no', 'yes'), 'RTE')


@pytest.mark.parametrize(
    'change, error, named',
    [
        ({'shards': 'nowhere'}, FileNotFoundError, 'nowhere'),
        ({'architecture': network(vocab_size=9).to_json()}, ValueError, "the shards' vocabulary 32"),
        ({'architecture': network(max_length=15).to_json()}, ValueError, 'the architecture has 15 positions'),
        ({'model': 'nowhere'}, FileNotFoundError, 'nowhere'),
        ({'model': with_head(network(), HEAD)}, ValueError, 'start has the head of RTE'),
        ({'model': saved_model(alphas=random_alphas(network()))}, ValueError, 'start still has its gates'),
        ({'model': saved_model(), 'train': 'heads'}, ValueError, 'no untrained pooler, MLM head, NSP head'),
        ({'train': 'heads'}, RecipeError, 'train heads goes with model'),
        ({'batch_size': 9, 'accumulate': 2}, ValueError, 'batch_size 9 does not divide'),
        ({'batch_size': 2**50}, ValueError, r'a global batch of [\d,]+ instances takes at least'),
        (
            {'steps': 50, 'learning_rate': 1e30, 'clip_norm': 1e30, 'warmup': 0},
            TrainingDiverged,
            'step [0-9]+',
        ),
    ],
)
def test_bad_input_is_refused_and_leaves_no_model(pretrained, tmp_path, change, error, named):
    if isinstance(change.get('model'), SavedModel):
        write_model(tmp_path / 'start', change['model'])
        change = {**change, 'model': str(tmp_path / 'start')}
    with pytest.raises(error, match=named):
        pretrained(**change)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {'start', *(['model.training'] if error is TrainingDiverged else [])}
