"""A directory in the wrong place is named for what it is, with the command that goes on from it."""

from pathlib import Path

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
            ['round-2/model/model.params', 'round-10/model/model.params'],
            ['directory of a run', "my runs/round-10/model' --output deploy"],
        ),
    ],
)
def test_directories_are_known_by_their_files(names, words, tmp_path):
    said = what_it_is(files(tmp_path / 'my runs', *names))
    assert all(word in said for word in words)
    if 'manifest.json' not in names:
        with pytest.raises(FileNotFoundError) as raised:
            check_manifest(tmp_path / 'my runs', form='gluon_optbert shards', version=1)
        assert words[0] in str(raised.value) and '\n' not in str(raised.value)


def test_the_place_of_an_import_is_named_after_the_directory_and_not_its_path(tmp_path, monkeypatch):
    (tmp_path / 'link').symlink_to(files(tmp_path / 'bert', 'config.json'))
    monkeypatch.chdir(tmp_path / 'bert')
    for path, name in ((Path('.'), 'bert'), (Path('../link'), 'link')):
        assert what_it_is(path).endswith(f'--output models/{name}')


@pytest.mark.parametrize('names', [[], ['model.params'], ['model-symbol.json']])
def test_what_is_of_no_kind_or_half_of_one_is_not_named(names, tmp_path):
    (tmp_path / 'it').mkdir()
    assert what_it_is(files(tmp_path / 'it', *names)) is None
