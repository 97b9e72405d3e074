"""tools/plot_tasks.py: from runs and times to a plot, and the networks that are to be timed."""

import json

import pytest
from helpers.commands import call
from helpers.pages import check_page
from helpers.tiny import network
from helpers.written_runs import write_task_run

TOOL = 'tools/plot_tasks.py'
LADDER = (network((2, 3, 5, 7), (2, 4, 2, 5)), network((2, 3, 5, 7), (1, 4, 2, 0)))


@pytest.fixture
def run(tmp_path):
    return write_task_run(tmp_path / 'run', LADDER, (90.0, 89.2))


def times_of(run, path):
    """A file of times for the run, in which pruning halves them."""
    rows = [
        {
            'engine': 'mxnet',
            'precision': 'float32',
            'architecture': architecture.to_dict(),
            'shapes': {'8x128': {'median_ms': milliseconds}},
        }
        for architecture, milliseconds in zip(LADDER, (8.0, 4.0))
    ]
    path.write_text(json.dumps({'networks': rows}))
    return path


def test_command_says_what_speed_costs_and_what_it_wrote(run, tmp_path):
    times = times_of(run, tmp_path / 'times.json')
    done = call(TOOL, run, '--times', times, '--output', tmp_path / 'plot')
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'At 8 sequences of 128 tokens in float32, trained gates are 2.0 times as fast for 0.8 points '
        '(50 % of the FLOPs, 1 run).',
        f'wrote {tmp_path / "plot"}: points.json, table.md, speed.png, speed.svg',
    ]
    page = tmp_path / 'page.html'
    shown = call('tools/report.py', tmp_path / 'plot', '--output', page)
    assert shown.returncode == 0, shown.stderr
    text = check_page(page.read_text(encoding='utf-8')).text
    assert any(done.stdout.splitlines()[0] in part for part in text)


def test_networks_are_printed_a_line_each(run):
    done = call(TOOL, run, '--networks')
    files = [f'{run}/round-{number}/model/architecture.json' for number in (0, 1)]
    assert done.stdout.splitlines() == [*files, *(f'{file}:int8' for file in files)], done.stderr


def test_tasks_are_drawn_together(run, tmp_path):
    times = times_of(run, tmp_path / 'times.json')
    for name in ('one', 'other'):
        assert call(TOOL, run, '--times', times, '--output', tmp_path / name).returncode == 0
    plots = f'{tmp_path / "one"},{tmp_path / "other"}'
    done = call(TOOL, '--together', plots, '--output', tmp_path / 'both')
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'wrote {tmp_path / "both"}: speed.png, speed.svg\n'
    picture = (tmp_path / 'both' / 'speed.svg').read_text(encoding='utf-8')
    assert picture.count('<!-- SST-2 accuracy, 8 × 128 tokens, float32 -->') == 2
    for words, says in (
        (['--shape', '1x128'], 'has no times of 1x128 in float32; it has 8x128 in float32'),
        (['--networks'], 'networks has no place beside --together'),
        ([run], 'runs has no place beside --together'),
    ):
        done = call(TOOL, *words, '--together', plots, '--output', tmp_path / 'x')
        assert done.returncode == 2 and says in done.stderr, done.stderr
    points = tmp_path / 'other' / 'points.json'
    points.write_text(json.dumps({**json.loads(points.read_text()), 'engine': 'onnxruntime'}))
    done = call(TOOL, '--together', plots, '--output', tmp_path / 'x')
    assert done.returncode == 2 and 'times of several engines' in done.stderr, done.stderr
    done = call(TOOL, '--together', run, '--output', tmp_path / 'x')
    assert done.returncode == 2 and 'points.json: not there' in done.stderr, done.stderr
    assert not (tmp_path / 'x').exists()


def test_bad_input_is_one_line(run, tmp_path):
    times = times_of(run, tmp_path / 'times.json')
    for words, says in (
        ([], 'give a run of run_prune.py'),
        ([run], 'times is missing'),
        ([run, '--times', times, '--output', run], 'exists'),
        ([tmp_path, '--networks'], 'rounds.json: not there'),
        ([run, '--times', tmp_path / 'none.json', '--output', tmp_path / 'x'], 'none.json'),
        ([run, '--times', times, '--engine', 'openvino', '--output', tmp_path / 'x'], 'nothing was timed'),
    ):
        done = call(TOOL, *words)
        assert done.returncode == 2 and says in done.stderr, done.stderr
        assert 'Traceback' not in done.stderr
    assert not (tmp_path / 'x').exists()


@pytest.mark.slow
def test_the_benchmark_takes_what_is_printed_and_the_plot_takes_its_times(run, tmp_path):
    networks = call(TOOL, run, '--networks').stdout.split()
    words = ['--batches', '1,2', '--lengths', '8', '--repeats', '2', '--threads', '1']
    timed = call('benchmarks/latency.py', *networks, *words, '--output', tmp_path / 'times.json')
    assert timed.returncode == 0, timed.stderr
    done = call(TOOL, run, '--times', tmp_path / 'times.json', '--output', tmp_path / 'plot')
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / 'plot' / 'points.json').read_text())['points']
    for point in points:
        for shapes in point['times']['mxnet'].values():
            assert list(shapes) == ['1x8', '2x8'] and all(pair['ms'] > 0 for pair in shapes.values())
