"""The tool that kills: what it would notice, and a few kills."""

import json
import os
import subprocess

import pytest
from helpers.commands import module_at
from helpers.tiny import run, write_saved_model

killed_commands, left_files = (
    module_at('benchmarks/killed_commands.py'),
    module_at('benchmarks/left_files.py'),
)


@pytest.fixture
def place(tmp_path):
    """A directory with a finished model, as the uninterrupted run leaves it, and what that is."""
    write_saved_model(tmp_path / 'out')
    (tmp_path / 'out' / 'metrics.jsonl').write_text('{"step": 1, "mlm": 2.0, "tokens_per_second": 5.0}\n')
    return tmp_path, left_files.contents(tmp_path)


def test_times_are_no_difference_and_values_are(place):
    directory, wanted = place
    (directory / 'out' / 'metrics.jsonl').write_text(
        '{"step": 1, "mlm": 2.0, "tokens_per_second": 6.0}\n{"st'
    )
    assert left_files.contents(directory) == wanted
    (directory / 'out' / 'metrics.jsonl').write_text('{"step": 1, "mlm": 2.1, "tokens_per_second": 5.0}\n')
    assert left_files.contents(directory) != wanted


def test_times_in_results_are_no_difference_at_any_depth(tmp_path):
    def written(seconds, score, digest):
        (tmp_path / 'result.json').write_text(json.dumps({'runs': [{'seconds': seconds, 'score': score}]}))
        (tmp_path / 'manifest.json').write_text(
            json.dumps({'files': {'progress.json': digest, 'vocab.txt': 'v'}})
        )
        (tmp_path / 'half.json').write_text('{"runs": [')
        return left_files.contents(tmp_path)

    assert written(1.5, 3, 'a') == written(2.5, 3, 'b') != written(1.5, 4, 'a')


def test_time_in_which_nobody_ran_is_no_waiting(tmp_path, monkeypatch):
    attempt = object.__new__(killed_commands.Attempt)
    attempt.process = subprocess.Popen(['sleep', '1'])
    attempt.tree, clock = list, iter(range(0, 10**6, 1000))
    # a thousand seconds whenever it is asked
    monkeypatch.setattr(killed_commands.time, 'monotonic', lambda: next(clock))
    seconds, left = attempt.wait(60)
    assert 0 < seconds < 60 and left == 0 and attempt.process.returncode == 0


def test_sound_directory_has_no_losses(place):
    directory, wanted = place
    assert left_files.losses(directory, wanted, left_files.finished(directory, wanted)) == []
    assert len(left_files.finished(directory, wanted)) == 1


def test_what_was_finished_and_is_gone_is_a_loss(place):
    directory, wanted = place
    before = left_files.finished(directory, wanted)
    (directory / 'out' / 'manifest.json').unlink()
    assert [
        loss.endswith('manifest.json is gone') for loss in left_files.losses(directory, wanted, before)
    ] == [True]


def test_half_written_directory_is_a_loss(place):
    directory, wanted = place
    (directory / 'out' / 'vocab.txt').write_text('half')
    result = left_files.losses(directory, wanted, frozenset())
    assert any('half-written' in loss for loss in result) and 'out/vocab.txt differs' in result


def test_moment_is_the_file_that_is_written_or_the_last_step(place):
    directory, _ = place
    (directory / 'out' / 'metrics.jsonl').unlink()
    assert left_files.moment(directory, left_files.names_below(directory), 0) == 'before the first file'
    assert left_files.moment(directory, frozenset(), 0) == 'between two files'
    (directory / 'out' / 'metrics.jsonl').write_text(
        json.dumps({'phase': 'gates', 'round': 2, 'step': 5}) + '\n'
    )
    assert left_files.moment(directory, frozenset(), 0) == 'gates of round 2, after step 5'
    (directory / 'out' / 'seed-3.jsonl').write_text(
        json.dumps({'phase': 'SST-2', 'seed': 3, 'step': 1}) + '\n'
    )
    os.utime(directory / 'out' / 'metrics.jsonl', ns=(0, 0))
    assert left_files.moment(directory, frozenset(), 0) == 'SST-2 of seed 3, after step 1'
    later = (directory / 'out' / 'seed-3.jsonl').stat().st_mtime_ns + 1
    assert left_files.moment(directory, left_files.names_below(directory), later) == 'before the first file'
    (directory / 'out' / 'seed-3.jsonl').unlink()
    partial = directory / 'out' / '.model.partial-x1' / 'vocab.txt'
    partial.parent.mkdir()
    partial.write_text('')
    assert left_files.moment(directory, frozenset(), 0) == 'writing out/model/vocab.txt'
    assert left_files.moment(directory, frozenset({str(partial)}), 0) == 'gates of round 2, after step 5'


@pytest.mark.slow
def test_kills_lose_nothing_and_are_told(tmp_path):
    done = run(
        '-W',
        'ignore',
        'benchmarks/survive.py',
        '--commands',
        'shards',
        '--kills',
        3,
        '--output',
        tmp_path / 'record.json',
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '3 kills, 0 losses, 0 processes left' in done.stdout
    record = json.loads((tmp_path / 'record.json').read_text())
    assert (
        record['kills'] == len(record['each']) == 3
        and record['losses'] == 0
        and record['versions']
        and record['machine']['cpu']
    )
    assert (
        record['ends_compared'] == sum(kill['compared'] for kill in record['each']) >= 1
        and record['each'][-1]['compared']
    )
    assert sum(record['by_moment'].values()) == sum(record['by_victim'].values()) == 3
