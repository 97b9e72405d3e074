"""Fine-tuning on questions: predictions that have the scores of the run, and windows, versions and
interruptions.
"""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest
from helpers.finetuned import FILES, squad_recipe, write_questions
from helpers.questions import write_squad
from helpers.tiny import network, saved_model, write_saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.finetuning import objective
from gluon_optbert.finetuning.objective import start_parameters
from gluon_optbert.finetuning.recipes import finetune_squad, prepare_squad
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.tasks.metrics import normalised, squad_v1, squad_v2
from gluon_optbert.tasks.squad import read_questions
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import Terminated


@pytest.mark.parametrize('version', ['1.1', '2.0'])
def test_squad_leaves_predictions_that_have_its_scores(version, model_directory, tmp_path):
    write_questions(tmp_path / 'squad')
    result = finetune_squad(squad_recipe(model_directory, tmp_path, version=version))
    directory = tmp_path / 'run' / 'seed-1'
    files = {path.name: json.loads(path.read_text()) for path in directory.glob('*.json')}
    extra = {'predictions.json', 'nbest.json'} | (
        {'answers.json', 'null_odds.json'} if version == '2.0' else set()
    )
    assert set(os.listdir(directory)) == FILES | extra
    data = json.loads((tmp_path / 'squad' / f'dev-v{version}.json').read_text())['data']
    asked = {
        qa['id']: (paragraph['context'], [answer['text'] for answer in qa['answers']])
        for article in data
        for paragraph in article['paragraphs']
        for qa in paragraph['qas']
    }
    texts = {key: answers for key, (_, answers) in asked.items()}
    assert all(set(files[name]) == set(asked) for name in extra)
    assert all(text in asked[key][0] for key, text in files['predictions.json'].items())
    official = (
        squad_v1(texts, files['predictions.json'])
        if version == '1.1'
        else squad_v2(texts, files['predictions.json'])
    )
    assert {
        f'dev/{name}': value for name, value in official.items() if 'total' not in name
    }.items() <= result.mean.items()
    if version == '2.0':
        best = squad_v2(texts, files['answers.json'], files['null_odds.json'])
        assert all(
            result.mean[f'dev/{name}'] == value for name, value in best.items() if name.startswith('best')
        )
        assert result.mean['dev/best_f1'] >= result.mean['dev/f1']
    assert result.samples['dev'] == 11 < result.samples['dev_windows'] and result.metric == 'dev/f1'
    empty = sum(not any(map(normalised, answers)) for answers in texts.values())  # 'a' is an article
    share = pytest.approx(100 * empty / len(texts))
    names = ('exact', 'f1', 'best_exact', 'best_f1', 'exact_at_best_f1')
    assert result.majority == (
        {'dev/exact_match': share, 'dev/f1': 0}
        if version == '1.1'
        else {f'dev/{name}': share for name in names}
    )
    assert read_model(directory).head == Head('question_answering', (), f'SQuAD v{version}')
    assert export(read_model(directory), tmp_path / 'deploy')['relative_difference']['scores'] < 1e-5
    questions = {
        asked.id: (asked.text, asked.context)
        for asked in read_questions(tmp_path / 'squad' / f'dev-v{version}.json')
    }
    predicted = dict(zip(questions, Predictor(tmp_path / 'deploy').predict(questions.values(), batch_size=3)))
    assert {key: answer.text for key, answer in predicted.items()} == files['predictions.json']
    for key, answer in predicted.items():
        same = next(entry for entry in files['nbest.json'][key] if entry['text'] == answer.text)
        found = dataclasses.asdict(answer)
        assert found.pop('text') == same.pop('text')
        assert found == pytest.approx(same, rel=1e-4, abs=1e-6)  # float32, other batches
    if version == '2.0':
        odds = files['null_odds.json']
        threshold = float(np.mean(sorted(odds.values())[4:6]))
        predicted = dict(
            zip(
                questions,
                Predictor(tmp_path / 'deploy', null_threshold=threshold).predict(questions.values()),
            )
        )
        assert {key: answer.text for key, answer in predicted.items()} == {
            key: '' if odds[key] > threshold else text for key, text in files['answers.json'].items()
        }
        assert sum(not answer.text for answer in predicted.values()) == 6


def test_run_that_is_stopped_at_its_last_step_goes_on_to_its_predictions(
    model_directory, tmp_path, monkeypatch
):
    write_questions(tmp_path / 'squad')
    honest = objective.FineTuning.remember

    def remember(self, progress, measured, step):
        progress = honest(self, progress, measured, step)
        if len(progress.epochs) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return progress

    monkeypatch.setattr(objective.FineTuning, 'remember', remember)
    with pytest.raises(Terminated):
        finetune_squad(squad_recipe(model_directory, tmp_path))
    monkeypatch.undo()
    result = finetune_squad(squad_recipe(model_directory, tmp_path, resume=True))
    assert len(result.runs[0].epochs) == 2
    assert len(json.loads((tmp_path / 'run' / 'seed-1' / 'predictions.json').read_text())) == 11


def test_squad_learns_where_answers_are(tmp_path):
    write_questions(tmp_path / 'squad')
    model = write_saved_model(tmp_path / 'model', architecture=network((2, 8, 8, 32), (2, 8, 8, 32), h=16))
    result = finetune_squad(squad_recipe(model, tmp_path, epochs=40, dropout=0.0, learning_rate=0.005))
    first, *_, last = [
        json.loads(line)['loss']
        for line in (tmp_path / 'run/seed-1/metrics.jsonl').read_text().splitlines()
        if '"loss"' in line
    ]
    assert last < 0.6 * first and result.runs[0].kept_epoch == 40


def test_version_1_refuses_questions_without_an_answer(model_directory, tmp_path):
    write_questions(tmp_path / 'squad')
    (tmp_path / 'squad' / 'dev-v2.0.json').rename(tmp_path / 'squad' / 'dev-v1.1.json')
    with pytest.raises(
        ValueError, match='4 questions of dev-v1.1.json have no answer, the first is dev0; --version 2.0'
    ):
        finetune_squad(squad_recipe(model_directory, tmp_path))
    assert sorted(os.listdir(tmp_path)) == ['squad']


def misplace(directory, left):
    """Have no answer of the training questions of version 1.1 stand where it says, except those of some."""
    path = directory / 'train-v1.1.json'
    asked = [
        one if one.id in left else dataclasses.replace(one, answers=((f'{one.answers[0][0]}?', 0),))
        for one in read_questions(path)
    ]
    write_squad(path, asked, '1.1')


def test_questions_whose_answers_are_misplaced_are_not_counted(model_directory, tmp_path):
    misplace(write_questions(tmp_path / 'squad'), ('train3', 'train4'))
    exercise = prepare_squad(squad_recipe(model_directory, tmp_path), saved_model(), workers=Workers())
    assert exercise.samples['train'] == 2 <= exercise.samples['train_windows'] == len(exercise.train)
    assert exercise.samples['dev'] == 11


def test_data_without_an_answer_to_train_on_is_refused(model_directory, tmp_path):
    misplace(write_questions(tmp_path / 'squad'), ())
    with pytest.raises(
        ValueError, match='train-v1.1.json: none of the 30 questions has an answer that stands'
    ):
        finetune_squad(squad_recipe(model_directory, tmp_path))
    assert sorted(os.listdir(tmp_path)) == ['squad']


def test_reader_without_a_task_goes_on_as_that_of_the_version(tmp_path):
    """An imported checkpoint does not say which version of SQuAD it was fine-tuned on."""
    write_questions(tmp_path / 'squad')
    head, start = Head('question_answering'), saved_model()
    unnamed = dataclasses.replace(start, parameters=start_parameters(start, head, seed=3), head=head)
    write_model(tmp_path / 'model', unnamed)
    finetune_squad(squad_recipe(tmp_path / 'model', tmp_path, epochs=1, learning_rate=1e-6, dropout=0.0))
    left = read_model(tmp_path / 'run' / 'seed-1')
    assert left.head == Head('question_answering', (), 'SQuAD v1.1')
    distance = np.abs(left.parameters['task.weight'] - unnamed.parameters['task.weight']).max()
    assert distance < 1e-4  # a few steps of 1e-6 from the head that came in


def test_squad_recipe_out_of_range_is_refused_by_name(tmp_path):
    with pytest.raises(RecipeError) as error:
        squad_recipe('model', tmp_path, stride=0, n_best=0, max_length=6)
    assert len(error.value.problems) == 3
