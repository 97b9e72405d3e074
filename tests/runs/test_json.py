"""JSON of any origin: an object, or a ValueError that names the file."""

import pytest

from gluon_optbert.runs.files import parse_json, read_json
from gluon_optbert.runs.limits import DEEPEST


def test_objects_are_read(tmp_path):
    path = tmp_path / 'values.json'
    path.write_bytes('\ufeff{"ä": [1, null]}'.encode())
    assert read_json(path) == {'ä': [1, None]}


@pytest.mark.parametrize(
    'content', [b'', b'{', b'\xff', b'[1]', b'[' * 100_000, b'{"a":' * 100 + b'1' + b'}' * 100]
)
def test_anything_else_is_refused_with_the_path(tmp_path, content):
    path = tmp_path / 'values.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        read_json(path)


def test_depth_is_limited():
    assert parse_json('[' * DEEPEST + ']' * DEEPEST, source='text')
    with pytest.raises(ValueError, match='text'):
        parse_json('[' * (DEEPEST + 1) + ']' * (DEEPEST + 1), source='text')


def test_large_and_missing_files_are_refused(tmp_path):
    path = tmp_path / 'values.json'
    with pytest.raises(FileNotFoundError, match=str(path)):
        read_json(path)
    path.write_bytes(b'{"a": "long"}')
    with pytest.raises(ValueError, match='13 bytes'):
        read_json(path, most_bytes=12)
