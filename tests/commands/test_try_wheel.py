"""tools/setup/try_wheel.py: a wheel that lacks a file is refused; all of the package is in it."""

import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.commands import module_at
from helpers.tiny import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / '.git').exists() or importlib.util.find_spec('setuptools') is None,
    reason='no git checkout, or nothing that builds a wheel',
)


@pytest.fixture
def tool():
    return module_at('tools/setup/try_wheel.py')


@pytest.fixture
def trial(tool, tmp_path):
    """A trial with the interpreter of the tests, so that nothing is installed."""
    trial = tool.Trial(tmp_path / 'trial')
    trial.place.mkdir()
    trial.bin = Path(sys.executable).parent
    return trial


def test_wheel_has_recipes_tables_and_descriptions(trial):
    with zipfile.ZipFile(trial.build()) as wheel:
        names = wheel.namelist()
    for name in (
        'recipes/pretrain/small.yaml',
        'architecture/paper/table_08.json',
        'tasks/descriptions/rte.json',
    ):
        assert any(one.lower() == f'gluon_optbert/{name}' for one in names), name
    assert not [name for name in names if name.startswith(('tests/', 'tools/', 'pretrain/', 'finetune/'))]


def test_wheel_that_lacks_a_file_is_refused(tool, trial, tmp_path, monkeypatch):
    names = tool.project_files()
    tool.copy_project(tmp_path / 'root')
    setup = tmp_path / 'root' / 'setup.py'
    text = setup.read_text(encoding='utf-8')
    assert "'recipes/*/*.yaml'" in text
    setup.write_text(text.replace("'recipes/*/*.yaml'", "'recipes/*.yaml'"), encoding='utf-8')
    monkeypatch.setattr(tool, 'ROOT', tmp_path / 'root')
    monkeypatch.setattr(tool, 'project_files', lambda: names)
    with pytest.raises(tool.Failed, match='lacks .*gluon_optbert/recipes/pretrain/small.yaml'):
        trial.build()


def test_program_that_fails_is_said_with_its_words(tool, tmp_path):
    with pytest.raises(tool.Failed, match='all went wrong\n.* exit status 3'):
        tool.call(sys.executable, '-c', 'print("all went wrong"); raise SystemExit(3)', cwd=tmp_path)


def test_programs_see_nothing_of_this_environment(tool, tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    said = tool.call(sys.executable, '-c', 'import os; print(os.environ.get("PYTHONPATH"))', cwd=tmp_path)
    assert said == 'None\n'


def test_interpreters_to_serve_with_are_those_that_run(tool, tmp_path, monkeypatch):
    """One that does not run, as a shim of pyenv without a version, is none."""
    own = f'3.{sys.version_info[1]}'
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / f'python{own}').symlink_to(sys.executable)
    broken = tmp_path / 'versions' / '3.13.1' / 'bin' / 'python3'
    broken.parent.mkdir(parents=True)
    broken.write_text('#!/bin/sh\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:/usr/bin:/bin')
    monkeypatch.setenv('PYENV_ROOT', str(tmp_path))
    pythons = dict(tool.serving_pythons())
    assert own == '3.8' or pythons[own] == str(tmp_path / 'bin' / f'python{own}')
    assert str(broken) not in pythons.values()
