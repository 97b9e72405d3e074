"""The command that checks a pruning run says what made the run slow as well."""

import json

import pytest

from gluon_optbert.commands.pruning import verify as command
from gluon_optbert.deployment import verify


@pytest.mark.parametrize('workers', [1, 2])
def test_run_with_more_threads_than_cores_is_warned_of(tmp_path, monkeypatch, capsys, workers):
    machine = {'threads': '2', 'workers_of_host': workers, 'cores': 2}
    (tmp_path / 'origin.json').write_text(json.dumps([{'machine': machine}]))
    monkeypatch.setattr(verify, 'verify', lambda recipe: [{'round': 1}])
    monkeypatch.setattr(verify, 'table', lambda rows: '')
    assert command([str(tmp_path)]) in (0, None)
    warned = 'warning: 2 workers of a host had 2 threads each' in capsys.readouterr().err
    assert warned == (workers == 2)


def test_what_is_printed_is_written_too(tmp_path, monkeypatch, capsys):
    rows = [{'round': 1, 'all': 1e-7}]
    errors = [{'round': 1, 'network': 'cut', 'error': 0.5, 'mlm_loss': 3.0}]
    monkeypatch.setattr(verify, 'verify', lambda recipe: rows)
    monkeypatch.setattr(verify, 'stages', lambda recipe: errors)
    words = [str(tmp_path), '--output', str(tmp_path / 'verified.json'), '--batches', '3']
    command(words)
    values = json.loads((tmp_path / 'verified.json').read_text())
    assert (values['differences'], values['stages'], values['batches']) == (rows, errors, 3)
    assert values['commit'] and '0.500' in capsys.readouterr().out
    monkeypatch.setattr(verify, 'verify', lambda recipe: pytest.fail('not before the output is free'))
    assert command(words) == 2
    assert 'verified.json: exists' in capsys.readouterr().err
