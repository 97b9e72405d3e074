"""Fine-tuning that was interrupted goes on and comes to the same; what is finished stays as it is."""

import os
import types
from pathlib import Path

import pytest
from helpers.finetuned import recipe_for, without_times
from helpers.pruned import before_step, interrupted_at
from helpers.tiny import Interrupted, contents, records

from gluon_optbert.commands import training
from gluon_optbert.finetuning import finetune
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult
from gluon_optbert.network.saved_model import write_model
from gluon_optbert.runs import machine as provenance


def test_resumed_run_with_a_teacher_equals_the_uninterrupted_one(
    finished, model_directory, glue, tmp_path, monkeypatch
):
    teacher = str(finished[0] / 'run' / 'seed-1')
    settings = {'teacher': teacher, 'seeds': [1, 2], 'select': 'best', 'limit': 24}

    def tune(**more):
        return finetune_glue(recipe_for(model_directory, glue, tmp_path, **settings, **more))

    def stopping(*args, **more):
        write_model(*args, **more)
        raise Interrupted

    whole = tune()
    (tmp_path / 'run').rename(tmp_path / 'whole')
    with monkeypatch.context() as patch:
        patch.setattr(provenance, 'commit', lambda: 'a' * 40)
        with monkeypatch.context() as at_network, pytest.raises(Interrupted):
            at_network.setattr(finetune, 'write_model', stopping)
            tune()
        with interrupted_at(5):  # of the second seed
            tune(resume=True)
    with pytest.raises(FileExistsError, match='--resume'):
        tune()
    with pytest.raises(ValueError, match='other settings of epochs'):
        tune(resume=True, epochs=3)
    assert not (tmp_path / 'run').exists()
    monkeypatch.setattr(provenance, 'commit', lambda: 'b' * 40)
    result = tune(resume=True)
    assert result.origin['commit'] == 'b' * 40 and result.origin['commits'] == ['a' * 40, 'b' * 40]
    assert FineTuningResult.read(tmp_path / 'run' / 'result.json') == result
    assert result.recipe == whole.recipe and without_times(result) == without_times(whole)
    found, wanted = (contents(tmp_path / name) for name in ('run', 'whole'))
    differ = ('result.json', 'progress.json', 'metrics.jsonl', 'manifest.json', 'origin.json')
    assert found.keys() == wanted.keys() and 'seed-2/recipe.yaml' in found
    assert [name for name in found if found[name] != wanted[name] and Path(name).name not in differ] == []
    for seed in ('seed-1', 'seed-2'):
        assert records(tmp_path / 'run' / seed) == records(tmp_path / 'whole' / seed)
    assert sorted(os.listdir(tmp_path)) == ['run', 'whole']
    assert tune(resume=True) == result


def test_a_copy_of_the_result_goes_where_it_is_asked_for_and_replaces_nothing(
    model_directory, glue, tmp_path
):
    """Refused before the run trains; and when it is finished, unless the copy is its own."""

    def tune(results=None, **more):
        return finetune_glue(recipe_for(model_directory, glue, tmp_path, epochs=1, results=results, **more))

    elsewhere, copies = (str(tmp_path / name) for name in ('elsewhere', 'results'))
    taken = tmp_path / 'elsewhere' / 'run.json'
    taken.parent.mkdir()
    taken.write_text('of another run')
    with interrupted_at(4):
        tune()
    with before_step(1, pytest.fail), pytest.raises(FileExistsError, match='exists, .*another --results'):
        tune(elsewhere, resume=True)
    assert tune(copies, resume=True) == tune(copies, resume=True)
    copy = tmp_path / 'results' / 'run.json'
    assert copy.read_bytes() == (tmp_path / 'run' / 'result.json').read_bytes()
    with pytest.raises(FileExistsError, match='elsewhere/run.json: exists'):
        tune(elsewhere, resume=True)
    assert taken.read_text() == 'of another run'
    for results, error, says in (
        (copies, FileExistsError, 'run.json: exists'),
        (str(copy / 'below'), FileNotFoundError, 'run.json is a file; give another --results$'),
    ):
        with pytest.raises(error, match=says):
            tune(results, output=str(tmp_path / 'other' / 'run'))
        assert not (tmp_path / 'other').exists()


def test_finished_run_is_told_where_the_network_that_it_began_with_is_gone(tmp_path, monkeypatch, capsys):
    recipe = types.SimpleNamespace(output=tmp_path / 'out', seeds=(1,), model=tmp_path / 'gone', epochs=1)
    result = types.SimpleNamespace(metric='dev/accuracy', mean={'dev/accuracy': 80.0}, majority=None)
    for place, said in (('result.summary', 'accuracy 80'), ('recipe.written', 'wrote it')):
        monkeypatch.setattr(f'gluon_optbert.finetuning.{place}', lambda _, said=said: said)
    training._finetune(recipe, lambda recipe, workers: result, None)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ['accuracy 80', 'wrote it'] and str(tmp_path / 'out' / 'seed-1') in said[2]
