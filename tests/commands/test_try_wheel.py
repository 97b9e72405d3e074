"""tools/setup/try_wheel.py: a wheel that lacks a file is refused; all of the package is in it."""

import shutil
import sys
import zipfile

import pytest
from helpers.commands import module_at
from helpers.tiny import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / '.git').exists(), reason='no git checkout')


@pytest.fixture
def tool():
    return module_at('tools/setup/try_wheel.py')


def test_wheel_has_tables_and_descriptions_and_one_that_lacks_a_file_is_refused(tool, tmp_path):
    """`make test-all` and `.ci/run` build the whole one."""
    names = tool.project_files()
    for name in names:
        (tmp_path / 'root' / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / 'root' / name, follow_symlinks=False)
    setup = tmp_path / 'root' / 'setup.py'
    setup.write_text(setup.read_text().replace("'recipes/*/*.yaml'", "'recipes/*.yaml'"))
    with pytest.raises(tool.Failed, match='lacks .*gluon_optbert/recipes/pretrain/small.yaml'):
        tool.build(tmp_path / 'place', source=tmp_path / 'root')
    (wheel,) = (tmp_path / 'place' / 'dist').glob('*.whl')
    with zipfile.ZipFile(wheel) as packed:
        names = {name.lower() for name in packed.namelist()}
    some = 'architecture/paper/table_08.json', 'tasks/descriptions/rte.json'
    assert {f'gluon_optbert/{name}' for name in some} <= names
    assert not [name for name in names if name.startswith(('tests/', 'tools/', 'pretrain/', 'finetune/'))]


def test_program_that_fails_is_said_with_its_words_and_sees_nothing_of_this_environment(
    tool, tmp_path, monkeypatch
):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    program = 'import os, sys; print(os.environ.get("PYTHONPATH")); sys.exit(3)'
    with pytest.raises(tool.Failed, match='^None\n.* exit status 3'):
        tool.call(sys.executable, '-c', program, cwd=tmp_path)


def test_interpreters_to_serve_with_are_those_that_run(tool, tmp_path, monkeypatch):
    """One that does not run, as a shim of pyenv without a version, is none."""
    own = f'3.{sys.version_info[1]}'
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / f'python{own}').symlink_to(sys.executable)
    broken = tmp_path / 'versions' / '3.14.1' / 'bin' / 'python3'
    broken.parent.mkdir(parents=True)
    broken.write_text('#!/bin/sh\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:/usr/bin:/bin')
    monkeypatch.setenv('PYENV_ROOT', str(tmp_path))
    found = dict(tool.pythons())
    assert found[own] == str(tmp_path / 'bin' / f'python{own}') and str(broken) not in found.values()
