"""Fine-tuning that was interrupted goes on and comes to the same; what is finished stays as it is."""

import json
import os
from pathlib import Path

import pytest
from helpers.finetuned import LEFT, Interrupted, recipe_for, stop_at, values_for, without_times
from helpers.pruned import records
from helpers.tiny import contents, run

from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult
from gluon_optbert.runs import machine as provenance


def test_result_has_the_commits_of_a_run_that_was_resumed(model_directory, glue, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, 'commit', lambda: 'a' * 40)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 10)
        finetune_glue(recipe_for(model_directory, glue, tmp_path))
    monkeypatch.setattr(provenance, 'commit', lambda: 'b' * 40)
    result = finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True))
    assert result.origin['commit'] == 'b' * 40 and result.origin['commits'] == ['a' * 40, 'b' * 40]
    assert FineTuningResult.read(tmp_path / 'run' / 'result.json') == result


def test_resumed_run_equals_the_uninterrupted_one(model_directory, glue, tmp_path, monkeypatch):
    options = dict(seeds=[1, 2], select='best')
    whole = finetune_glue(recipe_for(model_directory, glue, tmp_path, **options))
    (tmp_path / 'run').rename(tmp_path / 'whole')
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
    assert result.recipe == whole.recipe and without_times(result) == without_times(whole)
    found, wanted = (contents(tmp_path / name) for name in ('run', 'whole'))
    timed = ('result.json', 'progress.json', 'metrics.jsonl', 'manifest.json')
    assert found.keys() == wanted.keys() and 'seed-2/recipe.yaml' in found
    assert [name for name in found if found[name] != wanted[name] and Path(name).name not in timed] == []
    for seed in ('seed-1', 'seed-2'):
        assert records(tmp_path / 'run' / seed) == records(tmp_path / 'whole' / seed)
    assert sorted(os.listdir(tmp_path)) == ['run', 'whole']
    assert finetune_glue(recipe_for(model_directory, glue, tmp_path, resume=True, **options)) == result


def test_run_that_ends_after_its_first_network_goes_on(finished, model_directory, glue, tmp_path):
    """A process of its own, so that nothing is tidied up on the way."""
    program = (
        'import json, os, sys\nfrom gluon_optbert.finetuning import finetune\n'
        'from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue\n'
        'from gluon_optbert.network import saved_model\n'
        'from gluon_optbert.runs.recipe import fill\n'
        'finetune.write_model = lambda *a, **k: (saved_model.write_model(*a, **k), os._exit(9))\n'
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
