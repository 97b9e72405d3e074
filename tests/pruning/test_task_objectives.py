"""Pruning of fine-tuned networks: every kind of head, exact cuts, resuming, and bad input."""

import dataclasses
import itertools
import json
import shutil
import warnings

import mxnet as mx
import numpy as np
import pytest
from helpers.commands import call
from helpers.finetuned import (
    recipe_for as finetuning_recipe,
    sentences,
    squad_recipe,
    write_glue,
    write_questions,
)
from helpers.jobs import EXACT, horovodrun, needs_horovod
from helpers.pruned import interrupted_at, results, selection_of, with_more_tokens
from helpers.tiny import contents, network, random_parameters, records, saved_model
from scipy.special import log_softmax

from gluon_optbert.architecture.cost import FlopsCost, ParameterCost
from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.lineage import Trimming, lineage_of
from gluon_optbert.deployment.verify import VerifyRecipe, stages, verify
from gluon_optbert.finetuning.distillation import HeadDivergence
from gluon_optbert.finetuning.recipes import finetune_glue, finetune_squad
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.running import run as run_block
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning import recovery
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.sentence_objective import SentenceObjective, read_sentence_data
from gluon_optbert.pruning.task_objectives import TaskObjective, prune_task
from gluon_optbert.runs.progress import TaskScores
from gluon_optbert.runs.recipe import RecipeError, fill, save
from gluon_optbert.text.trimming import read_trim_record
from gluon_optbert.training import distillation
from gluon_optbert.training.distributed import Workers


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A directory with GLUE, SQuAD and sentences."""
    base = tmp_path_factory.mktemp('tasks')
    write_glue(base / 'glue')
    write_questions(base / 'squad')
    (base / 'text.txt').write_text('\n'.join(text for text, _ in sentences(80, 5)) + '\n')
    return base


@pytest.fixture(scope='module')
def models(place, model_directory):
    """A model directory for every task; sentences take the network as it was pre-trained."""
    directories = {'sentences': model_directory}
    for task in ('SST-2', 'STS-B', 'MNLI'):
        output = place / f'tuned-{task}'
        recipe = finetuning_recipe(model_directory, place / 'glue', place, task=task, output=str(output))
        finetune_glue(recipe)
        directories[task] = output / 'seed-1'
    output = place / 'tuned-SQuAD'
    finetune_squad(squad_recipe(model_directory, place, version='2.0', output=str(output)))
    directories['SQuAD'] = output / 'seed-1'
    return directories


def recipe_for(place, models, name, output, **more):
    data = 'text.txt' if name == 'sentences' else 'squad' if name.startswith('SQuAD') else 'glue'
    values = {
        'model': str(models[name]),
        'data': str(place / data),
        'output': str(output),
        'rounds': 2,
        'alpha_steps': 3,
        'alpha_learning_rate': 0.05,
        'steps': 4,
        'batch_tokens' if name == 'sentences' else 'batch_size': 64 if name == 'sentences' else 8,
        'learning_rate': 0.01,
        'log_every': 2,
        'checkpoint_every': 2,
        'timing': False,
    }
    if name == 'sentences':
        values['task'] = name
    return fill(TaskPruneRecipe, {**values, **more})


TASKS = {'SST-2': 2, 'STS-B': 1, 'SQuAD': 1, 'sentences': 1}  # one of each head, and the rounds of its run


@pytest.fixture(scope='module')
def runs(place, models, tmp_path_factory):
    """A run for every task."""
    base = tmp_path_factory.mktemp('runs')
    rows = {}
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # such as MXNet's of an input that nothing reads
        for task, rounds in TASKS.items():
            rows[task] = prune_task(recipe_for(place, models, task, base / task, rounds=rounds))
    return base, rows


@pytest.fixture
def recipe_of(place, models, tmp_path):
    """The recipe of a run for a task, with other settings, and another output of this test."""
    return lambda name, output='run', **more: recipe_for(place, models, name, tmp_path / output, **more)


@pytest.fixture
def pruned_for(recipe_of):
    """Prunes by such a recipe."""
    return lambda *args, **more: prune_task(recipe_of(*args, **more))


METRICS = ('dev/accuracy', 'dev/spearman', 'dev/f1', 'heldout/pair_similarity')


@pytest.mark.parametrize('task, metric', [*zip(TASKS, METRICS)])
def test_every_round_is_a_model_with_the_head_that_came_in(runs, models, task, metric):
    base, rows = runs[0], runs[1][task]
    start = read_model(models[task])
    whole = FlopsCost(128).cost(start.architecture)
    for number in range(1, len(rows)):
        share = 1 - 0.5 * number / TASKS[task]
        saved = read_model(base / task / f'round-{number}' / 'model')
        assert saved.head == start.head
        assert FlopsCost(128).cost(saved.architecture) <= share * whole
        assert rows[number].recovered == saved.progress.task_scores
    measured = rows[-1].recovered
    assert measured.metric == metric and f'{metric} before' in (base / task / 'pruning.md').read_text()
    assert (measured.standard_error is not None) == (metric in ('dev/accuracy', 'dev/f1'))
    assert (measured.majority is None) == (task == 'sentences')
    assert task != 'sentences' or rows[0].recovered.value == pytest.approx(100)


def test_every_cut_and_its_export_are_exact(runs):
    (row,) = verify(VerifyRecipe(run=runs[0] / 'SQuAD'))
    assert {'h', 'a', 'k', 'v', 'f', 'all', 'export'} < set(row)
    errors = [row['error'] for row in stages(VerifyRecipe(run=runs[0] / 'SQuAD'))]
    assert errors[0] == 0 and all(error > 0 for error in (errors[1], errors[2]))


@pytest.mark.parametrize(
    'name, more, message',
    [
        ('SST-2', {'batch_tokens': 64}, 'batch_tokens is about the task sentences'),
        ('SST-2', {'trim_count': 3}, 'trim_count is about the text of trim'),
        ('sentences', {'batch_size': 8}, 'batch_size is not read for sentences'),
        ('SST-2', {'teacher': 'none', 'gate_teacher': True}, 'gate_teacher needs a teacher'),
        ('sentences', {'teacher': 'none'}, 'has no labels and needs a teacher'),
        ('sentences', {'gate_teacher': True}, 'gate_teacher is about labels and scores'),
        ('sentences', {'labels': 'no=0,yes=1'}, 'labels names labels'),
        ('sentences', {'temperature': 7.0}, 'temperature is about scores'),
        ('sentences', {'data': None}, 'needs --data'),
    ],
)
def test_contradictory_settings_are_refused(recipe_of, name, more, message):
    with pytest.raises(RecipeError, match=message):
        recipe_of(name, **more)


def test_options_of_a_table_are_refused_for_questions(pruned_for, tmp_path):
    with pytest.raises(ValueError, match='^--held-out, --labels: about a table, and the task is SQuAD 2.0$'):
        pruned_for('SQuAD', labels='no=0,yes=1', held_out=0.2)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('method', ['alpha', 'layers', 'heads'])
def test_every_method_prunes_without_training(pruned_for, tmp_path, method):
    more = {'method': method, 'steps': 0, 'rounds': 1, 'target': 0.6, 'reconstruct': method != 'layers'}
    if method == 'heads':
        more.update(prune='a', target=0.9)
    rows = pruned_for('MNLI', **more)
    assert rows[1].recovered == (rows[1].after_reconstruction or rows[1].after_cut)
    text = (tmp_path / 'run' / 'pruning.md').read_text()
    assert 'recovered' not in text.splitlines()[4]
    phases = {record['phase'] for record in records(tmp_path / 'run')}
    assert phases == ({'gates'} if method == 'alpha' else set())


def test_reconstruction_and_rotation_bring_a_task_network_nearer(pruned_for, tmp_path):
    common = {'steps': 0, 'rounds': 1, 'target': 0.5, 'method': 'magnitude', 'prune': 'akvf'}
    more = {'rotate_heads': True, 'reconstruct': True, 'keep_embeddings': True}
    pruned_for('SST-2', **common, **more)
    errors = {row['network']: row['error'] for row in stages(VerifyRecipe(run=tmp_path / 'run'))}
    assert errors['reconstructed'] < 0.7 * errors['cut'] and verify(VerifyRecipe(run=tmp_path / 'run'))
    kept = json.loads((tmp_path / 'run' / 'round-1' / 'embeddings.json').read_text())
    assert kept['instances'] == 13 and kept['cut']['cosine'] < kept['reconstructed']['cosine'] <= 1


@pytest.mark.parametrize('task, step', [('SST-2', 10), ('sentences', 6)])
def test_a_run_resumes_to_the_same_bits(runs, place, models, tmp_path, task, step):
    """The process ends a step after a checkpoint, of the gates of the second round or of recovery."""
    recipe = recipe_for(place, models, task, tmp_path / task, rounds=TASKS[task])
    with interrupted_at(step):  # a round has 3 + 4 steps
        prune_task(recipe)
    prune_task(recipe.replace(resume=True))
    assert results(tmp_path / task) == results(runs[0] / task)


def test_recovery_of_so_many_minutes_is_that_of_the_steps_that_were_planned(recipe_of, tmp_path, monkeypatch):
    """In the time, to the same bits as by steps, and when it is resumed, too."""
    common = {'method': 'fisher', 'rounds': 1, 'alpha_steps': 2, 'evaluate_every': 20}
    timed = recipe_of('sentences', 'timed', **common, steps=None, minutes=0.02)
    prune_task(timed)
    plan = json.loads((timed.output / 'round-1' / 'plan.json').read_text())
    assert plan['minutes'] == 0.02 and 1 <= plan['steps'] <= max(1, 1.2 / plan['seconds_a_step'])
    assert losses_of(timed.output)[-1]['step'] == plan['steps']
    monkeypatch.setattr(recovery, 'steps_within', lambda *_: (plan['steps'], plan['seconds_a_step']))
    with interrupted_at(plan['steps'], 'recovery'):
        prune_task(timed.replace(output=tmp_path / 'again'))
    monkeypatch.setattr(recovery, 'steps_within', None)  # it is planned once
    prune_task(timed.replace(output=tmp_path / 'again', resume=True))
    assert results(tmp_path / 'again') == results(timed.output)
    stated = timed.replace(output=tmp_path / 'steps', minutes=None, steps=plan['steps'])
    prune_task(stated)
    names = ('timed', 'steps')
    assert len({contents(tmp_path / name / 'round-1' / 'model')['model.params'] for name in names}) == 1


def test_the_error_of_a_difference_is_that_of_the_instances_that_changed(recipe_of, models):
    """Of n instances, of which one network has p more right and q that the other has, (p + q - (p - q)²/n) /
    (n - 1) / n is the variance of the difference.
    """
    recipe = recipe_of('SST-2')
    trained = read_model(models['SST-2'])
    one, other = (  # networks that always give one label
        dataclasses.replace(trained, parameters={**trained.parameters, 'task.bias': np.float32(bias)})
        for bias in ((9, 0), (0, 9))
    )
    objective = TaskObjective(recipe, trained, Workers())
    features = objective._exercise.heldout['dev']
    right = []
    for saved in (one, other):
        training = objective.labelled(objective.build(saved))
        right.append(training.scores({'dev': features})['dev'].argmax(axis=1) == features.labels)
    p, q, n = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum()), len(features)
    assert p and q and p != q
    known, changed = ((saved, objective.evaluate(saved)) for saved in (one, other))
    error = objective.difference_error(known, changed)
    assert error == pytest.approx(100 * ((p + q - (p - q) ** 2 / n) / (n - 1) / n) ** 0.5)
    assert objective.difference_error(known, known) == 0.0
    assert [one == '1' for one in changed[1].right] == right[1].tolist()
    assert changed[1].value - known[1].value == pytest.approx(100 * (p - q) / n)
    one = read_model(models['STS-B'])  # other scores are no means over instances
    recipe = recipe_of('STS-B')
    objective = TaskObjective(recipe, one, Workers())
    known = one, objective.evaluate(one)
    assert known[1].right is None and objective.difference_error(known, known) is None


@pytest.mark.parametrize('scores, kept', [((90, 80, 70), 'shrunk'), ((90, 80, 80), 'reconstructed')])
def test_the_better_score_of_cut_and_reconstruction_stays(
    pruned_for, tmp_path, monkeypatch, caplog, scores, kept
):
    name = 'dev/accuracy'
    left = [TaskScores({name: float(score)}, name, 100, majority=85.0) for score in scores]
    monkeypatch.setattr(TaskObjective, 'evaluate', lambda self, saved: left.pop(0))
    more = {'rounds': 1, 'steps': 0, 'method': 'magnitude', 'reconstruct': True}
    pruned_for('SST-2', keep_best=True, **more)
    other, model = (read_model(tmp_path / 'run' / 'round-1' / name).parameters for name in (kept, 'model'))
    assert all(np.array_equal(value, model[name]) for name, value in other.items())
    page = (tmp_path / 'run' / 'pruning.md').read_text()
    assert ('the fit of the layers made dev/accuracy worse' in page) == (kept == 'shrunk')
    assert 'no better than one answer to all, which has 85.00' in page
    assert 'learnt nothing of the task' not in caplog.text  # 90 of the network that came in is better


def losses_of(output):
    """The records of training, of gates and of weights."""
    return [record for record in records(output) if 'learning_rate' in record]


def test_without_a_teacher_the_loss_is_that_of_the_labels_alone(pruned_for, tmp_path):
    pruned_for('SST-2', rounds=1, alpha_steps=1, steps=1, log_every=1, teacher='none')
    trained = losses_of(tmp_path / 'run')
    assert len(trained) == 2 and all({*line} & {'loss', 'scores', 'states'} == {'loss'} for line in trained)


@pytest.mark.parametrize(
    'task, change, message',
    [
        ('MNLI', {'token_types': 1}, 'are pairs of texts, and the teacher .*other has one token type'),
        ('SST-2', {'max_length': 8}, 'max_length is 16, and the teacher .*other has 8 positions'),
    ],
)
def test_a_teacher_that_cannot_read_the_data_is_refused(pruned_for, models, tmp_path, task, change, message):
    start = read_model(models[task])
    smaller = dataclasses.replace(start.architecture, **change)
    parameters = random_parameters(smaller, 3, head=start.head)
    write_model(tmp_path / 'other', dataclasses.replace(start, architecture=smaller, parameters=parameters))
    with pytest.raises(ValueError, match=message):
        pruned_for(task, teacher=str(tmp_path / 'other'))
    assert not (tmp_path / 'run').exists()


def test_a_budget_of_parameters_counts_the_trimmed_vocabulary(place, models, tmp_path):
    """The letters z and Z of the vocabulary stay as all single characters do, so a longer token is added."""
    whole = read_model(models['SST-2'])
    words = [f'{token}{token}' for token in 'abcdefghij']
    larger = with_more_tokens(whole, words)
    write_model(tmp_path / 'larger', larger)
    (tmp_path / 'text.txt').write_text('aa a b c\naa bb d\n')
    more = {'rounds': 1, 'objective': 'parameters', 'target': 0.8, 'steps': 2}
    more['trim'] = str(tmp_path / 'text.txt')
    recipe = recipe_for(place, {'SST-2': tmp_path / 'larger'}, 'SST-2', tmp_path / 'run', **more)
    rows = prune_task(recipe)
    size = ParameterCost().cost(larger.architecture)
    start = read_model(tmp_path / 'run' / 'round-0' / 'model')
    assert len(start.vocabulary) == len(whole.vocabulary) + 2
    assert start.vocabulary['bb'] > start.vocabulary['aa']
    assert rows[0].parameters == ParameterCost().cost(start.architecture) < size
    assert 0.8 * size - 50 < rows[1].parameters <= 0.8 * size
    assert read_trim_record(tmp_path / 'run' / 'round-0' / 'model').tokens == (42, 34)
    last = tmp_path / 'run' / f'round-{len(rows) - 1}' / 'model'
    assert lineage_of(read_model(last), last).trimming == Trimming(42, 34, last=False)
    assert '34 of 42 tokens stayed' in (tmp_path / 'run' / 'pruning.md').read_text()
    assert verify(VerifyRecipe(run=tmp_path / 'run'))
    before = contents(tmp_path / 'run')
    shutil.rmtree(tmp_path / 'larger')
    assert prune_task(recipe.replace(resume=True))[1].parameters == rows[1].parameters
    assert contents(tmp_path / 'run') == before


def test_bad_input_is_refused_before_anything_is_written(pruned_for, models, model_directory, tmp_path):
    def refused(message, error=ValueError, name='SST-2', **more):
        with pytest.raises(error, match=message):
            pruned_for(name, **more)
        assert not (tmp_path / 'run').exists()

    few = tmp_path / 'few.txt'
    few.write_text('a b\n' * 5)
    refused('has no head of a task; fine-tune it first', model=str(model_directory))
    refused('was fine-tuned for SST-2 with the labels 0, 1, and the task is MNLI', task='MNLI')
    refused('no such directory', FileNotFoundError, data=str(tmp_path / 'nowhere'))
    refused('cannot be reached', target=0.0001)
    refused('the teacher was trained for STS-B', teacher=str(models['STS-B']))
    refused('has the head of SST-2; leave --task out', name='sentences', model=str(models['SST-2']))
    refused('few.txt: texts to learn from, each counted once: 1;', name='sentences', data=str(few))
    refused('evaluation_limit must be at least 10', name='sentences', evaluation_limit=2)
    refused('one sentence in a pass', name='sentences', batch_tokens=16, accumulate=2)


@pytest.mark.parametrize('lines, held', [(40, 10), (80, 10), (300, 15)])
def test_enough_sentences_are_held_out_for_their_pairs(recipe_of, models, tmp_path, lines, held):
    texts = map(' '.join, itertools.permutations('abcdefghijklmnopqrst', 2))  # none twice
    (tmp_path / 'text.txt').write_text('\n'.join(itertools.islice(texts, lines)) + '\n')
    more = {'data': str(tmp_path / 'text.txt'), 'max_length': 3}
    for limit, wanted in ((None, held), (12, min(12, held))):
        recipe = recipe_of('sentences', **more, evaluation_limit=limit)
        data = read_sentence_data(recipe, read_model(models['sentences']))
        assert (len(data.train), len(data.heldout)) == (lines - wanted, wanted)
    assert max(data.train.lengths) == max(data.heldout.lengths) == 3  # [CLS], a letter, [SEP]


def test_a_head_without_a_task_takes_the_one_that_is_named(pruned_for, place, models, tmp_path):
    """It is pruned as the network that knows its task, may take its ranking, and may teach it."""
    task, saved = 'SQuAD', read_model(models['SQuAD'])
    recipe = {name: value for name, value in saved.recipe.items() if name not in ('task', 'version')}
    head = Head(saved.head.kind, saved.head.labels)
    write_model(tmp_path / 'unnamed', dataclasses.replace(saved, head=head, recipe=recipe))
    own, start = {'rounds': 1, 'steps': 0, 'method': 'fisher'}, {task: tmp_path / 'unnamed'}
    with pytest.raises(ValueError, match='its task is not known; name it with --task'):
        prune_task(recipe_for(place, start, task, tmp_path / 'imported', **own))
    own['task'] = 'SQuAD2.0'
    more = {'teacher': str(start[task]), 'teacher_weights': {'states': 0}}
    pruned_for(task, 'named', **own, **more)
    prune_task(recipe_for(place, start, task, tmp_path / 'imported', **own, ranking=str(tmp_path / 'named')))
    one, other = (read_model(tmp_path / name / 'round-1' / 'model') for name in ('named', 'imported'))
    assert one.head == other.head == saved.head
    assert all((value == other.parameters[name]).all() for name, value in one.parameters.items())


def saved_recipe(path, *args, **more):
    """The path, with the recipe that `recipe_for` makes in it."""
    save(recipe_for(*args, **EXACT, **more), path)
    return path


def test_the_command_says_what_it_wrote_and_refuses_in_one_line(place, models, tmp_path):
    more = {'steps': 0, 'method': 'fisher', 'rounds': 1, 'timing': True}
    recipe = saved_recipe(tmp_path / 'recipe.yaml', place, models, 'SST-2', tmp_path / 'run', **more)
    done = call('finetune/run_prune.py', recipe)
    assert done.returncode == 0 and '| round |' in done.stdout and 'tools/verify.py' in done.stdout
    times = json.loads((tmp_path / 'run' / 'times.json').read_text())['milliseconds']
    assert {shape: len(values) for shape, values in times.items()} == {'1x16': 2, '8x16': 2}
    assert '1.00 times as fast' in done.stdout and '8 × 16' in done.stdout
    assert call('tools/verify.py', tmp_path / 'run').returncode == 0
    refused = call('finetune/run_prune.py', recipe)
    assert refused.returncode == 2 and refused.stderr.count('\n') == 1 and 'exists' in refused.stderr


PARTS = ('states', 'last', 'embeddings', 'cosine_distance', 'relations')  # of a teacher without scores


def parts_of_losses(output):
    """The parts of the loss and the gradient's norm, step by step."""
    names = ('gradient_norm', 'loss', 'scores', *PARTS)
    rows = losses_of(output)
    return {name: [row[name] for row in rows if name in row] for name in names if name in rows[-1]}


# prunes by the recipes whose files it is given
PRUNING = """
import sys
from pathlib import Path
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.recipe import fill, read_yaml
for path in sys.argv[1:]:
    prune_task(fill(TaskPruneRecipe, read_yaml(Path(path))))
"""


@pytest.mark.slow
@needs_horovod
def test_two_workers_prune_as_one_does(recipe_of, place, models, tmp_path):
    """Sums over two shares are taken in another order; a few steps of Adam later float32 agrees this well."""
    more = {'reconstruct': True, 'method': 'fisher', 'rounds': 1, 'alpha_steps': 2, 'steps': 2}
    more.update(learning_rate=1e-3, log_every=1)
    every = {**more, 'teacher_weights': 'states=1,last=0.5,embeddings=20,cosines=1,relations=1'}
    runs = {'SQuAD': more, 'sentences': every}
    recipes = [
        saved_recipe(tmp_path / f'{task}.yaml', place, models, task, tmp_path / f'two-{task}', **values)
        for task, values in runs.items()
    ]
    done = horovodrun('-c', PRUNING, *recipes)
    assert done.returncode == 0, done.stderr
    for task, values in runs.items():
        prune_task(recipe_of(task, f'one-{task}', **EXACT, **values))
        places = [tmp_path / f'{name}-{task}' for name in ('one', 'two')]
        one, two = (selection_of(directory / 'round-1').to_dict()['kept'] for directory in places)
        assert one == two
        one, two = map(scores_on_sample, places)
        assert np.abs(one - two).max() < 1e-3 * np.abs(one).max()
        one, two = map(parts_of_losses, places)
        assert set(one) == set(two) > ({*PARTS} if task == 'sentences' else set())
        for part, values in one.items():
            assert two[part] == pytest.approx(values, rel=1e-3, abs=1e-6), part


def scores_on_sample(output):
    """Scores of the network of the first round on the inputs that the run left."""
    saved = read_model(output / 'round-1' / 'model')
    network = build(saved.architecture, saved.parameters, head=saved.head, use_decoder=False, trainable=False)
    with np.load(output / 'inputs.npz') as inputs:
        return run_block(network, inputs, TOKEN_INPUTS)[0]


def test_gates_learn_the_states_of_the_network_before_pruning(pruned_for, models, tmp_path):
    """Not those of another teacher: at the start they are their own."""
    other = saved_model(network((2, 4, 4, 16), h=6), seed=5)
    parameters = random_parameters(other.architecture, 5, head=read_model(models['SST-2']).head)
    head = read_model(models['SST-2']).head
    write_model(tmp_path / 'other', dataclasses.replace(other, parameters=parameters, head=head))
    more = {'gate_teacher': True, 'teacher': str(tmp_path / 'other'), 'teacher_weights': 'states=0'}
    more.update(rounds=1, alpha_steps=2, steps=0, dropout=0.0, log_every=1)
    pruned_for('SST-2', **more)
    first = losses_of(tmp_path / 'run')[0]
    assert first['phase'] == 'gates' and first['step'] == 1 and first['states'] < 1e-6


def test_embeddings_are_learnt_from_a_teacher_of_another_width(pruned_for, tmp_path, monkeypatch):
    """Its states cannot be compared unit by unit, and are not."""
    write_model(tmp_path / 'wide', saved_model(network((2, 4, 4, 16), h=12), seed=5))
    monkeypatch.setattr(distillation.Taught, 'variances', None)
    more = {'teacher': str(tmp_path / 'wide'), 'teacher_weights': 'last=0,cosines=0'}
    more.update(rounds=1, alpha_steps=1, steps=1, log_every=1)
    pruned_for('sentences', **more)
    trained = losses_of(tmp_path / 'run')
    assert len(trained) == 2 and all('states' not in line and line['embeddings'] > 0 for line in trained)


def test_the_last_state_is_learnt_from_a_teacher_of_more_layers(pruned_for, tmp_path):
    """Such as the network that lost layers before."""
    write_model(tmp_path / 'deep', saved_model(network(*[(2, 4, 4, 16)] * 3), seed=5))
    pruned_for('sentences', teacher=str(tmp_path / 'deep'), rounds=1, alpha_steps=1, steps=1, log_every=1)
    trained = losses_of(tmp_path / 'run')
    assert len(trained) == 2 and all(line['last'] > 0 and line['cosine_distance'] > 0 for line in trained)


def test_workers_that_round_differently_agree_on_the_score_of_sentences(recipe_of):
    recipe = recipe_of('sentences')
    objective = SentenceObjective(recipe, SentenceObjective.read(recipe)[0], Workers())
    score = objective.evaluate(objective.start).value
    objective.workers.size = 2
    objective.workers.sum = lambda values, name: [value + score + 1e-9 for value in values]
    assert objective.evaluate(objective.start).value == (score + score + 1e-9) / 2 != score


WEIGHTS, LENGTHS = np.array([1.0, 0.0, 1.0]), np.array([4, 2, 3])

ROUNDING = 1e-4  # oneDNN's log_softmax is off by 4e-6, and T squared is 4


def divergence(student, teacher):
    """At a temperature of two, over the last axis."""
    student, teacher = (log_softmax(scores / 2, axis=-1) for scores in (student, teacher))
    return 4 * (np.exp(teacher) * (teacher - student)).sum(axis=-1)


def test_scores_of_every_head_are_compared_by_their_divergence():
    """Numbers by their squared difference; ends of answers by the mean divergence over real tokens."""

    def found(head, shape):
        student, teacher = np.random.RandomState(1).normal(size=(2, 3, *shape))
        values = map(mx.nd.array, (student, teacher, WEIGHTS, LENGTHS))
        return float(HeadDivergence(head, 2.0)(*values).asscalar()), student, teacher

    value, student, teacher = found(Head('classification', ('no', 'maybe', 'yes')), (3,))
    assert value == pytest.approx(divergence(student, teacher)[[0, 2]].sum(), abs=ROUNDING)
    value, student, teacher = found(Head('regression'), (1,))
    assert value == pytest.approx(((student - teacher)[[0, 2]] ** 2).sum(), rel=1e-4)
    value, student, teacher = found(Head('question_answering'), (4, 2))
    wanted = sum(divergence(student[i, : LENGTHS[i]].T, teacher[i, : LENGTHS[i]].T).mean() for i in (0, 2))
    assert value == pytest.approx(wanted, abs=ROUNDING)


def test_a_pruned_task_network_is_pruned_and_fine_tuned_further(runs, place, models, tmp_path):
    again = {**models, 'SST-2': runs[0] / 'SST-2' / 'round-2' / 'model'}
    rows = prune_task(recipe_for(place, again, 'SST-2', tmp_path / 'again', rounds=1))
    assert rows[1].flops < rows[0].flops == runs[1]['SST-2'][2].flops
    result = finetune_glue(finetuning_recipe(again['SST-2'], place / 'glue', tmp_path, epochs=1))
    assert result.parameters == rows[0].parameters
