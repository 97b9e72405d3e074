"""Files are whole or absent, what is no file stays what it is, and JSON is an object or refused."""

import os
import stat
import threading
from types import SimpleNamespace

import pytest

from gluon_optbert.runs.files import fetching, new_directory, parse_json, read_json, reason, write_file
from gluon_optbert.runs.limits import DEEPEST


def test_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / 'new' / 'result.json'
    write_file(path, b'first')
    write_file(path, b'second')

    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space.*result.json'):
        write_file(path, b'third')
    assert path.read_bytes() == b'second' and os.listdir(path.parent) == ['result.json']


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
    stale = tmp_path / '.deploy.partial-0'  # of a killed process
    stale.mkdir()
    monkeypatch.setattr('shutil.disk_usage', lambda place: SimpleNamespace(free=2e9 - 1e9 * stale.exists()))
    with new_directory(tmp_path / 'deploy', needed=2e9):
        pass


def test_pipe_is_written_to_and_not_replaced(tmp_path):
    """As root, a rename would turn /dev/null into a file for every other program."""
    path, received = tmp_path / 'pipe', []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write_file(path, b'content')
    reader.join(timeout=10)
    assert received == [b'content'] and stat.S_ISFIFO(path.stat().st_mode)


def test_what_is_fetched_is_one_line_and_so_is_why_it_was_not(capsys):
    with fetching('train.tsv'):
        print('Downloading train.zip, 4 attempts left')
    said = capsys.readouterr()
    assert (said.out, said.err) == ('', 'fetching train.tsv\n')
    refused = "HTTPSConnectionPool(host='data.example', port=443): Max retries exceeded (Caused by 'x')"
    for text, wanted in (
        (refused, 'no connection to data.example'),
        ('checksum differs\nat byte 7', 'OSError: checksum differs'),
        ('x' * 1000, 'OSError: ' + 'x' * 151),
    ):
        assert reason(OSError(text)) == wanted


def test_objects_of_bounded_size_and_depth_are_read(tmp_path):
    path = tmp_path / 'values.json'
    with pytest.raises(FileNotFoundError, match=str(path)):
        read_json(path)
    path.write_bytes('\ufeff{"ä": [1, null]}'.encode())
    assert read_json(path) == {'ä': [1, None]}
    with pytest.raises(ValueError, match='20 bytes'):
        read_json(path, most_bytes=19)
    assert parse_json('[' * DEEPEST + ']' * DEEPEST, source='text')
    with pytest.raises(ValueError, match='text'):
        parse_json('[' * (DEEPEST + 1) + ']' * (DEEPEST + 1), source='text')


@pytest.mark.parametrize('content', [b'', b'\xff', b'[1]', b'[' * 100_000])
def test_anything_else_is_refused_with_the_path(tmp_path, content):
    path = tmp_path / 'values.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        read_json(path)
