"""Data of tasks that are not there are fetched by GluonNLP."""

from pathlib import Path

import gluonnlp
import pytest

from gluon_optbert.finetuning import objective as exercise_module
from gluon_optbert.finetuning.objective import data_directory
from gluon_optbert.finetuning.recipes import task_directory
from gluon_optbert.tasks.task import find_task
from gluon_optbert.training.distributed import Workers


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
