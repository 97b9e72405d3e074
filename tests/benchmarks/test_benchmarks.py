"""Each measurement runs on something tiny, and writes what it says."""

import json
from types import SimpleNamespace

import killed
import numpy as np
import pytest
import survive
from helpers.commands import refused, succeed
from helpers.tiny import network, run, saved_model, write_saved_model
from latency_networks import check_same

from gluon_optbert.deployment.export import export
from gluon_optbert.runs.failures import RunFailed


@pytest.fixture(scope='module')
def deployment(tmp_path_factory):
    """An export of a tiny encoder."""
    place = tmp_path_factory.mktemp('latency') / 'deploy'
    export(saved_model(network()), place)
    return place


def measured(output, script, *words):
    """Output of a measurement, and the result that it wrote."""
    said = succeed(f'benchmarks/{script}.py', *words, '--output', output)
    result = json.loads(output.read_text())
    assert {'recipe', 'versions', 'machine'} <= result.keys() and f'wrote {output}' in said
    return said, result


@pytest.mark.parametrize(
    'script, words', [('scaling', ['--shards', 'shards']), ('survive', ['--kills', '1'])]
)
def test_results_that_are_there_are_refused_before_anything_is_measured(script, words, tmp_path):
    results = tmp_path / 'results.json'
    results.write_text('{}')
    assert 'nothing is overwritten' in refused(f'benchmarks/{script}.py', *words, '--output', results)


def test_latency_of_an_export_and_of_random_weights(deployment, tmp_path):
    words = [deployment, 'l1_h8_a2', '--batches', 1, '--lengths', 8, '--repeats', 2]
    said, result = measured(tmp_path / 'latency.json', 'latency', *words)
    first, second = result['networks']
    assert first['shapes']['1x8']['median_ms'] > 0
    assert second['precision'] == 'float32' and second['gflop']['1x8'] > 0 and not second['same_widths']
    assert (tmp_path / 'latency.md').read_text() in said


def test_both_onnx_files_of_the_first_export_are_compared_with_it(tmp_path):
    """Where it is in int8, the second one has ranges of its own."""

    def computing(value, name, precision):
        outputs = [np.full((3, 8), value)]
        deployment = SimpleNamespace(architecture=network())
        return SimpleNamespace(
            name=name, precision=precision, deployment=deployment, outputs=lambda *_: outputs
        )

    first, name = computing(1.0, 'deploy', 'float32'), 'deploy, onnxruntime, model_dynamic'
    assert check_same([first, computing(1.25, name, 'int8 dynamic')], tmp_path) == {name: 0.25}
    with pytest.raises(RunFailed, match='model_dynamic computes another network'):
        check_same([first, computing(-1.0, name, 'int8 dynamic')], tmp_path)


def test_training_steps_of_two_architectures(tmp_path):
    words = ['l1_h8_a2', '--beside', 'l1_h16_a2', '--steps', 'gluonnlp,ungated,alpha', '--repeats', 1]
    words += ['--batch-size', 2, '--length', 8, '--masked', 2]
    _, result = measured(tmp_path / 'steps.json', 'training', *words)
    assert {'GluonNLP step', 'alpha step', 'ungated step of l1_h16_a2'} <= result['milliseconds'].keys()
    steps = [result['milliseconds'][name]['median'] for name in ('alpha step', 'ungated step')]
    assert result['ratios']['alpha step / ungated step'] == steps[0] / steps[1]


def test_recovery_is_timed_without_its_peer(tmp_path):
    words = ['l1_h8_a2', '--teacher', 'l2_h8_a2', '--lengths', '4,8', '--tokens', 32, '--repeats', 2]
    said, result = measured(tmp_path / 'recovery.json', 'recovery', *words, '--precision', 'float32')
    assert list(result['tokens_per_second']) == ['this package'] and ' tokens a turn' in said


def test_cut_with_repairs(tmp_path):
    _, result = measured(tmp_path / 'cut.json', 'cut', 'l1_h8_a2', '--repeats', 1, '--repairs')
    (seconds,) = result['seconds']
    assert list(seconds) == ['rotate', 'select', 'fold and cut', 'reconstruct', 'write', 'all']
    assert result['memory'] > 1


@pytest.fixture
def place(tmp_path):
    """A directory with a finished model, as the uninterrupted run leaves it, and what that is."""
    write_saved_model(tmp_path / 'out')
    (tmp_path / 'out' / 'metrics.jsonl').write_text('{"step": 1, "mlm": 2.0, "tokens_per_second": 5.0}\n')
    return tmp_path, killed.contents(tmp_path)


@pytest.mark.parametrize(
    'line, same',
    [
        ('{"step": 1, "mlm": 2.0, "tokens_per_second": 6.0}\n{"st', True),
        ('{"step": 1, "mlm": 2.1, "tokens_per_second": 5.0}\n', False),
    ],
)
def test_times_are_no_difference_and_values_are(place, line, same):
    directory, wanted = place
    (directory / 'out' / 'metrics.jsonl').write_text(line)
    assert (killed.contents(directory) == wanted) == same


def test_what_is_gone_or_half_written_is_a_loss(place):
    directory, wanted = place
    before = killed.finished(directory, wanted)
    assert len(before) == 1 and killed.losses(directory, wanted, before) == []
    (directory / 'out' / 'vocab.txt').write_text('half')
    result = killed.losses(directory, wanted, before)
    assert any('half-written' in loss for loss in result) and 'out/vocab.txt differs' in result
    (directory / 'out' / 'manifest.json').unlink()
    assert [loss.endswith('is gone') for loss in killed.losses(directory, wanted, before)] == [True]


@pytest.mark.parametrize('content, lost', [("'same'", False), ('str(os.getpid())', True)])
def test_a_command_that_leaves_other_bytes_has_lost_something(content, lost, tmp_path, monkeypatch):
    script = tmp_path / 'command.py'
    script.write_text(
        f"import os, time\ntime.sleep(0.3)\nos.makedirs('out')\nopen('out/file', 'w').write({content})\n"
    )
    monkeypatch.setitem(killed.COMMANDS, 'one', str(script))
    recipe = survive.SurviveRecipe.model_construct(kills=2, workers=1, seed=0)
    trial = survive.Trial('one', recipe, tmp_path / 'inputs', tmp_path)
    trial.in_peace()
    trial.run()
    assert len(trial.records) == 2 and not any(record['processes_left'] for record in trial.records)
    assert any(record['losses'] for record in trial.records) == lost


@pytest.mark.slow
def test_kills_of_shard_making_lose_nothing(tmp_path):
    words = ['--commands', 'shards', '--kills', 2, '--output', tmp_path / 'record.json']
    done = run('-W', 'ignore', 'benchmarks/survive.py', *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '2 kills, 0 losses, 0 processes left' in done.stdout
    assert len(json.loads((tmp_path / 'record.json').read_text())['each']) == 2
