"""Files are whole or absent; what is no file stays what it is."""

import os
import stat
import threading
from types import SimpleNamespace

import pytest

from gluon_optbert.runs.files import new_directory, refuse_existing, write_file


def test_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / 'new' / 'result.json'
    write_file(path, b'first')
    write_file(path, b'second')
    assert path.read_bytes() == b'second' and os.listdir(path.parent) == ['result.json']


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'result.json'
    write_file(path, b'first')

    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space.*result.json'):
        write_file(path, b'second')
    assert path.read_bytes() == b'first' and os.listdir(tmp_path) == ['result.json']


def test_directory_that_needs_more_than_is_free_is_refused_and_a_full_disk_names_it(tmp_path, monkeypatch):
    with pytest.raises(OSError, match='No space.*deploy'), new_directory(tmp_path / 'deploy'):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr('shutil.disk_usage', lambda place: SimpleNamespace(free=1e9))
    with (
        pytest.raises(OSError, match='deploy will need about 2 GB, and .* has 1 GB free'),
        new_directory(tmp_path / 'deploy', needed=2e9),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_output_below_a_file_is_refused_with_the_remedy_that_fits(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(FileNotFoundError, match='file/a/b: .*file is a file; give another --results$'):
        refuse_existing(tmp_path / 'file' / 'a' / 'b', remedy='give another --results')


def test_pipe_is_written_to_and_not_replaced(tmp_path):
    """As root, a rename would turn /dev/null into a file for every other program."""
    path, received = tmp_path / 'pipe', []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write_file(path, b'content')
    reader.join(timeout=10)
    assert received == [b'content'] and stat.S_ISFIFO(path.stat().st_mode)
