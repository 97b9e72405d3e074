"""The studies' scripts: each runs, writes what it says, and makes the same of a file of points."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from helpers.commands import call, module_at, refused, succeed
from helpers.finetuned import flags_of, values_for, write_glue
from helpers.tiny import network, write_saved_model
from helpers.written_runs import BASE, SMALL, TINY, write_run, write_task_run

from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.runs.files import sha256

ROOM = 'benchmarks/studies'


def made(script, *words):
    """Output of a script; it must end well."""
    return succeed(f'{ROOM}/{script}', *words)


def pruning_run(path, seed, loss, **settings):
    write_run(path)
    rows = json.loads((path / 'rounds.json').read_text())
    rows[1]['recovered']['mlm_loss'] = loss
    (path / 'rounds.json').write_text(json.dumps(rows))
    recipe = {'method': 'alpha', 'gamma': 0.01, 'target': 0.5, 'rounds': 1, 'seed': seed, **settings}
    (path / 'recipe.yaml').write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture
def ways(tmp_path):
    return [
        pruning_run(tmp_path / 'runs' / f'{way}-{seed}', seed, loss, gamma=gamma)
        for way, seed, loss, gamma in (('one', 1, 2.5, 0.01), ('one', 2, 2.7, 0.01), ('other', 1, 3, 0.1))
    ]


def test_ways_of_pruning_are_compared_with_their_spread_and_a_control(ways, tmp_path):
    base = write_saved_model(tmp_path / 'base', progress={'step': 1, 'mlm_loss': 2.0})
    score = {
        'format': 'gluon_optbert fine-tuning',
        'task': 'SST-2',
        'metric': 'dev/accuracy',
        'mean': {'dev/accuracy': 81.25},
        'model_sha256': sha256(base / 'model.params'),
    }
    (tmp_path / 'base-sst2.json').write_text(json.dumps(score))
    points = tmp_path / 'points.json'
    said = made('points.py', *ways, base, tmp_path / 'base-sst2.json', '--output', points)
    assert said.endswith('3 runs, 1 networks, 1 scores\n')
    words = ['first=one-1,one-2', 'second=other-*', 'third=none-*', '--points', points]
    words += ['--controls', 'not pruned=base,other=none', '--output', tmp_path / 'compared']
    table = made('compare_pruning.py', *words).rpartition('wrote')[0].strip()
    assert (tmp_path / 'compared' / 'table.md').read_text().strip() == table
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()]
    loss = rows[0].index('MLM loss, nats')
    assert {row[0]: (row[3], row[loss]) for row in rows[2:5]} == {
        'not pruned': ('1', '2.000'),
        'first': ('2', '2.600 ± 0.141'),
        'second': ('1', '3.000'),
    }
    assert rows[2][-1] == '81.2' and (tmp_path / 'compared' / 'comparison.png').stat().st_size > 1000


def test_runs_that_differ_in_a_setting_or_in_nothing_do_not_repeat_each_other(ways, tmp_path):
    same, points = pruning_run(tmp_path / 'same', 1, 2.5), tmp_path / 'points.json'
    made('points.py', *ways, same, '--output', points)
    words = ['--points', points, '--output', tmp_path / 'no']
    says = refused(f'{ROOM}/compare_pruning.py', 'mixed=one-1,other-1', *words)
    assert 'differs from' in says and 'gamma' in says
    assert 'the same sizes and seed' in refused(f'{ROOM}/compare_pruning.py', 'one=one-1,same', *words)
    assert not (tmp_path / 'no').exists()


def test_points_are_added_to_what_is_there_and_draw_a_curve(ways, tmp_path):
    line = {'phase': 'pretraining', 'step': 50, 'mlm': 5.0, 'learning_rate': 1e-3, 'gradient_norm': 1.0}
    base = write_saved_model(tmp_path / 'base')
    (base / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
    points, curve = tmp_path / 'points.json', tmp_path / 'curve.png'
    for places in ([ways[0]], [ways[2], base, '--curve', curve]):
        made('points.py', *places, '--output', points)
    values = json.loads(points.read_text())
    assert list(values['runs']) == ['one-1', 'other-1'] and list(values['networks']) == ['base']
    assert 'method' in values['recipe'] and values['runs']['other-1']['recipe'] == {'gamma': 0.1}
    assert curve.stat().st_size > 1000


def times_of(path, networks, milliseconds):
    """A file of times, as far as it is read."""
    rows = [
        {
            'engine': 'mxnet',
            'precision': 'float32',
            'architecture': one.to_dict(),
            'shapes': {'8x128': {'median_ms': time}},
        }
        for one, time in zip(networks, milliseconds)
    ]
    path.write_text(json.dumps({'networks': rows}))
    return path


def test_speed_of_a_task_is_drawn_and_made_again_of_its_points(tmp_path):
    runs = [
        write_task_run(tmp_path / f'{name}-{seed}', (BASE, SMALL), (90.0, score), seed=seed, method=method)
        for name, method, seed, score in (('gates', 'alpha', 1, 89), ('gates', 'alpha', 2, 89.4),
                                          ('chance', 'random', 1, 80))
    ]  # fmt: skip
    times = times_of(tmp_path / 'times.json', (BASE, SMALL), (8.0, 4.0))
    made('plot_tasks.py', *runs, '--times', times, '--output', tmp_path / 'plot')
    table = (tmp_path / 'plot' / 'table.md').read_text()
    assert '| 89.20 ± 0.28 | 0.80 ± 0.20 | 2.00 ± 0.00 × |' in table and 'random units' in table
    points = tmp_path / 'plot' / 'points.json'
    made('plot_tasks.py', '*', '--points', points, '--output', tmp_path / 'again')
    assert (tmp_path / 'again' / 'table.md').read_text() == table
    pictures = [(tmp_path / name / 'speed.png').read_bytes() for name in ('plot', 'again')]
    assert pictures[0] == pictures[1]
    made('plot_tasks.py', 'gates-*', '--points', f'{points},{points}', '--output', tmp_path / 'both')
    assert (tmp_path / 'both' / 'speed.png').stat().st_size > 1000


def test_several_rounds_are_a_method_and_scores_are_compared_instance_by_instance(tmp_path):
    all_right, one, three = '1' * 10, '1' * 6 + '0' * 4, '1' * 7 + '0' * 3
    runs = [
        write_task_run(tmp_path / name, (BASE, *cut), (all_right, *scores), method='fisher', cut=[50] * 3)
        for name, cut, scores in (('one', [SMALL], [one]), ('three', [SMALL] * 3, [three] * 3))
    ]
    times = times_of(tmp_path / 'times.json', (BASE, SMALL), (8.0, 4.0))
    made('plot_tasks.py', *runs, '--times', times, '--output', tmp_path / 'plot')
    lines = (tmp_path / 'plot' / 'table.md').read_text().splitlines()
    lost = [line.split(' | ')[6] for line in lines if '| Fisher scores' in line]
    errors = [100 * (share * (1 - share) / 9) ** 0.5 for share in (0.4, 0.3)]  # of instances that changed
    assert lost == [f'40.00 ± {errors[0]:.2f}', f'30.00 ± {errors[1]:.2f}']


def test_networks_to_time_are_each_printed_once_in_both_precisions(tmp_path):
    run = write_task_run(tmp_path / 'run', (BASE, SMALL, SMALL), (90.0, 89.0, 88.0))
    files = [f'{run}/round-{number}/model/architecture.json' for number in (0, 1)]
    lines = made('plot_tasks.py', run, '--networks').splitlines()
    assert lines == [*files, *(f'{file}:int8' for file in files)]


def test_networks_that_were_not_timed_are_refused(tmp_path):
    run = write_task_run(tmp_path / 'run', (BASE, SMALL), (90.0, 89.0))
    times = times_of(tmp_path / 'times.json', (BASE, TINY), (8.0, 4.0))
    words = [run, '--times', times, '--output', tmp_path / 'plot']
    assert '--networks' in refused(f'{ROOM}/plot_tasks.py', *words)


def test_differences_of_settings_are_paired_by_seed_and_by_instance():
    table_of = module_at(f'{ROOM}/compare_settings.py').table_of

    def scored(score, seconds=120.0, resumed_at=None):
        runs = [{'seconds': seconds, **({} if resumed_at is None else {'resumed_at': resumed_at})}]
        return {
            'task': 'SST-2',
            'metric': 'dev/accuracy',
            'mean': {'dev/accuracy': score},
            'majority': None,
            'samples': {'train': 8},
            'parameters': 9,
            'runs': runs,
        }

    scores = {
        'a': {1: scored(80.0), 2: scored(82.0)},
        'b': {1: scored(81.0), 2: scored(85.0, 6.0, resumed_at=3)},
    }
    text = table_of(scores, {'a': {}, 'b': {'dropout': 0.0}, 'c': {'limit': 3}})
    assert [[cell.strip() for cell in line.split('|')[1:-1]] for line in text.splitlines()][4:7] == [
        ['a', 'as the recipe', '81.00 ± 1.41', '+0.00 ± 0.00', '80.00', '82.00', '2.0'],
        ['b', 'dropout 0.0', '83.00 ± 2.83', '+2.00 ± 1.00', '81.00', '85.00', '2.0'],
        ['c', 'limit 3', 'not run', '–', '–', '–', '–'],
    ]
    for setting, marks in {'a': ('0001', '0011'), 'b': ('0111', '0111')}.items():
        for seed, own in enumerate(marks, start=1):
            scores[setting][seed]['runs'][0]['right'] = {'dev': own}
    # b is right 0, 1, 0.5 and 0 of an instance more often: 0.23936 is the error of the mean of these four
    error = (1.0**2 + 23.936**2) ** 0.5
    assert f'| +2.00 ± {error:.2f} |' in table_of(scores, {'a': {}, 'b': {}})
    scores['a'][1]['recipe'], scores['b'][2]['recipe'] = (
        {'epochs': 1, 'dropout': 0.1},
        {'epochs': 3, 'dropout': 0},
    )
    with pytest.raises(ValueError, match='the runs on SST-2: b/seed-2 differs from a/seed-1 in epochs$'):
        table_of(scores, {'a': {}, 'b': {'dropout': 0.0}})


def test_missing_runs_of_settings_are_made(model_directory, tmp_path, monkeypatch):
    original = subprocess.run

    def in_this_process(words, **more):
        if words[0] != sys.executable:
            return original(words, **more)
        succeed(*words[1:])

    monkeypatch.setattr(subprocess, 'run', in_this_process)
    values = values_for(model_directory, write_glue(tmp_path / 'glue'), tmp_path)
    del values['output']
    run = ' '.join(flags_of(values))
    (tmp_path / 'settings.yaml').write_text('plain: {}\nlarger: {learning_rate: 0.02}\n')
    words = ['--settings', tmp_path / 'settings.yaml', f'--run={run}', '--output', tmp_path / 'out']
    made('compare_settings.py', *words, '--seeds', '1')
    table = (tmp_path / 'out' / 'table.md').read_text()
    assert '| larger | learning_rate 0.02 |' in table
    before = {path: path.read_bytes() for path in (tmp_path / 'out').rglob('*') if path.is_file()}
    assert len(before) == 4  # two results, points and table
    made('compare_settings.py', *words, '--seeds', '1')
    assert {path: path.read_bytes() for path in before} == before
    points = ['--points', tmp_path / 'out' / 'points.json', '--output', tmp_path / 'again.md']
    made('compare_settings.py', *words[:2], *points)
    assert (tmp_path / 'again.md').read_text() == table


def test_gates_are_trained_by_every_setting_that_is_missing(shards_directory, tmp_path):
    model = write_saved_model(tmp_path / 'model')
    (tmp_path / 'settings.yaml').write_text(
        'fast: {learning_rate: 0.2, steps: 4}\nSGD: {optimizer: sgd, learning_rate: 1.0, steps: 2}\n'
    )
    words = ['--settings', tmp_path / 'settings.yaml', '--model', model, '--shards', shards_directory]
    words += ['--output', tmp_path / 'gates', '--batch-size', 4]
    made('gate_optimizers.py', *words)
    points = json.loads((tmp_path / 'gates' / 'points.json').read_text())
    assert list(points) == ['fast', 'SGD'] and points['fast']['widths']['f']['mean'] < 1
    again = call(f'{ROOM}/gate_optimizers.py', *words)
    assert again.returncode == 0 and 'step' not in again.stderr
    assert json.loads((tmp_path / 'gates' / 'points.json').read_text()) == points


def test_sentence_encoders_are_scored_in_their_own_index_and_in_the_parents(tmp_path):
    texts = tmp_path / 'texts'
    (texts / 'search').mkdir(parents=True)
    (texts / 'pairs.csv').write_text(''.join(f'a,b,{score}\n' for score in range(9)))
    found = {'queries': ['q1', 'q2'], 'documents': ['d1', 'd2'], 'right': [0, 1]}
    for name in ('squad', 'wiki'):
        (texts / 'search' / f'{name}.json').write_text(json.dumps(found))
    plain, turned = np.eye(2), np.eye(2)[::-1]
    cosines = np.linspace(0, 1, 9)
    towards = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    pairs = {'pairs 0': np.tile([1.0, 0.0], (9, 1)), 'pairs 1': towards}
    parent = {**pairs, **{f'{name} {what}': plain for name in ('squad', 'wiki') for what in found}}
    np.savez(tmp_path / 'parent.npz', **parent)
    child = {**pairs, 'pairs 1': towards[::-1]}
    child |= {f'{name} {what}': turned for name in ('squad', 'wiki') for what in found}
    np.savez(tmp_path / 'child.npz', **child)
    words = [f'{name}={tmp_path}/{name}.npz' for name in ('parent', 'child')]
    made('sentence_scores.py', texts, *words, '--output', tmp_path / 'scores.json')
    scores = json.loads((tmp_path / 'scores.json').read_text())
    assert scores['parent']['squad'] == scores['child']['squad'] == [0, 0]
    assert scores['child']['squad in the parent'] == [1, 1]
    table = (tmp_path / 'scores.md').read_text()
    assert '100.00' in table and '-100.00 (-200.00' in table and '63.1 (-36.9' in table


def test_encoders_are_drawn_at_the_times_of_their_widths(tmp_path):
    sizes = {'parent': network((2, 4, 4, 16)), 'child': network((1, 4, 4, 8))}
    scores = {
        name: {
            'parameters': int(ParameterCost().cost(widths)),
            'flops': sum(count_flops(widths, 128).values()),
            'pairs': list(np.roll(np.linspace(0, 1, 9), number)),
            'squad': [0, number],
            'wiki': [number, 0],
        }
        for number, (name, widths) in enumerate(sizes.items())
    }
    scores['static'] = {key: scores['child'][key] for key in ('pairs', 'squad', 'wiki')}
    timed = [
        {'name': name, 'engine': 'onnxruntime', 'architecture': widths.to_dict()}
        | {'shapes': {'8x128': {'median_ms': 9.0}}}
        for name, widths in sizes.items()
    ]
    (tmp_path / 'scores.json').write_text(json.dumps(scores))
    (tmp_path / 'times.json').write_text(json.dumps({'networks': timed}))
    (tmp_path / 'pairs.csv').write_text(''.join(f'a,b,{score}\n' for score in range(9)))
    words = [tmp_path / 'scores.json', tmp_path / 'times.json', '--gold', tmp_path / 'pairs.csv']
    made('plot_encoders.py', *words, 'cut=parent,child', 'static=static', '--output', tmp_path / 'a.png')
    assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
    result = call(f'{ROOM}/plot_encoders.py', *words, 'int8=child@child', '--output', tmp_path / 'b.png')
    assert result.returncode == 2 and 'no time of a network with the widths of child in int8' in result.stderr
