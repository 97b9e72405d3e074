"""Where a number comes from: what a run notes of what computes it."""

import json

import pytest
from helpers.tiny import run

from gluon_optbert.runs import machine as provenance
from gluon_optbert.runs.machine import ORIGIN, note_origin


def entries(directory):
    return json.loads((directory / ORIGIN).read_text())


def test_run_notes_what_computes_it_once(tmp_path):
    for _ in range(2):
        note_origin(tmp_path, workers=2)
    [result] = entries(tmp_path)
    assert set(result) == {'commit', 'versions', 'machine', 'workers'} and result['workers'] == 2
    assert result['machine'] == provenance.machine() and result['versions']['mxnet'] == '1.9.1'


def test_versions_are_those_of_the_libraries_that_are_there():
    program = 'import sys; sys.modules["mxnet"] = None; from gluon_optbert.runs import machine as p; '
    done = run('-c', program + 'print(sorted(p.versions()), p.machine()["cores"] > 0)')
    assert done.stdout == "['gluon_optbert', 'numpy', 'python'] True\n", done.stderr


@pytest.mark.parametrize('content', ['', '{}', '[' * 100000, '\udcff'])
def test_what_is_no_list_of_origins_gives_way(tmp_path, content):
    (tmp_path / ORIGIN).write_bytes(content.encode(errors='surrogateescape'))
    note_origin(tmp_path, workers=3)
    assert [entry['workers'] for entry in entries(tmp_path)] == [3]


def test_run_with_more_threads_than_cores_is_warned_of_once(tmp_path, monkeypatch):
    machine = {'threads': '2', 'workers_of_host': 2, 'cores': 2}
    monkeypatch.setattr(provenance, 'machine', lambda: machine)
    for commit in ('1', '2'):  # it goes on with something else
        monkeypatch.setattr(provenance, 'commit', lambda commit=commit: commit)
        note_origin(tmp_path, workers=2)
    [sentence] = provenance.origin_warnings(tmp_path)
    assert [entry['commit'] for entry in entries(tmp_path)] == ['1', '2']
    assert sentence.startswith('2 workers of a host had 2 threads each')


def test_commits_are_those_that_computed_the_run_each_once(tmp_path):
    origins = [{'commit': 'a'}, {'commit': 'b+', 'workers': 2}, {'commit': 'a'}, {'commit': None}, 7]
    (tmp_path / ORIGIN).write_text(json.dumps(origins))
    assert provenance.commits_of(tmp_path) == ['a', 'b+']
    assert provenance.commits_of(tmp_path / 'nowhere') == []
