"""The command that checks a pruning run says what made the run slow as well."""

import json

import pytest

from gluon_optbert.commands.pruning import verify as command
from gluon_optbert.deployment import verify


def test_what_is_printed_is_written_too_and_what_was_slow_is_warned_of(tmp_path, monkeypatch, capsys):
    rows = [{'round': 1, 'all': 1e-7}]
    errors = [{'round': 1, 'network': 'cut', 'error': 0.5, 'mlm_loss': 3.0}]
    machine = {'threads': '2', 'workers_of_host': 2, 'cores': 2}
    (tmp_path / 'origin.json').write_text(json.dumps([{'machine': machine}]))
    monkeypatch.setattr(verify, 'verify', lambda recipe: rows)
    monkeypatch.setattr(verify, 'stages', lambda recipe: errors)
    words = [str(tmp_path), '--output', str(tmp_path / 'verified.json'), '--batches', '3']
    assert command(words) in (0, None)
    values, said = json.loads((tmp_path / 'verified.json').read_text()), capsys.readouterr()
    assert (values['differences'], values['stages'], values['batches']) == (rows, errors, 3)
    assert values['commit'] and '0.500' in said.out
    assert 'warning: 2 workers of a host had 2 threads each' in said.err
    monkeypatch.setattr(verify, 'verify', lambda recipe: pytest.fail('not before the output is free'))
    assert command(words) == 2
    assert 'verified.json: exists' in capsys.readouterr().err
