"""A directory in the wrong place is named for what it is, with the command that goes on from it."""

import pytest

from gluon_optbert.runs.files import check_manifest
from gluon_optbert.runs.starting import what_it_is


def files(directory, *names):
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{}')
    return directory


@pytest.mark.parametrize(
    'names, words',
    [
        (['config.json', 'model.safetensors'], ['checkpoint of Transformers', 'import it first']),
        (['config.json', 'model.onnx'], ['export for other libraries', '--onnx']),
        (['manifest.json', 'model.params'], ['model directory; export it first']),
        (['manifest.json', 'model-symbol.json'], ['an export already; predict with it']),
        (
            ['round-2/model/model.params', 'round-1/model/model.params'],
            ['directory of a run', 'round-2/model'],
        ),
    ],
)
def test_directories_are_known_by_their_files(names, words, tmp_path):
    said = what_it_is(files(tmp_path / 'it', *names))
    assert all(word in said for word in words)
    if 'manifest.json' not in names:
        with pytest.raises(FileNotFoundError) as raised:
            check_manifest(tmp_path / 'it', form='gluon_optbert shards', version=1)
        assert words[0] in str(raised.value) and '\n' not in str(raised.value)


@pytest.mark.parametrize('names', [[], ['model.params'], ['model-symbol.json']])
def test_what_is_of_no_kind_or_half_of_one_is_not_named(names, tmp_path):
    (tmp_path / 'it').mkdir()
    assert what_it_is(files(tmp_path / 'it', *names)) is None
