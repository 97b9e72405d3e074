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
from helpers.tiny import saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.finetuning import objective
from gluon_optbert.finetuning.recipes import finetune_squad, prepare_squad
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.failures import Terminated
from gluon_optbert.runs.progress import marked
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.tasks.metrics import normalised, squad_v1, squad_v2
from gluon_optbert.tasks.squad import read_questions
from gluon_optbert.training.distributed import Workers


@pytest.fixture(scope='module')
def questions(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp('questions') / 'squad')


def recipe_in(questions, model, base, **more):
    return squad_recipe(model, base, **{'data': str(questions), **more})


@pytest.mark.parametrize('version', ['1.1', '2.0'])
def test_squad_leaves_predictions_that_have_its_scores(version, questions, model_directory, tmp_path):
    result = finetune_squad(recipe_in(questions, model_directory, tmp_path, version=version))
    directory, second = tmp_path / 'run' / 'seed-1', version == '2.0'
    files = {path.name: json.loads(path.read_text()) for path in directory.glob('*.json')}
    extra = {'predictions.json', 'nbest.json', *(('answers.json', 'null_odds.json') if second else ())}
    assert set(os.listdir(directory)) == FILES | extra
    asked = {one.id: one for one in read_questions(questions / f'dev-v{version}.json')}
    texts = {key: [text for text, _ in one.answers] for key, one in asked.items()}
    assert all(set(files[name]) == set(asked) for name in extra)
    assert all(text in asked[key].context for key, text in files['predictions.json'].items())
    official = (squad_v2 if second else squad_v1)(texts, files['predictions.json'])
    best = squad_v2(texts, files['answers.json'], files['null_odds.json']) if second else {}
    official.update((name, value) for name, value in best.items() if name.startswith('best'))
    wanted = {f'dev/{name}': value for name, value in official.items() if 'total' not in name}
    assert wanted.items() <= result.mean.items()
    assert not second or result.mean['dev/best_f1'] >= result.mean['dev/f1']
    assert result.samples['dev'] == 11 < result.samples['dev_windows'] and result.metric == 'dev/f1'
    scores = squad_v2 if second else squad_v1
    f1 = [scores({key: texts[key]}, files['predictions.json'])['f1'] for key in texts]
    (run,) = result.runs
    assert run.right == {'dev': marked(np.array(f1) / 100)} and len(set(run.right['dev'])) > 1
    empty = sum(not any(map(normalised, answers)) for answers in texts.values())  # 'a' is an article
    share = pytest.approx(100 * empty / len(texts))
    names = ('exact', 'f1', 'best_exact', 'best_f1', 'exact_at_best_f1')
    majority = {f'dev/{name}': share for name in names}
    assert result.majority == (majority if second else {'dev/exact_match': share, 'dev/f1': 0})
    assert read_model(directory).head == Head('question_answering', (), f'SQuAD v{version}')

    assert export(read_model(directory), tmp_path / 'deploy')['relative_difference']['scores'] < 1e-5
    pairs = [(one.text, one.context) for one in asked.values()]

    def predicted(**more):
        return dict(zip(asked, Predictor(tmp_path / 'deploy', **more).predict(pairs, batch_size=3)))

    assert {key: answer.text for key, answer in predicted().items()} == files['predictions.json']
    for key, answer in predicted().items():
        same = next(entry for entry in files['nbest.json'][key] if entry['text'] == answer.text)
        found = dataclasses.asdict(answer)
        assert found.pop('text') == same.pop('text')
        assert found == pytest.approx(same, rel=1e-4, abs=1e-6)  # float32, other batches
    if second:
        odds = files['null_odds.json']
        threshold = float(np.mean(sorted(odds.values())[4:6]))
        found = {key: answer.text for key, answer in predicted(null_threshold=threshold).items()}
        texts = files['answers.json'].items()
        assert found == {key: '' if odds[key] > threshold else text for key, text in texts}
        assert sum(not text for text in found.values()) == 6


def test_a_threshold_of_no_answer_is_refused_where_every_question_has_one(
    questions, model_directory, tmp_path
):
    settings = {'null_threshold': 1.0}
    assert recipe_in(questions, model_directory, tmp_path, version='2.0', **settings).null_threshold == 1
    with pytest.raises(ValueError, match='null_threshold is about version 2.0'):
        recipe_in(questions, model_directory, tmp_path, version='1.1', **settings)


def test_run_that_is_stopped_at_its_last_step_goes_on_to_its_predictions(
    questions, model_directory, tmp_path, monkeypatch
):
    honest = objective.FineTuning.remember

    def remember(self, *args):
        os.kill(os.getpid(), signal.SIGTERM)
        return honest(self, *args)

    with monkeypatch.context() as patch, pytest.raises(Terminated):
        patch.setattr(objective.FineTuning, 'remember', remember)
        finetune_squad(recipe_in(questions, model_directory, tmp_path, epochs=1))
    result = finetune_squad(recipe_in(questions, model_directory, tmp_path, epochs=1, resume=True))
    assert len(result.runs[0].epochs) == 1
    assert len(json.loads((tmp_path / 'run' / 'seed-1' / 'predictions.json').read_text())) == 11


def misplace(directory, left):
    """Have no answer of the training questions of version 1.1 stand where it says, except those of some."""
    path = directory / 'train-v1.1.json'
    asked = [
        one if one.id in left else dataclasses.replace(one, answers=((f'{one.answers[0][0]}?', 0),))
        for one in read_questions(path)
    ]
    write_squad(path, asked, '1.1')


def test_questions_without_an_answer_that_stands_in_its_place_are_not_learnt(model_directory, tmp_path):
    def prepared(**more):
        recipe = squad_recipe(model_directory, tmp_path, **more)
        return prepare_squad(recipe, saved_model(), workers=Workers())

    home = write_questions(tmp_path / 'squad')
    misplace(home, ('train3', 'train4'))
    exercise = prepared()
    assert exercise.samples['train'] == 2 <= exercise.samples['train_windows'] == len(exercise.train)
    assert exercise.samples['dev'] == 11
    misplace(home, ())
    with pytest.raises(
        ValueError, match='train-v1.1.json: none of the 30 questions has an answer that stands'
    ):
        prepared()
    (home / 'dev-v2.0.json').rename(home / 'dev-v1.1.json')
    message = '4 questions of dev-v1.1.json have no answer, the first is dev0; --version 2.0'
    with pytest.raises(ValueError, match=message):
        prepared()


def test_squad_recipe_out_of_range_is_refused_by_name(tmp_path):
    for wrong in ({'stride': 0, 'n_best': 0}, {'max_length': 6}):
        with pytest.raises(RecipeError) as error:
            squad_recipe('model', tmp_path, **wrong)
        assert len(error.value.problems) == len(wrong) and all(map(str(error.value).count, wrong))
