"""Run directories: whether a run is new, goes on, is done or may not begin; whole or absent."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.tiny import contents

from gluon_optbert.runs.recipe import Recipe, option
from gluon_optbert.runs.run_directory import RunDirectory, work_directory


class Soup(Recipe):
    """A run that writes a directory."""

    output: Path = option('where the soup stands')
    salt: float = option('grams', 1.0)
    guests: int = option('who may come later', 2)
    resume: bool = option('go on', False)


class Cook:
    """The first of the workers, or another one; remembers where it waited."""

    def __init__(self, first=True):
        self.first, self.waited = first, []

    def barrier(self, name):
        self.waited.append(name)


def read_soup(output):
    return (output / 'soup').read_text()


@pytest.fixture(params=['at its output', 'beside its output'])
def read(request):
    """Reader of a finished run: nothing where the run writes to its output from the beginning."""
    return None if request.param == 'at its output' else read_soup


def test_new_run_lays_out_its_recipe_and_what_it_wants(read, tmp_path):
    directory = RunDirectory(Soup(output=tmp_path / 'soup', resume=True), read=read, name='soup ')
    assert directory.new and directory.result is None and not list(tmp_path.iterdir())
    cook = Cook()
    directory.lay_out(cook, lambda staged: (staged / 'pot').write_text('empty'))
    assert directory.path == (tmp_path / 'soup' if read is None else work_directory(tmp_path / 'soup'))
    assert contents(tmp_path).keys() == {f'{directory.path.name}/{name}' for name in ('recipe.yaml', 'pot')}
    assert cook.waited == ['soup checked', 'soup laid out']


def test_directory_is_whole_or_absent_and_only_the_first_worker_writes(read, tmp_path):
    cook = Cook(first=False)
    RunDirectory(Soup(output=tmp_path / 'soup'), read=read).lay_out(cook)
    assert not list(tmp_path.iterdir()) and cook.waited == ['checked', 'laid out']

    def burn(staged):
        (staged / 'pot').write_text('half')
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunDirectory(Soup(output=tmp_path / 'soup'), read=read).lay_out(Cook(), burn)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_that_needs_more_than_is_free_is_refused_before_it_writes(read, tmp_path, monkeypatch):
    monkeypatch.setattr('shutil.disk_usage', lambda place: SimpleNamespace(free=2e9))
    directory, cook = RunDirectory(Soup(output=tmp_path / 'far' / 'soup'), read=read), Cook()
    with pytest.raises(
        OSError, match=f'soup.* will need about 3 GB, and {tmp_path} has 2 GB free; make room'
    ):
        directory.lay_out(cook, needed=3e9)
    assert not list(tmp_path.iterdir()) and not cook.waited
    directory.lay_out(cook, needed=1e9)
    again = RunDirectory(Soup(output=tmp_path / 'far' / 'soup', resume=True), read=read)
    again.lay_out(cook, needed=3e9)  # some of it is there already


def test_begun_run_goes_on_only_when_asked_to_and_with_its_settings(read, tmp_path):
    begun = RunDirectory(Soup(output=tmp_path / 'soup'), read=read)
    begun.lay_out(Cook())
    (begun.path / 'pot').write_text('half')
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match='--resume'):
        RunDirectory(Soup(output=tmp_path / 'soup'), read=read)
    with pytest.raises(ValueError, match='other settings of guests .*, salt '):
        RunDirectory(Soup(output=tmp_path / 'soup', salt=2.0, guests=3, resume=True), read=read)
    going_on = RunDirectory(
        Soup(output=tmp_path / 'soup', guests=3, resume=True), read=read, may_change=('resume', 'guests')
    )
    going_on.lay_out(Cook(), lambda staged: (staged / 'pot').write_text('new'))
    assert not going_on.new and going_on.path == begun.path
    assert contents(tmp_path) == before


def test_begun_run_goes_on_where_it_was_moved_to(read, tmp_path):
    begun = RunDirectory(Soup(output=tmp_path / 'soup'), read=read)
    begun.lay_out(Cook())
    moved = tmp_path / 'kitchen' / begun.path.name.replace('soup', 'broth')
    moved.parent.mkdir()
    begun.path.rename(moved)
    going_on = RunDirectory(Soup(output=tmp_path / 'kitchen' / 'broth', resume=True), read=read)
    assert not going_on.new and going_on.path == moved
    with pytest.raises(ValueError, match=r'other settings of salt \(then'):
        RunDirectory(Soup(output=tmp_path / 'kitchen' / 'broth', salt=2.0, resume=True), read=read)


def test_finished_run_is_read_and_its_settings_are_compared(tmp_path):
    begun = RunDirectory(Soup(output=tmp_path / 'soup'), read=read_soup)
    begun.lay_out(Cook(), lambda staged: (staged / 'soup').write_text('good'))
    os.rename(begun.path, tmp_path / 'soup')
    finished = RunDirectory(Soup(output=tmp_path / 'soup', resume=True), read=read_soup)
    assert not finished.new and finished.result == 'good'
    with pytest.raises(ValueError, match=r'soup was begun with other settings of salt \(then 1\.0\)'):
        RunDirectory(Soup(output=tmp_path / 'soup', salt=2.0, resume=True), read=read_soup)
    with pytest.raises(FileExistsError, match='soup: exists'):
        RunDirectory(Soup(output=tmp_path / 'soup'), read=read_soup)


def test_what_is_no_run_is_not_gone_on_with(read, tmp_path):
    for name in ('soup', 'soup' if read is None else 'soup.training'):
        (tmp_path / name).write_text('mine')
        with pytest.raises(NotADirectoryError, match=f'{name} is a file; give another --output'):
            RunDirectory(Soup(output=tmp_path / 'soup', resume=True), read=read)
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r'^\.: has no name that a run could have; give another --output'):
        RunDirectory(Soup(output=Path('.')), read=read_soup)
    (tmp_path / 'file').write_text('')
    with pytest.raises(FileNotFoundError, match='file is a file; give another --output$'):
        RunDirectory(Soup(output=tmp_path / 'file' / 'soup'), read=read)
    (tmp_path / 'file').unlink()
    (tmp_path / 'soup').mkdir()
    (tmp_path / 'soup' / 'mine').write_text('kept')
    with pytest.raises(FileNotFoundError, match='soup'):
        RunDirectory(Soup(output=tmp_path / 'soup', resume=True), read=read)
    assert contents(tmp_path).keys() == {'soup/mine'}
