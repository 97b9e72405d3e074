"""Fine-tuning: what runs leave, that they go on after an interruption, and that nothing depends on batches or
workers.
"""

import dataclasses
import json
import os
import re
import warnings
from pathlib import Path

import gluonnlp
import mxnet as mx
import numpy as np
import pytest
from helpers.commands import call
from helpers.finetuned import FILES, recipe_for, sentences, values_for, write_glue
from helpers.jobs import horovodrun, needs_horovod
from helpers.pruned import records
from helpers.tiny import ROOT, contents, network, random_alphas, run, saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.directory import load_deployment
from gluon_optbert.deployment.export import export
from gluon_optbert.finetuning import exercise as exercise_module
from gluon_optbert.finetuning import finetune, objective
from gluon_optbert.finetuning.exercise import data_directory
from gluon_optbert.finetuning.glue import GlueRecipe, finetune_glue, prepare_glue, task_directory
from gluon_optbert.finetuning.objective import predict, start_parameters
from gluon_optbert.finetuning.result import FineTuningResult, RateRuns, SeedRun, best_rate, summary
from gluon_optbert.network.losses import TaskLoss
from gluon_optbert.network.model import build
from gluon_optbert.network.running import random_feed
from gluon_optbert.network.running import run as run_block
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.runs import provenance
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.tasks.features import make_reader
from gluon_optbert.tasks.task import find_task
from gluon_optbert.training.distributed import Workers

LEFT = ['origin.json', 'recipe.yaml', 'result.json', 'seed-1', 'seed-2']  # by a run of two seeds


@pytest.fixture(scope='module')
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp('data') / 'glue')


def without_times(result):
    """What two runs of the same recipe share; the tree may be committed between them."""
    runs = tuple(dataclasses.replace(run, seconds=0.0, resumed_at=None) for run in result.runs)
    return dataclasses.replace(result, runs=runs, recipe={}, origin={})


@pytest.fixture(scope='module')
def finished(model_directory, glue, tmp_path_factory):
    """An uninterrupted run of two seeds: where it is, and what `finetune_glue` returned."""
    base = tmp_path_factory.mktemp('finetuned')
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # such as MXNet's of an input that nothing reads
        return base, finetune_glue(recipe_for(model_directory, glue, base, seeds=[1, 2]))


def test_recipe_made_by_hand_is_checked_before_anything_is_written(model_directory, glue, tmp_path):
    for run_of_it in (finetune_glue, lambda recipe: prepare_glue(recipe, saved_model(), workers=Workers())):
        with pytest.raises(RecipeError) as error:
            run_of_it(
                GlueRecipe(output=str(tmp_path / 'run'), model=model_directory, epochs=0, select='worst')
            )
        assert len(error.value.problems) == 3 and '--task is missing' in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_recipe_made_by_hand_may_have_strings_for_paths(finished, model_directory, glue, tmp_path):
    result = finetune_glue(GlueRecipe(**values_for(model_directory, glue, tmp_path, seeds=[1, 2])))
    assert without_times(result) == without_times(finished[1])


def test_run_leaves_a_model_directory_for_each_seed_and_one_result(finished):
    base, result = finished
    assert os.listdir(base) == ['run']
    assert sorted(os.listdir(base / 'run')) == LEFT
    for seed in (1, 2):
        assert set(os.listdir(base / 'run' / f'seed-{seed}')) == FILES | {'SST-2.tsv'}
        saved = read_model(base / 'run' / f'seed-{seed}')
        assert (
            saved.head == Head('classification', ('0', '1'), 'SST-2')
            and SeedRun.from_dict(saved.progress.to_dict()) == result.runs[seed - 1]
        )
    assert FineTuningResult.read(base / 'run' / 'result.json') == result


def test_result_says_where_it_comes_from(finished):
    result = finished[1]
    assert result.task == 'SST-2' and result.metric == 'dev/accuracy'
    assert (
        result.samples == {'train': 41, 'dev': 13, 'SST-2.tsv': 7}
        and result.seeds == (1, 2)
        and result.origin['workers'] == 1
    )
    assert set(result.origin['versions']) == {'gluon_optbert', 'mxnet', 'gluonnlp', 'numpy', 'python'}
    assert result.origin['machine']['cores'] >= 1 and result.origin['machine']['cpu']
    assert result.recipe['learning_rate'] == 0.01 and len(result.model_sha256) == 64
    assert [epoch.step for epoch in result.runs[0].epochs] == [6, 12]
    assert all(run.seconds > 0 and run.kept_epoch == 2 and run.resumed_at is None for run in result.runs)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def stop_at(monkeypatch, step):
    """End fine-tuning in a step, counted over all seeds."""
    loss_sums, done = objective.FineTuning.loss_sums, []

    def stopping(self, batch, rows):
        done.append(1)
        if len(done) == step:
            raise Interrupted
        return loss_sums(self, batch, rows)

    monkeypatch.setattr(objective.FineTuning, 'loss_sums', stopping)


def test_result_has_the_commit_that_the_run_began_with(model_directory, glue, tmp_path, monkeypatch):
    """The next commit is made while the run trains."""
    commits, evaluate = ['a' * 40], objective.FineTuning.evaluate

    def evaluate_after_a_commit(self, phase):
        commits.append('b' * 40)
        return evaluate(self, phase)

    monkeypatch.setattr(provenance, 'commit', lambda: commits[-1])
    monkeypatch.setattr(objective.FineTuning, 'evaluate', evaluate_after_a_commit)
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, epochs=1))
    assert result.origin['commit'] == 'a' * 40 and 'commits' not in result.to_dict()
    (entry,) = json.loads((tmp_path / 'run' / 'origin.json').read_text())
    assert entry == result.origin and set(entry) == {'commit', 'versions', 'machine', 'workers'}


def test_result_has_the_commits_of_a_run_that_was_resumed(model_directory, glue, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, 'commit', lambda: 'a' * 40)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 10)
        finetune_glue(recipe_for(model_directory, glue, tmp_path))
    monkeypatch.setattr(provenance, 'commit', lambda: 'b' * 40)
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True))
    assert result.origin['commit'] == 'b' * 40 and result.origin['commits'] == ['a' * 40, 'b' * 40]
    assert FineTuningResult.read(tmp_path / 'run' / 'result.json') == result


def test_mean_and_deviation_are_those_of_the_seeds(finished):
    scores = [run.scores['dev/accuracy'] for run in finished[1].runs]
    assert finished[1].mean['dev/accuracy'] == pytest.approx(sum(scores) / 2)
    assert finished[1].std['dev/accuracy'] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)


def test_result_has_the_score_of_the_majority_class(finished, glue):
    labels = [line.split('\t')[1] for line in (glue / 'SST-2' / 'dev.tsv').read_text().splitlines()[1:]]
    majority = 100 * max(labels.count('0'), labels.count('1')) / len(labels)
    assert finished[1].majority == {'dev/accuracy': pytest.approx(majority)}
    assert FineTuningResult.read(finished[0] / 'run' / 'result.json').majority == finished[1].majority


def test_summary_marks_a_score_that_the_majority_class_has_as_well(finished):
    good, poor = (
        dataclasses.replace(finished[1], majority={'dev/accuracy': finished[1].mean['dev/accuracy'] + more})
        for more in (-1.0, 0.0)
    )
    assert '*' not in summary(good) and 'always the majority class: dev/accuracy' in summary(good)
    first, _, last = summary(poor).splitlines()
    assert first.endswith(' *') and last.startswith('* no better than the majority class')


def test_metrics_hold_the_logged_steps_and_an_evaluation_each_epoch(finished):
    logged = records(finished[0] / 'run' / 'seed-1')
    assert [record['step'] for record in logged if 'loss' in record] == [2, 4, 6, 8, 10, 12]
    assert [record['step'] for record in logged if 'dev/accuracy' in record] == [6, 12]


def test_submission_has_the_test_sets_rows(finished):
    lines = (finished[0] / 'run' / 'seed-1' / 'SST-2.tsv').read_text().splitlines()
    assert (
        lines[0] == 'index\tprediction'
        and [re.fullmatch(rf'{i}\t[01]', line) is not None for i, line in enumerate(lines[1:])] == [True] * 7
    )


def test_same_seed_gives_the_same_network_and_another_one_another(finished, model_directory, glue, tmp_path):
    finetune_glue(recipe_for(model_directory, glue, tmp_path, seeds=[2]))
    one, two = (contents(finished[0] / 'run' / f'seed-{seed}')['model.params'] for seed in (1, 2))
    assert contents(tmp_path / 'run' / 'seed-2')['model.params'] == two != one


def test_training_learns(model_directory, glue, tmp_path):
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, epochs=30, dropout=0.0))
    assert result.mean['dev/accuracy'] >= 80


@pytest.mark.parametrize('select', ['last', 'best'])
def test_resumed_run_equals_the_uninterrupted_one(select, model_directory, glue, tmp_path, monkeypatch):
    options = dict(seeds=[1, 2], select=select)
    whole = finetune_glue(recipe_for(model_directory, glue, tmp_path / 'whole', **options))
    stop_at(monkeypatch, 12 + 10)  # the tenth step of the second seed
    with pytest.raises(Interrupted):
        finetune_glue(recipe_for(model_directory, glue, tmp_path, **options))
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match='--resume'):
        finetune_glue(recipe_for(model_directory, glue, tmp_path, **options))
    with pytest.raises(ValueError, match='other settings of epochs'):
        finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True, **{**options, 'epochs': 3}))
    assert not (tmp_path / 'run').exists()
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True, **options))
    assert [run.resumed_at for run in result.runs] == [None, 8]
    assert without_times(result) == without_times(whole)
    for seed in ('seed-1', 'seed-2'):
        assert (
            contents(tmp_path / 'run' / seed)['model.params']
            == contents(tmp_path / 'whole' / 'run' / seed)['model.params']
        )
        assert records(tmp_path / 'run' / seed) == records(tmp_path / 'whole' / 'run' / seed)
    assert sorted(os.listdir(tmp_path)) == ['run', 'whole']
    assert finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True, **options)) == result


@pytest.mark.parametrize(
    'end',
    [
        'run_directory.save = lambda *_: os._exit(9)',
        'finetune.write_model = lambda *a, **k: (saved_model.write_model(*a, **k), os._exit(9))',
    ],
    ids=['before its recipe', 'after its first network'],
)
def test_run_that_ends_between_two_files_goes_on(end, finished, model_directory, glue, tmp_path):
    """A process of its own, so that nothing is tidied up on the way."""
    program = (
        'import json, os, sys\nfrom gluon_optbert.finetuning import finetune\n'
        'from gluon_optbert.finetuning.glue import GlueRecipe, finetune_glue\n'
        'from gluon_optbert.network import saved_model\nfrom gluon_optbert.runs import run_directory\n'
        'from gluon_optbert.runs.recipe import fill\n'
        f'{end}\n'
        'finetune_glue(fill(GlueRecipe, json.loads(sys.argv[1])))'
    )
    ended = run(
        '-W', 'ignore', '-c', program, json.dumps(values_for(model_directory, glue, tmp_path, seeds=[1, 2]))
    )
    assert ended.returncode == 9, ended.stderr
    finetune_glue(recipe_for(model_directory, glue, tmp_path, seeds=[1, 2], resume=True))
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT
    for seed in ('seed-1', 'seed-2'):
        assert (
            contents(tmp_path / 'run' / seed)['model.params']
            == contents(finished[0] / 'run' / seed)['model.params']
        )


def test_finished_run_is_not_handed_to_other_settings(finished, model_directory, glue):
    """It once was, and its result passed for theirs."""
    base, result = finished
    values = {'seeds': [1, 2], 'resume': True}
    assert finetune_glue(recipe_for(model_directory, glue, base, **values)) == result
    with pytest.raises(ValueError, match='other settings of learning_rate'):
        finetune_glue(recipe_for(model_directory, glue, base, **values, learning_rate=0.5))


RECORDED = sorted(
    path
    for path in (ROOT / 'results' / 'finetuning').rglob('*.json')
    if '"format": "gluon_optbert fine-tuning"' in path.read_text()
)


@pytest.mark.parametrize('path', RECORDED, ids=lambda path: path.stem)
def test_recorded_result_is_written_again_byte_by_byte(path):
    assert FineTuningResult.read(path).to_json() == path.read_bytes()


def test_result_is_what_its_files_hold(finished):
    base, result = finished
    content = (base / 'run' / 'result.json').read_bytes()
    assert content == result.to_json()
    values = json.loads(content)
    assert values['unit'] == 'percent' and values['seeds'] == [1, 2]
    with_more = FineTuningResult.from_dict({**values, 'of a later version': 3}, source='run.json')
    assert with_more.to_dict() == {**values, 'of a later version': 3}


@pytest.mark.parametrize(
    'change', [{'format': 'other'}, {'runs': 3}, {'runs': [{'seed': 1}]}, {'runs': None}, {'samples': None}]
)
def test_file_that_is_no_result_is_refused_by_name(finished, change):
    values = {name: value for name, value in {**finished[1].to_dict(), **change}.items() if value is not None}
    for wrong in (values, [values], None):
        with pytest.raises(ValueError, match='run.json: not a result of fine-tuning'):
            FineTuningResult.from_dict(wrong, source='run.json')


def test_best_epoch_is_the_one_that_is_kept(model_directory, glue, tmp_path, monkeypatch):
    """The second of four is made the best; the network that is left has its scores."""
    scores = iter([10.0, 30.0, 20.0, 30.0])
    honest = objective.FineTuning.evaluate
    seen = []

    def evaluate(self, phase):
        honest(self, phase)
        seen.append(self.heldout_scores['dev'])
        return {'dev/accuracy': next(scores)}

    monkeypatch.setattr(objective.FineTuning, 'evaluate', evaluate)
    recipe = recipe_for(model_directory, glue, tmp_path, epochs=4, select='best', checkpoint_every=0)
    result = finetune_glue(recipe)
    assert result.runs[0].kept_epoch == 2 and result.mean == {'dev/accuracy': 30.0}
    saved = read_model(tmp_path / 'run' / 'seed-1')
    features = prepare_glue(recipe, saved, workers=Workers()).heldout['dev']
    predictions = predict(
        build(saved.architecture, saved.parameters, head=saved.head),
        features,
        Workers(),
        outputs=2,
        tokens=99,
    )
    np.testing.assert_allclose(
        predictions, seen[1], atol=1e-6
    )  # batches of another shape sum in another order
    assert np.abs(predictions - seen[3]).max() > 1e-3


def test_start_keeps_the_encoder_and_draws_the_head():
    saved, head = saved_model(), Head('question_answering')
    start, other = (start_parameters(saved, head, seed=seed) for seed in (1, 2))
    assert 'pooler.weight' not in start and 'decoder.0.weight' not in start and not start['task.bias'].any()
    assert all(
        (value == saved.parameters[name]).all()
        for name, value in start.items()
        if not name.startswith('task.')
    )
    assert (
        start['task.weight'].std() == pytest.approx(0.02, rel=0.5)
        and (start['task.weight'] != other['task.weight']).all()
    )
    assert 'pooler.weight' in start_parameters(saved, Head('regression'), seed=1)


def test_head_of_another_task_is_refused_and_the_same_one_goes_on(finished, glue, tmp_path):
    start = finished[0] / 'run' / 'seed-1'
    with pytest.raises(
        ValueError,
        match='has the head of SST-2 with the labels 0, 1, and MNLI with the labels .*neutral wants another',
    ):
        finetune_glue(recipe_for(start, glue, tmp_path, task='MNLI'))
    assert list(tmp_path.iterdir()) == []
    saved = read_model(start)
    assert all(
        (value == saved.parameters[name]).all()
        for name, value in start_parameters(saved, saved.head, seed=5).items()
    )


def test_head_without_a_task_goes_on_under_the_name_of_the_task(finished, glue, tmp_path):
    """An imported checkpoint may not say what it was fine-tuned on."""
    saved = read_model(finished[0] / 'run' / 'seed-1')
    unnamed = dataclasses.replace(saved, head=Head('classification', saved.head.labels))
    write_model(tmp_path / 'unnamed', unnamed)
    for seed in (1, 2):
        start = start_parameters(unnamed, saved.head, seed=seed)
        assert all((start[name] == value).all() for name, value in saved.parameters.items())
    finetune_glue(recipe_for(tmp_path / 'unnamed', glue, tmp_path, epochs=1))
    left = read_model(tmp_path / 'run' / 'seed-1').head
    assert (left, left.names) == (saved.head, saved.head.names) and left.task == 'SST-2'
    for head in (Head('classification', ('1', '0'), 'SST-2'), Head('regression', (), 'STS-B')):
        with pytest.raises(ValueError, match='the head of classification with the labels 0, 1, and'):
            start_parameters(unnamed, head, seed=1)
    with pytest.raises(ValueError, match='the head of SST-2 with'):
        start_parameters(saved, unnamed.head, seed=1)


def test_gates_are_folded_first(glue, tmp_path):
    gated = saved_model(
        network((1, 2, 3, 4), (2, 1, 1, 0), h=6),
        alphas=random_alphas(network((1, 2, 3, 4), (2, 1, 1, 0), h=6)),
    )
    write_model(tmp_path / 'gated', gated)
    result = finetune_glue(recipe_for(tmp_path / 'gated', glue, tmp_path, epochs=1))
    assert read_model(tmp_path / 'run' / 'seed-1').alphas is None and len(result.runs) == 1


def test_task_without_its_mismatched_half_and_without_test_sets(model_directory, glue, tmp_path):
    result = finetune_glue(
        recipe_for(model_directory, glue, tmp_path, task='mnli', epochs=1, limit=10, evaluation_limit=5)
    )
    assert result.samples == {'train': 10, 'dev_matched': 5} and set(result.mean) == {'dev_matched/accuracy'}


def test_regression_is_measured_and_submitted(model_directory, glue, tmp_path):
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, task='STS-B', epochs=1))
    assert set(result.mean) == {'dev/spearman', 'dev/pearson'} and result.metric == 'dev/spearman'
    lines = (tmp_path / 'run' / 'seed-1' / 'STS-B.tsv').read_text().splitlines()
    assert len(lines) == 8 and re.fullmatch(r'6\t-?\d+\.\d{3}', lines[-1])


def test_passes_give_what_one_pass_gives(model_directory, glue, tmp_path):
    """Sums of float32 in another order; a few steps of Adam later they agree this well."""
    for accumulate in (1, 2):
        finetune_glue(
            recipe_for(
                model_directory,
                glue,
                tmp_path / str(accumulate),
                dropout=0.0,
                accumulate=accumulate,
                learning_rate=0.001,
            )
        )
    one, two = (read_model(tmp_path / str(accumulate) / 'run' / 'seed-1').parameters for accumulate in (1, 2))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    'kind, labels, outputs', [('classification', ('0', '1'), 2), ('question_answering', (), 2)]
)
def test_scores_do_not_depend_on_the_batch(kind, labels, outputs):
    saved = saved_model()
    model = build(saved.architecture, head=Head(kind, labels), initial_std=0.3)
    texts = tuple((text,) for text, _ in sentences(9, 3))
    features = make_reader(saved.vocabulary, max_length=16)(texts)
    one, other = (
        predict(model, features, Workers(), outputs=outputs, tokens=tokens) for tokens in (1, 10**6)
    )
    np.testing.assert_allclose(one, other, atol=1e-5)  # float32 sums in another order


def loss_of(head, scores, labels, weights, valid):
    arrays = [mx.nd.array(value) for value in (scores, labels, weights, valid)]
    return float(TaskLoss(head)(*arrays).asscalar())


def test_losses_by_hand():
    scores = np.array([[1.0, 2.0], [0.5, -0.5]])
    entropy = [np.log(1 + np.exp(-1.0)), np.log(1 + np.exp(1.0))]
    assert loss_of(Head('classification', ('a', 'b')), scores, [1, 1], [1, 1], [3, 3]) == pytest.approx(
        sum(entropy), rel=1e-5
    )
    assert loss_of(Head('classification', ('a', 'b')), scores, [1, 1], [1, 0], [3, 3]) == pytest.approx(
        entropy[0], rel=1e-5
    )
    assert loss_of(Head('regression'), [[1.0], [4.0]], [3.0, 4.5], [1, 1], [3, 3]) == pytest.approx(4.25)


def test_loss_of_answers_leaves_padding_out():
    scores = np.random.RandomState(0).standard_normal((1, 4, 2)).astype('f')
    starts, ends = (np.exp(scores[0, :3, i]) / np.exp(scores[0, :3, i]).sum() for i in (0, 1))
    wanted = -(np.log(starts[1]) + np.log(ends[2])) / 2
    assert loss_of(Head('question_answering'), scores, [[1, 2]], [1], [3]) == pytest.approx(wanted, rel=1e-5)


def test_fine_tuned_network_exports_with_its_head(finished, tmp_path):
    saved = read_model(finished[0] / 'run' / 'seed-1')
    assert export(saved, tmp_path / 'deploy')['relative_difference']['scores'] < 1e-5
    block, found = load_deployment(tmp_path / 'deploy')
    assert found.kind == 'task' and found.head.labels == ('0', '1') and list(found.outputs) == ['scores']
    feed, names = random_feed(saved.architecture, batch=2, length=5), found.inputs
    wanted = build(saved.architecture, saved.parameters, head=saved.head)
    np.testing.assert_allclose(run_block(block, feed, names)[0], run_block(wanted, feed, names)[0], atol=1e-6)
    with pytest.raises(ValueError, match="exports task, not 'encoder'"):
        export(saved, tmp_path / 'other', head='encoder')
    with pytest.raises(ValueError, match="exports encoder or pretraining, not 'task'"):
        export(saved_model(), tmp_path / 'other', head='task')


@pytest.mark.parametrize(
    'change, named',
    [
        ({'epochs': 0}, 'epochs must be at least 1'),
        ({'learning_rates': [1e-5, 0.0]}, 'learning_rates must be different numbers above 0'),
        ({'learning_rates': [1e-5, 1e-5]}, 'learning_rates must be different numbers above 0'),
        ({'seeds': [1, 1]}, 'seeds must be different'),
        ({'seeds': []}, 'found none'),
        ({'limit': 0}, 'limit'),
        ({'max_length': 4}, 'max_length'),
        ({'select': 'middle'}, 'select must be one of last, best'),
        ({'learning_rate': 0}, 'learning_rate'),
        ({'evaluation_tokens': 0}, 'evaluation_tokens'),
    ],
)
def test_recipe_out_of_range_is_refused_by_name(tmp_path, change, named):
    with pytest.raises(RecipeError, match=named):
        recipe_for('model', 'glue', tmp_path, **change)


@pytest.mark.parametrize(
    'change, error, named',
    [
        ({'model': 'nowhere'}, FileNotFoundError, 'nowhere'),
        ({'data': 'nowhere'}, FileNotFoundError, 'nowhere: no such directory'),
        ({'task': 'IMDb'}, ValueError, 'IMDb'),
        ({'task': 'RTE'}, FileNotFoundError, 'RTE/train.tsv: no such file'),
        ({'max_length': 17}, ValueError, 'max_length is 17, and the network has 16 positions'),
        ({'batch_size': 9, 'accumulate': 2}, ValueError, 'batch_size 9 does not divide'),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    model_directory, glue, tmp_path, change, error, named
):
    with pytest.raises(error, match=named):
        finetune_glue(fill(GlueRecipe, {**values_for(model_directory, glue, tmp_path), **change}))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(finished, model_directory, glue):
    base = finished[0]
    before = contents(base)
    with pytest.raises(FileExistsError, match='run: exists'):
        finetune_glue(recipe_for(model_directory, glue, base))
    assert contents(base) == before


def test_nothing_is_written_where_the_command_was_started(model_directory, glue, tmp_path, monkeypatch):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    finetune_glue(recipe_for(model_directory, glue, tmp_path / 'there', epochs=1))
    assert os.listdir(tmp_path / 'here') == []


def test_a_copy_of_the_result_goes_where_it_is_asked_for(model_directory, glue, tmp_path):
    copies = str(tmp_path / 'results')
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, epochs=1, results=copies))
    copy = tmp_path / 'results' / 'run.json'
    assert copy.read_bytes() == (tmp_path / 'run' / 'result.json').read_bytes()
    other = {'epochs': 1, 'results': copies, 'output': str(tmp_path / 'other' / 'run')}
    with pytest.raises(FileExistsError, match='run.json: exists'):
        finetune_glue(recipe_for(model_directory, glue, tmp_path, **other))
    assert not (tmp_path / 'other').exists()
    more = {'epochs': 1, 'resume': True, 'results': str(tmp_path / 'elsewhere')}
    assert finetune_glue(recipe_for(model_directory, glue, tmp_path, **more)) == result
    assert (tmp_path / 'elsewhere' / 'run.json').read_bytes() == copy.read_bytes()


def test_a_copy_of_another_run_is_refused_when_a_run_goes_on(model_directory, glue, tmp_path, monkeypatch):
    """Before it trains; and when it is finished, unless the copy is its own."""
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    (elsewhere / 'run.json').write_text('of another run')
    options = {'epochs': 1, 'resume': True}
    refused = recipe_for(model_directory, glue, tmp_path, **options, results=str(elsewhere))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 4)
        finetune_glue(recipe_for(model_directory, glue, tmp_path, epochs=1))
    with monkeypatch.context() as patch, pytest.raises(FileExistsError, match='exists, .*another --results'):
        stop_at(patch, 1)
        finetune_glue(refused)
    recipe = recipe_for(model_directory, glue, tmp_path, **options, results=str(tmp_path / 'results'))
    assert finetune_glue(recipe) == finetune_glue(recipe)
    with pytest.raises(FileExistsError, match='elsewhere/run.json: exists'):
        finetune_glue(refused)
    assert (elsewhere / 'run.json').read_text() == 'of another run'


def test_command_fine_tunes_and_says_what_comes_next(model_directory, glue, tmp_path):
    values = values_for(model_directory, glue, tmp_path, epochs=1)
    flags = [part for name, value in values.items() for part in ('--' + name.replace('_', '-'), str(value))]
    done = call(ROOT / 'finetune' / 'run_glue.py', 'finetune/recipes/glue.yaml', *flags, '--seeds', '3')
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith('SST-2, seeds 3: dev/accuracy ')
        and f'wrote {tmp_path / "run"}; its scores are in {tmp_path / "run" / "result.json"}' in done.stdout
    )
    assert 'next: python tools/export_model.py' in done.stdout and '| dev/accuracy ' in done.stderr


@pytest.mark.parametrize('script', ['run_glue.py', 'run_squad.py'])
def test_command_says_bad_input_in_one_line_with_status_2(script, tmp_path):
    more = ['--task', 'RTE'] if script == 'run_glue.py' else []
    done = call(ROOT / 'finetune' / script, '--model', tmp_path / 'none', '--output', tmp_path / 'run', *more)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and done.stderr.startswith('error: ')
    assert list(tmp_path.iterdir()) == []


RATES = (0.0001, 0.01, 0.001)


@pytest.fixture(scope='module')
def chosen(model_directory, glue, tmp_path_factory):
    """A run of three learning rates and two seeds."""
    base = tmp_path_factory.mktemp('chosen')
    values = values_for(model_directory, glue, base, task='STS-B', seeds=[1, 2], learning_rates=list(RATES))
    del values['learning_rate']
    return base, values, finetune_glue(fill(GlueRecipe, values))


def test_learning_rate_with_the_best_mean_is_kept(chosen, model_directory, glue, tmp_path):
    base, _, result = chosen
    assert tuple(one.learning_rate for one in result.tried) == RATES
    means = {
        one.learning_rate: np.mean([run.scores['dev/spearman'] for run in one.runs]) for one in result.tried
    }
    best = max(means, key=means.get)
    assert best != RATES[0]  # which would be kept among equals
    assert result.recipe['learning_rate'] == best and result.mean['dev/spearman'] == means[best]
    alone = finetune_glue(
        recipe_for(model_directory, glue, tmp_path, task='STS-B', seeds=[1, 2], learning_rate=best)
    )
    assert without_times(alone).runs == without_times(result).runs
    assert sorted(os.listdir(base / 'run')) == LEFT
    for seed in ('seed-1', 'seed-2'):
        one, other = (contents(place / 'run' / seed)['model.params'] for place in (base, tmp_path))
        assert one == other


def test_result_says_that_the_learning_rate_was_chosen_on_the_scored_set(chosen):
    base, _, result = chosen
    content = (base / 'run' / 'result.json').read_bytes()
    assert FineTuningResult.read(base / 'run' / 'result.json') == result and content == result.to_json()
    said = json.loads(content)['learning_rates']
    assert said['chosen'] == result.recipe['learning_rate'] and said['chosen_on'] == 'dev/spearman'
    assert 'optimistic' in said['note'] and 'optimistic' in summary(result)
    assert all(f'{one.learning_rate:g} ' in summary(result).splitlines()[1] for one in result.tried)
    assert result.seconds == sum(run.seconds for one in result.tried for run in one.runs)


def test_score_that_is_no_number_is_never_the_best():
    def tried(rate, score):
        return RateRuns(rate, (SeedRun(1, (), 1, {'dev/pearson': score}, 1.0),))

    for order in ([tried(1.0, float('nan')), tried(2.0, -3.0)], [tried(2.0, -3.0), tried(1.0, float('nan'))]):
        assert best_rate(order, 'dev/pearson').learning_rate == 2.0
    assert best_rate([tried(3.0, 5.0), tried(1.0, 5.0)], 'dev/pearson').learning_rate == 3.0


@pytest.mark.parametrize('calls', [12 + 5, 4 * 12 + 10], ids=['second seed', 'last rate'])
def test_run_that_chooses_its_learning_rate_resumes(chosen, tmp_path, monkeypatch, calls):
    """It ends in a step; `chosen` is the uninterrupted run."""
    base, values, result = chosen
    values = {**values, 'output': str(tmp_path / 'run')}
    stop_at(monkeypatch, calls)
    with pytest.raises(Interrupted):
        finetune_glue(fill(GlueRecipe, values))
    monkeypatch.undo()
    values['resume'] = True
    with pytest.raises(ValueError, match='other settings of learning_rates'):
        finetune_glue(fill(GlueRecipe, {**values, 'learning_rates': [0.001]}))
    again = finetune_glue(fill(GlueRecipe, values))
    assert without_times(again).runs == without_times(result).runs
    assert [one.learning_rate for one in again.tried] == list(RATES)
    for seed in ('seed-1', 'seed-2'):
        one, other = (contents(place / 'run' / seed)['model.params'] for place in (base, tmp_path))
        assert one == other
    assert sorted(os.listdir(tmp_path)) == ['run']


@pytest.mark.parametrize('moved', range(3))
def test_run_that_is_killed_while_it_keeps_the_chosen_networks_goes_on(chosen, tmp_path, monkeypatch, moved):
    """Killed before the first renaming, after one network, and after both."""
    base, values, result = chosen
    values = {**values, 'output': str(tmp_path / 'run')}
    rename, renamed = os.rename, []

    def stopping(source, target):
        if 'seed' in Path(source).name or Path(source).name == 'run.training':
            if len(renamed) == moved:
                raise Interrupted
            renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(finetune.os, 'rename', stopping)
    with pytest.raises(Interrupted):
        finetune_glue(fill(GlueRecipe, values))
    monkeypatch.undo()
    assert not (tmp_path / 'run').exists()
    again = finetune_glue(fill(GlueRecipe, {**values, 'resume': True}))
    assert without_times(again).runs == without_times(result).runs
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT
    assert sorted(os.listdir(tmp_path)) == ['run']


def test_learning_rates_and_one_learning_rate_exclude_each_other(tmp_path):
    words = ['--task', 'RTE', '--model', tmp_path / 'none', '--output', tmp_path / 'run']
    rates = ['--learning-rates', '2e-5,3e-5']
    done = call('finetune/run_glue.py', *words, *rates, '--learning-rate', '2e-5')
    assert done.returncode == 2 and '--learning-rates and --learning-rate exclude each other' in done.stderr
    (tmp_path / 'both.yaml').write_text('learning_rate: 2.0e-5\nlearning_rates: [2.0e-5, 3.0e-5]\n')
    done = call('finetune/run_glue.py', tmp_path / 'both.yaml', *words)
    assert done.returncode == 2 and 'exclude each other' in done.stderr


def test_flag_for_the_learning_rate_replaces_the_choice_of_the_recipe_file(tmp_path):
    (tmp_path / 'rates.yaml').write_text('learning_rates: [2.0e-5, 3.0e-5]\n')
    words = ['--task', 'RTE', '--model', 'model', '--output', 'run']
    stated = parse(
        GlueRecipe,
        [str(tmp_path / 'rates.yaml'), *words, '--learning-rate', '1e-5'],
        description='',
        example='',
    )
    assert stated.learning_rates == () and stated.learning_rate == 1e-5
    several = parse(
        GlueRecipe,
        [str(ROOT / 'finetune/recipes/glue.yaml'), *words, '--learning-rates', '1e-5,2e-5'],
        description='',
        example='',
    )
    assert [one.learning_rate for one in several.with_rates()] == [1e-5, 2e-5]


@pytest.mark.slow
@needs_horovod
def test_two_workers_choose_the_learning_rate_as_one(chosen, tmp_path):
    """Kept whole: both see the same files at every turn."""
    values = {**chosen[1], 'output': str(tmp_path / 'run'), 'seeds': '1', 'learning_rates': '0.001,0.01'}
    flags = [part for name, value in values.items() for part in ('--' + name.replace('_', '-'), str(value))]
    done = horovodrun(ROOT / 'finetune' / 'run_glue.py', *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT[:-1]
    assert len(FineTuningResult.read(tmp_path / 'run' / 'result.json').tried) == 2


@pytest.mark.slow
@needs_horovod
def test_two_workers_fine_tune_as_one(model_directory, glue, tmp_path):
    more = dict(dropout=0.0, learning_rate=0.001)
    one = finetune_glue(recipe_for(model_directory, glue, tmp_path / 'one', **more))
    values = values_for(model_directory, glue, tmp_path / 'two', **more)
    flags = [part for name, value in values.items() for part in ('--' + name.replace('_', '-'), str(value))]
    done = horovodrun(ROOT / 'finetune' / 'run_glue.py', *flags)
    assert done.returncode == 0, done.stderr
    two = FineTuningResult.read(tmp_path / 'two' / 'run' / 'result.json')
    assert two.origin['workers'] == 2 and two.mean == pytest.approx(one.mean)
    parameters, wanted = (
        read_model(tmp_path / name / 'run' / 'seed-1').parameters for name in ('two', 'one')
    )
    for name, value in wanted.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_commit_is_that_of_the_working_tree_or_none(monkeypatch):
    assert provenance.commit() is None or re.fullmatch('[0-9a-f]{40}[+]?', provenance.commit())
    monkeypatch.setenv('PATH', '')
    assert provenance.commit() is None


def test_gluonnlp_is_asked_for_the_files_that_are_not_there(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(exercise_module, 'get_home_dir', lambda: str(tmp_path))
    monkeypatch.setattr(gluonnlp.data, 'GlueMNLI', lambda segment, root: asked.append((segment, Path(root))))
    home = tmp_path / 'datasets' / 'glue'
    (home / 'MNLI').mkdir(parents=True)
    (home / 'MNLI' / 'train.tsv').write_text('x')
    assert task_directory(find_task('MNLI'), None, Workers()) == home
    assert asked == [
        (name, home / 'MNLI') for name in ('dev_matched', 'dev_mismatched', 'test_matched', 'test_mismatched')
    ]


def test_fetching_without_a_network_is_refused_with_the_way_out(tmp_path, monkeypatch):
    def load(name, root):
        raise OSError('no network')

    monkeypatch.setattr(exercise_module, 'get_home_dir', lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match='train.tsv: .*could not fetch it .*no network.*--data'):
        data_directory(None, 'glue', ['RTE/train.tsv'], load, Workers())
    with pytest.raises(FileNotFoundError, match='no such directory'):
        data_directory(tmp_path / 'nowhere', 'glue', ['RTE/train.tsv'], load, Workers())
