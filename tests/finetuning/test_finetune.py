"""Fine-tuning: what runs leave, what they refuse, and that nothing depends on batches or workers."""

import dataclasses
import logging
import os
import re
from pathlib import Path

import gluonnlp
import mxnet as mx
import numpy as np
import pytest
from helpers.commands import call
from helpers.finetuned import FILES, LEFT, flags_of, recipe_for, sentences, values_for
from helpers.tiny import ROOT, network, random_alphas, saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.finetuning import objective
from gluon_optbert.finetuning.objective import data_directory, predict, start_parameters
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue, prepare_glue, task_directory
from gluon_optbert.finetuning.result import FineTuningResult, SeedRun
from gluon_optbert.network.losses import TaskLoss
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.tasks.features import make_reader
from gluon_optbert.tasks.task import find_task
from gluon_optbert.training.distributed import Workers


def test_run_leaves_a_model_directory_for_each_seed_and_one_result(finished):
    base, result = finished
    assert os.listdir(base) == ['run']
    assert sorted(os.listdir(base / 'run')) == LEFT
    for seed in (1, 2):
        assert set(os.listdir(base / 'run' / f'seed-{seed}')) == FILES | {'SST-2.tsv'}
        saved = read_model(base / 'run' / f'seed-{seed}')
        assert saved.head == Head('classification', ('0', '1'), 'SST-2')
        assert SeedRun.from_dict(saved.progress.to_dict()) == result.runs[seed - 1]
        header, *rows = (base / 'run' / f'seed-{seed}' / 'SST-2.tsv').read_text().splitlines()
        assert header == 'index\tprediction' and len(rows) == 7
        assert all(re.fullmatch(rf'{i}\t[01]', row) for i, row in enumerate(rows))
    assert FineTuningResult.read(base / 'run' / 'result.json') == result


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
    more = {'epochs': 4, 'limit': 16, 'select': 'best', 'checkpoint_every': 0}
    recipe = recipe_for(model_directory, glue, tmp_path, **more)
    result = finetune_glue(recipe)
    assert result.runs[0].kept_epoch == 2 and result.mean == {'dev/accuracy': 30.0}
    saved = read_model(tmp_path / 'run' / 'seed-1')
    features = prepare_glue(recipe, saved, workers=Workers()).heldout['dev']
    kept = build(saved.architecture, saved.parameters, head=saved.head)
    predictions = predict(kept, features, Workers(), tokens=99)
    # batches of another shape sum in another order
    np.testing.assert_allclose(predictions, seen[1], atol=1e-6)
    assert np.abs(predictions - seen[3]).max() > 1e-3


def same(start, saved):
    """Whether parameters to start with are those of a model, but for a task's head that it lacks."""
    return all((start[name] == saved.parameters[name]).all() for name in start if name in saved.parameters)


def test_start_keeps_the_encoder_and_draws_the_head():
    saved, head = saved_model(), Head('question_answering')
    start, other = (start_parameters(saved, head, seed=seed) for seed in (1, 2))
    assert 'pooler.weight' not in start and 'decoder.0.weight' not in start and same(start, saved)
    weight = start['task.weight']
    assert weight.std() == pytest.approx(0.02, rel=0.5) and (weight != other['task.weight']).all()
    assert not start['task.bias'].any()
    assert 'pooler.weight' in start_parameters(saved, Head('regression'), seed=1)
    unnamed = dataclasses.replace(saved, parameters=start, head=head)  # as an imported checkpoint
    assert same(start_parameters(unnamed, Head('question_answering', (), 'SQuAD v1.1'), seed=2), unnamed)


def test_head_of_another_task_is_refused_and_the_same_one_goes_on(finished, glue, tmp_path):
    """An imported checkpoint may not say what it was fine-tuned on."""
    start = finished[0] / 'run' / 'seed-1'
    message = 'has the head of SST-2 with the labels 0, 1, and MNLI with the labels .*neutral wants another'
    with pytest.raises(ValueError, match=message):
        finetune_glue(recipe_for(start, glue, tmp_path, task='MNLI'))
    assert list(tmp_path.iterdir()) == []
    saved = read_model(start)
    unnamed = dataclasses.replace(saved, head=Head('classification', saved.head.labels))
    for own in (saved, unnamed):
        assert same(start_parameters(own, saved.head, seed=5), saved)
    write_model(tmp_path / 'unnamed', unnamed)
    finetune_glue(recipe_for(tmp_path / 'unnamed', glue, tmp_path, epochs=1, limit=8))
    left = read_model(tmp_path / 'run' / 'seed-1').head
    assert (left, left.names) == (saved.head, saved.head.names) and left.task == 'SST-2'


@pytest.mark.parametrize(
    'own, wanted, rows',
    [
        (('0', '1'), Head('classification', ('1', '0'), 'SST-2'), [1, 0]),
        (('NEGATIVE', 'POSITIVE'), Head('classification', ('0', '1'), '', ('negative', 'positive')), [0, 1]),
        (('LABEL_0', 'LABEL_1'), Head('classification', ('1', '0')), [1, 0]),
        (('positive', 'negative'), Head('classification', ('bad', 'good')), None),
        (('a', 'A'), Head('classification', ('A', 'a')), [1, 0]),
    ],
)
def test_labels_are_matched_by_name_or_refused_with_the_flag(finished, own, wanted, rows):
    saved = dataclasses.replace(
        read_model(finished[0] / 'run' / 'seed-1'), head=Head('classification', own), vocabulary=None
    )
    if rows is None:
        with pytest.raises(ValueError, match=f'--labels {own[0]}=…,{own[1]}=… says which of '):
            start_parameters(saved, wanted, seed=1)
        of_tasks = dataclasses.replace(saved, head=Head('classification', own, 'RTE'))
        with pytest.raises(ValueError, match='wants another; start from the network'):  # no flag helps
            start_parameters(of_tasks, dataclasses.replace(wanted, task='SST-2'), seed=1)
        return
    start = start_parameters(saved, wanted, seed=1)
    for name in ('task.weight', 'task.bias'):
        np.testing.assert_array_equal(start[name], saved.parameters[name][rows])


def test_other_names_of_the_labels_are_said_once_a_run(finished, glue, tmp_path, caplog):
    saved = read_model(finished[0] / 'run' / 'seed-1')
    head = Head('classification', ('NEGATIVE', 'POSITIVE'))
    write_model(tmp_path / 'imported', dataclasses.replace(saved, head=head))
    finetune_glue(recipe_for(tmp_path / 'imported', glue, tmp_path, epochs=1, limit=8, seeds=[1, 2]))
    assert [line for line in caplog.messages if 'NEGATIVE is 0, POSITIVE is 1' in line] == caplog.messages[:1]


def test_gates_are_folded_first_and_one_token_type_reads_no_pairs(glue, tmp_path):
    plain = dataclasses.replace(network((1, 2, 3, 4), (2, 1, 1, 0), h=6), token_types=1)
    write_model(tmp_path / 'gated', saved_model(plain, alphas=random_alphas(plain)))
    finetune_glue(recipe_for(tmp_path / 'gated', glue, tmp_path, epochs=1, limit=8))
    assert read_model(tmp_path / 'run' / 'seed-1').alphas is None
    with pytest.raises(ValueError, match='pairs of texts, and the network has one token type'):
        finetune_glue(recipe_for(tmp_path / 'gated', glue, tmp_path / 'pairs', task='STS-B'))


def test_sets_that_are_not_there_are_left_out_and_named(model_directory, glue, tmp_path, caplog):
    recipe = recipe_for(model_directory, glue, tmp_path, task='mnli', limit=10, evaluation_limit=5)
    with caplog.at_level(logging.INFO):
        exercise = prepare_glue(recipe, read_model(model_directory), workers=Workers())
    assert exercise.samples == {'train': 10, 'dev_matched': 5} and not exercise.test
    assert 'dev_mismatched.tsv' in caplog.text and [*exercise.majority] == ['dev_matched/accuracy']


def test_passes_give_what_one_pass_gives(model_directory, glue, tmp_path):
    """Sums of float32 in another order; a few steps of Adam later they agree this well."""
    found, more = [], {'dropout': 0.0, 'learning_rate': 0.001, 'epochs': 1, 'limit': 20}
    for accumulate in (1, 2):
        place = tmp_path / str(accumulate)
        finetune_glue(recipe_for(model_directory, glue, place, accumulate=accumulate, **more))
        found.append(read_model(place / 'run' / 'seed-1').parameters)
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('head', [Head('classification', ('0', '1')), Head('question_answering')])
def test_scores_do_not_depend_on_the_batch(head):
    saved = saved_model()
    model = build(saved.architecture, head=head, initial_std=0.3)
    texts = tuple((text,) for text, _ in sentences(9, 3))
    features = make_reader(saved.vocabulary, max_length=16)(texts)
    one, other = (predict(model, features, Workers(), tokens=tokens) for tokens in (1, 10**6))
    np.testing.assert_allclose(one, other, atol=1e-5)  # float32 sums in another order


def loss_of(head, scores, labels, weights, valid):
    arrays = [mx.nd.array(value) for value in (scores, labels, weights, valid)]
    return float(TaskLoss(head)(*arrays).asscalar())


def test_losses_by_hand():
    scores, regression = np.array([[1.0, 2.0], [0.5, -0.5]]), Head('regression')
    entropy = [np.log(1 + np.exp(-1.0)), np.log(1 + np.exp(1.0))]
    for weights, wanted, error in (([1, 1], sum(entropy), 4.25), ([1, 0], entropy[0], 4.0)):
        found = loss_of(Head('classification', ('a', 'b')), scores, [1, 1], weights, [3, 3])
        assert found == pytest.approx(wanted, rel=1e-5)
        assert loss_of(regression, [[1.0], [4.0]], [3.0, 4.5], weights, [3, 3]) == pytest.approx(error)


def test_losses_of_several_labels_and_of_tokens_are_means_of_an_instance():
    """The first instance is counted; of its tokens the last has no label, and neither has padding."""
    scores, several = np.array([[1.0, -2.0], [5.0, 5.0]]), Head('multi_label', ('a', 'b'))
    wanted = (np.log(1 + np.exp(-1.0)) + np.log(1 + np.exp(-2.0))) / 2
    assert loss_of(several, scores, [[1, 0], [1, 1]], [1, 0], [3, 3]) == pytest.approx(wanted, rel=1e-5)
    tags, scores = (
        Head('token_classification', ('O', 'B')),
        np.array([[[1.0, 2.0], [0.5, -0.5], [9.0, 0.0]]] * 2),
    )
    wanted = (np.log(1 + np.exp(1.0)) + np.log(1 + np.exp(1.0))) / 2
    assert loss_of(tags, scores, [[0, 1, -1], [-1] * 3], [1, 1], [3, 3]) == pytest.approx(wanted, rel=1e-5)
    assert loss_of(tags, scores, [[0, 1, -1]] * 2, [1, 0], [3, 3]) == pytest.approx(wanted, rel=1e-5)


def test_loss_of_answers_leaves_padding_and_instances_without_weight_out():
    scores, head = np.random.RandomState(0).standard_normal((2, 4, 2)).astype('f'), Head('question_answering')
    starts, ends = (np.exp(scores[0, :3, i]) / np.exp(scores[0, :3, i]).sum() for i in (0, 1))
    wanted = -(np.log(starts[1]) + np.log(ends[2])) / 2
    assert loss_of(head, scores, [[1, 2], [0, 3]], [1, 0], [3, 4]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    'change, error, named',
    [
        ({'model': 'nowhere'}, FileNotFoundError, 'nowhere'),
        ({'task': 'RTE'}, FileNotFoundError, 'RTE/train.tsv: no such file'),
        ({'max_length': 17}, ValueError, 'max_length is 17, and the network has 16 positions'),
        ({'batch_size': 9, 'accumulate': 2}, ValueError, 'batch_size 9 does not divide'),
        ({'learning_rates': [1e-5, 1e-5]}, RecipeError, 'learning_rates must be different'),
        ({'seeds': []}, RecipeError, 'seeds must be one or more'),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    model_directory, glue, tmp_path, change, error, named
):
    with pytest.raises(error, match=named):
        finetune_glue(fill(GlueRecipe, {**values_for(model_directory, glue, tmp_path), **change}))
    assert list(tmp_path.iterdir()) == []


def test_command_fine_tunes_and_says_what_comes_next(model_directory, glue, tmp_path):
    flags = flags_of(values_for(model_directory, glue, tmp_path, epochs=1, limit=8))
    done = call(ROOT / 'finetune' / 'run_glue.py', 'finetune/recipes/glue.yaml', *flags, '--seeds', '3')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('SST-2, seeds 3: dev/accuracy ')
    assert f'wrote {tmp_path / "run"}; its scores are in {tmp_path / "run" / "result.json"}' in done.stdout
    poor = '*' in done.stdout  # after one epoch of a tiny network
    wanted = '--epochs 3 --output ' if poor else 'next, to prune it for its task: python finetune/'
    assert wanted in done.stdout and '| dev/accuracy ' in done.stderr


# Data that are not there


def test_gluonnlp_is_asked_for_the_files_that_are_not_there(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(objective, 'get_home_dir', lambda: str(tmp_path))
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

    monkeypatch.setattr(objective, 'get_home_dir', lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match='train.tsv: .*could not fetch it .*no network.*--data'):
        data_directory(None, 'glue', ['RTE/train.tsv'], load, Workers())
    with pytest.raises(FileNotFoundError, match='no such directory'):
        data_directory(tmp_path / 'nowhere', 'glue', ['RTE/train.tsv'], load, Workers())
