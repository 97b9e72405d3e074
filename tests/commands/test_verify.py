"""The command that checks a pruning run says what made the run slow as well."""

import json

import pytest

from gluon_optbert.commands import verify


@pytest.mark.parametrize('workers', [1, 2])
def test_run_with_more_threads_than_cores_is_warned_of(tmp_path, monkeypatch, capsys, workers):
    machine = {'threads': '2', 'workers_of_host': workers, 'cores': 2}
    (tmp_path / 'origin.json').write_text(json.dumps([{'machine': machine}]))
    monkeypatch.setattr(verify, 'verify', lambda recipe: [])
    monkeypatch.setattr(verify, 'table', lambda rows: '')
    assert verify.main([str(tmp_path)]) in (0, None)
    warned = 'warning: 2 workers of a host had 2 threads each' in capsys.readouterr().err
    assert warned == (workers == 2)
