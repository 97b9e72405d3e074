"""What speed costs is told as it was measured: by widths, seed by seed, and with the rule of the choice."""

import dataclasses
import json

import pytest
import yaml
from helpers.tiny import ROOT
from helpers.written_runs import BASE, SMALL, write_run, write_task_run

from gluon_optbert.architecture.architecture import Architecture, LayerDims
from gluon_optbert.pruning import methods
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.reporting.networks import read_run
from gluon_optbert.reporting.speed import Panel, Spread, networks_to_time, panels_of, read_times
from gluon_optbert.reporting.speed_pictures import draw_panels, draw_tasks, summary, write
from gluon_optbert.reporting.speed_words import RULE, best_rungs, sentence, sentences
from gluon_optbert.reporting.task_runs import (
    METHODS,
    TRAIN_GATES,
    check_comparable,
    groups_of,
    points_of,
    read_recipe,
    settings_of,
    starts_of,
)
from gluon_optbert.runs.recipe import fill, to_dict
from gluon_optbert.task_pruning.recipe import TaskPruneRecipe

TINY = Architecture(h=2, layers=(LayerDims(1, 1, 1, 3), LayerDims(1, 1, 1, 2)), vocab_size=10)
LADDER = (BASE, SMALL, TINY)
SIZES = {'targets': [0.5, 0.25]}
MS = {BASE: 8.0, SMALL: 4.0, TINY: 2.0}


def widened(architecture, filters):
    """The same with more filters in the last layer."""
    *layers, last = architecture.layers
    more = dataclasses.replace(last, f=last.f + filters)
    return dataclasses.replace(architecture, layers=(*layers, more))


def write_times(path, milliseconds=MS, *, precisions=('float32', 'int8'), engine='mxnet'):
    """A file of benchmark_latency.py: int8 takes half of the time, 8 sequences ten times as long as one."""
    rows = [
        {
            'name': 'a file',
            'engine': engine,
            'precision': precision,
            'architecture': architecture.to_dict(),
            'shapes': {
                '1x128': {'median_ms': value / (1 + (precision == 'int8'))},
                '8x128': {'median_ms': 10 * value / (1 + (precision == 'int8'))},
            },
        }
        for precision in precisions
        for architecture, value in milliseconds.items()
    ]
    path.write_text(json.dumps({'networks': rows, 'commit': 'abc', 'machine': {'cpu': 'one'}, 'threads': 2}))
    return path


def read(*paths):
    """Starts, groups and runs of some directories."""
    runs = [read_run(path, path.name) for path in paths]
    check_comparable(runs)
    recipes = [read_recipe(path) for path in paths]
    starts = starts_of([points_of(run, one) for run, one in zip(runs, recipes)])
    return starts, groups_of(runs, recipes), runs


@pytest.fixture
def paths(tmp_path):
    """Three seeds of trained gates, one run of Fisher scores."""
    gates = [(89.0, 86.0), (89.5, 87.0), (90.0, 88.0)]
    paths = [
        write_task_run(tmp_path / f'gates-{seed}', LADDER, (90.0, *scores), seed=seed, **SIZES)
        for seed, scores in enumerate(gates, start=1)
    ]
    fisher = {'method': 'fisher', 'steps': 0, 'reconstruct': True, 'rotate_heads': True}
    paths.append(write_task_run(tmp_path / 'fisher', LADDER, (90.0, 89.75, 80.0), **SIZES, **fisher))
    return paths


def test_runs_that_differ_in_the_seed_alone_repeat_each_other(paths):
    starts, (gates, fisher), _ = read(*paths)
    assert [point.score for point in starts] == [90.0]
    assert (gates.label, fisher.label) == (
        'trained gates, with training',
        'Fisher scores, repaired, no training',
    )
    assert [[point.score for point in rung] for rung in gates.rungs] == [
        [89.0, 89.5, 90.0],
        [86.0, 87.0, 88.0],
    ]
    assert [rung[0].share for rung in gates.rungs] == [0.5, 0.25] and gates.unit == 'FLOPs'
    assert gates.rungs[0][1].commits == ('c0ffee1',) and gates.rungs[0][1].seed == 2


@pytest.mark.parametrize(
    'recipe, label',
    [
        ({'method': 'uniform'}, 'uniform widths, with training'),
        ({'method': 'magnitude', 'steps': 0, 'reconstruct': True}, 'magnitudes, reconstructed, no training'),
        ({'method': 'random', 'rotate_heads': True}, 'random units, rotated, with training'),
        ({'method': 'mine', 'steps': 7}, 'mine, with training'),
    ],
)
def test_labels_say_method_repairs_and_training(tmp_path, recipe, label):
    _, (group,), _ = read(write_task_run(tmp_path / 'run', LADDER, (90.0, 89.0, 88.0), **SIZES, **recipe))
    assert group.label == label


def test_every_method_has_a_name_for_people():
    assert set(METHODS) == set(methods.METHODS) and len(set(METHODS.values())) == len(METHODS)
    assert {name for name, method in methods.METHODS.items() if method.trains_gates} == TRAIN_GATES


def test_runs_with_other_settings_are_never_averaged(tmp_path):
    more = [{'learning_rate': 1e-5}, {'learning_rate': 2e-5}, {'learning_rate': 1e-5, 'targets': [0.25]}]
    networks = [LADDER, LADDER, (BASE, TINY)]
    paths = [
        write_task_run(tmp_path / str(i), some, (90.0, 89.0, 88.0), **{**SIZES, **one})
        for i, (some, one) in enumerate(zip(networks, more))
    ]
    _, groups, _ = read(*paths)
    assert [group.label for group in groups] == [
        'trained gates, with training, learning rate 1e-05, 50 % then 25 % in one run',
        'trained gates, with training, learning rate 2e-05, 50 % then 25 % in one run',
        'trained gates, with training, learning rate 1e-05, a run for each size',
    ]


@pytest.mark.parametrize(
    'method, groups', [('alpha', 2), ('uniform-alpha', 2), ('uniform', 1), ('fisher', 1)]
)
def test_settings_of_gates_matter_where_gates_are_trained(tmp_path, method, groups):
    more = [{'seed': 1}, {'seed': 2, 'gamma': 0.5, 'relative_gates': 'ha', 'split_half': True}]
    paths = [
        write_task_run(tmp_path / str(i), LADDER, (90.0, 89.0, 88.0), method=method, **SIZES, **one)
        for i, one in enumerate(more)
    ]
    assert len(read(*paths)[1]) == groups
    labels = {group.label for group in read(*paths)[1]}
    assert all('split' not in label for label in labels)


def test_run_of_an_earlier_version_repeats_runs_that_do_what_it_did(tmp_path):
    earlier = to_dict(TaskPruneRecipe(model='m', output='o', data='d', **SIZES))
    for name in ('h_gate', 'relative_gates', 'trim', 'trim_count', 'ranking', 'timing'):
        del earlier[name]
    more = [{'time': True}, {'seed': 2, 'h_gate': 'stream', 'relative_gates': 'none', 'trim': []}]
    more[1]['trim_count'] = 1
    more.append({**more[1], 'seed': 3, 'trim': ['texts']})
    paths = [
        write_task_run(tmp_path / str(i), LADDER, (90.0, 89.0, 88.0), **{**earlier, **one})
        for i, one in enumerate(more)
    ]
    _, groups, _ = read(*paths)
    assert [(group.label, len(group.rungs[0])) for group in groups] == [
        ('trained gates, with training, trim []', 2),
        ('trained gates, with training, trim [texts]', 1),
    ]


def test_oldest_recorded_recipe_has_every_setting_of_today():
    earlier = yaml.safe_load((ROOT / 'results/short_runs/pruning/all/recipe.yaml').read_text())
    today = to_dict(fill(PruneRecipe, {**earlier, 'keep_best': False}))
    assert len(today) > len(earlier) + 20 and settings_of(earlier) == settings_of(today)


def test_runs_for_each_size_are_one_line(tmp_path):
    paths = [
        write_task_run(tmp_path / str(share), (BASE, network), (90.0, score), target=share)
        for share, network, score in ((0.25, TINY, 85.0), (0.5, SMALL, 88.0))
    ]
    _, (group,), _ = read(*paths)
    assert [(rung[0].share, rung[0].score) for rung in group.rungs] == [(0.5, 88.0), (0.25, 85.0)]


def test_sizes_of_rounds_are_those_of_the_recipe(tmp_path):
    run = write_task_run(tmp_path / 'run', LADDER, (90.0, 89.0, 88.0), target=0.5, rounds=2)
    _, (group,), _ = read(run)
    assert [rung[0].share for rung in group.rungs] == [0.75, 0.5]


def test_the_same_run_twice_is_refused(tmp_path):
    paths = [write_task_run(tmp_path / name, LADDER, (90.0, 89.0, 88.0), **SIZES) for name in 'ab']
    with pytest.raises(ValueError, match=r'same recipe, size, model and seed \(1\)'):
        read(*paths)


def test_starting_networks_are_averaged_and_points_are_lost_from_ones_own(tmp_path):
    paths = [
        write_task_run(tmp_path / name, (BASE, SMALL), (start, start - 1.0), model=name)
        for name, start in (('a', 90.0), ('b', 92.0))
    ]
    starts, groups, _ = read(*paths)
    panel = panels_of(starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')[0]
    (rung,) = panel.lines[0].rungs
    assert panel.start == Spread(91.0, pytest.approx(2**0.5))
    assert rung.lost == Spread(1.0, 0.0) and rung.repetitions == 2


def test_what_cannot_be_compared_is_refused(tmp_path):
    first = write_task_run(tmp_path / 'first', LADDER, (90.0, 89.0, 88.0), **SIZES)
    for name, more, message in (
        ('task', {'trained_for': 'MNLI'}, 'the score is MNLI accuracy, that of .* is SST-2 accuracy'),
        ('widths', {'networks': (SMALL, TINY)}, 'began with other widths'),
    ):
        networks = more.pop('networks', LADDER)
        other = write_task_run(
            tmp_path / name, networks, (90.0, 89.0, 88.0)[: len(networks)], **SIZES, **more
        )
        with pytest.raises(ValueError, match=message):
            read(first, other)
    rows = json.loads((first / 'rounds.json').read_text())
    rows[0]['recovered']['instances'] = rows[1]['before']['instances'] = 100
    fewer = write_task_run(tmp_path / 'fewer', LADDER, (90.0, 89.0, 88.0), **SIZES)
    (fewer / 'rounds.json').write_text(json.dumps(rows))
    with pytest.raises(ValueError, match='the number of instances is 100'):
        read(first, fewer)
    with pytest.raises(ValueError, match='round 0 has no score of a task'):
        read(write_run(tmp_path / 'pretraining'))
    (first / 'recipe.yaml').write_text('method: alpha\n')
    with pytest.raises(ValueError, match='it lacks model, objective, rounds, seed, target'):
        read(first)


def test_networks_to_time_are_every_architecture_once_in_both_precisions(paths):
    starts, groups, _ = read(*paths)
    files = [f'{paths[0]}/round-{number}/model/architecture.json' for number in range(3)]
    assert networks_to_time(starts, groups) == [*files, *(f'{file}:int8' for file in files)]
    (paths[0] / 'round-1' / 'model' / 'architecture.json').unlink()
    with pytest.raises(FileNotFoundError, match='cannot be timed'):
        networks_to_time(starts, groups)


def test_panels_have_means_and_deviations_over_the_seeds(paths, tmp_path):
    starts, groups, _ = read(*paths)
    panels = panels_of(starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')
    assert [panel.title for panel in panels] == [
        '1 × 128 tokens, float32',
        '8 × 128 tokens, float32',
        '1 × 128 tokens, int8',
        '8 × 128 tokens, int8',
    ]
    assert [panel.start_ms for panel in panels] == [8.0, 80.0, 4.0, 40.0]
    for panel in panels:
        first, second = panel.lines[0].rungs
        assert first.speedup == Spread(2.0, 0.0) and second.speedup == Spread(4.0, 0.0)
        assert first.score == Spread(89.5, 0.5) and second.lost == Spread(3.0, 1.0)
        assert panel.lines[1].rungs[0].score == Spread(89.75, None)
        assert Panel.from_dict(json.loads(json.dumps(dataclasses.asdict(panel)))) == panel


def test_seeds_with_other_widths_have_times_of_their_own(tmp_path):
    networks = [widened(SMALL, filters) for filters in (0, 1)]
    paths = [
        write_task_run(tmp_path / str(i), (BASE, network), (90.0, 89.0), seed=i)
        for i, network in enumerate(networks)
    ]
    starts, groups, _ = read(*paths)
    file = write_times(tmp_path / 'times.json', {BASE: 8.0, networks[0]: 4.0, networks[1]: 2.0})
    (rung,) = panels_of(starts, groups, read_times([file]), 'mxnet')[0].lines[0].rungs
    assert [speedup for speedup, _ in rung.each] == [2.0, 4.0] and rung.speedup.mean == 3.0


def test_networks_timed_in_several_files_are_compared_within_a_file(paths, tmp_path):
    """The second file is of a day on which everything took twice as long."""
    files = [
        write_times(tmp_path / 'one.json', {BASE: 8.0, SMALL: 4.0}),
        write_times(tmp_path / 'two.json', {BASE: 16.0, TINY: 4.0}),
    ]
    starts, groups, _ = read(*paths)
    panel = panels_of(starts, groups, read_times(files), 'mxnet')[0]
    assert [rung.speedup.mean for rung in panel.lines[0].rungs] == [2.0, 4.0]
    alone = write_times(tmp_path / 'alone.json', {TINY: 2.0})
    with pytest.raises(ValueError, match='not in one file with the network before pruning'):
        panels_of(starts, groups, read_times([files[0], alone]), 'mxnet')


def test_times_that_are_missing_or_damaged_are_refused(paths, tmp_path):
    starts, groups, _ = read(*paths)
    times = read_times([write_times(tmp_path / 'times.json')])
    with pytest.raises(ValueError, match='nothing was timed in openvino; the files have mxnet'):
        panels_of(starts, groups, times, 'openvino')
    low = read_times(
        [write_times(tmp_path / 'low.json', precisions=['bfloat16'], engine='openvino-bfloat16')]
    )
    with pytest.raises(ValueError, match='nothing was timed in openvino-bfloat16 in float32 or int8'):
        panels_of(starts, groups, low, 'openvino-bfloat16')
    without = read_times([write_times(tmp_path / 'without.json', {SMALL: 1.0, TINY: 1.0})])
    with pytest.raises(ValueError, match='the network before pruning was not timed in mxnet in float32'):
        panels_of(starts, groups, without, 'mxnet')
    old = json.loads((tmp_path / 'times.json').read_text())
    del old['networks'][0]['architecture']
    for content in (json.dumps(old), '[', '[]', '{"networks": 1}'):
        (tmp_path / 'damaged.json').write_text(content)
        with pytest.raises(ValueError, match='with the widths of every network'):
            read_times([tmp_path / 'damaged.json'])
    one_precision = read_times([write_times(tmp_path / 'one.json', precisions=['float32'])])
    assert len(panels_of(starts, groups, one_precision, 'mxnet')) == 2


def test_the_best_of_each_size_is_that_with_the_highest_mean_score(paths, tmp_path):
    starts, groups, _ = read(*paths)
    panels = panels_of(starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')
    best = [(line.label.split(',')[0], rung.share) for line, rung in best_rungs(panels[0])]
    assert best == [('Fisher scores', 0.5), ('trained gates', 0.25)]
    assert sentences(panels)[2:4] == [
        'At 8 sequences of 128 tokens in float32, Fisher scores are 2.0 times as fast for 0.2 points '
        '(50 % of the FLOPs, 1 run).',
        'At 8 sequences of 128 tokens in float32, trained gates are 4.0 times as fast for 3.0 points ± 1.0 '
        '(25 % of the FLOPs, 3 runs).',
    ]


def test_sizes_that_are_equal_in_whole_percent_have_one_sentence(paths, tmp_path):
    starts, groups, _ = read(*paths)
    panel = panels_of(starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')[0]
    gates, fisher = panel.lines
    nearly = [dataclasses.replace(rung, share=rung.share + 1e-4) for rung in fisher.rungs]
    panel = dataclasses.replace(panel, lines=(gates, dataclasses.replace(fisher, rungs=tuple(nearly))))
    assert [line.label.split(',')[0] for line, _ in best_rungs(panel)] == ['Fisher scores', 'trained gates']


def test_sentences_say_what_is_gained_what_takes_longer_and_which_of_two_lines(paths, tmp_path):
    starts, groups, _ = read(*paths)
    times = read_times([write_times(tmp_path / 'times.json')])
    panel = panels_of(starts, groups, times, 'mxnet')[0]
    line = panel.lines[1]
    better = dataclasses.replace(line.rungs[0], lost=Spread(-0.5), speedup=Spread(0.5))
    assert 'take 2.0 times as long and score 0.5 points more (50 %' in sentence(panel, line, better)
    other = dataclasses.replace(line, label='Fisher scores, no training')
    twice = dataclasses.replace(panel, lines=(line, other))
    assert 'Fisher scores, no training, are 2.0 times' in sentence(twice, other, line.rungs[0])


def test_directory_has_every_point_with_its_source(paths, tmp_path):
    starts, groups, runs = read(*paths)
    values = summary(runs, starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')
    written = write(values, tmp_path / 'plot')
    assert [path.name for path in written] == ['points.json', 'table.md', 'speed.png', 'speed.svg']
    data = json.loads(written[0].read_text())
    assert len(data['points']) == 1 + 3 * 2 + 2
    point = data['points'][2]
    assert {name: point[name] for name in ('method', 'run', 'round', 'seed', 'commits', 'score', 'lost')} == {
        'method': 'trained gates, with training',
        'run': str(paths[1]),
        'round': 1,
        'seed': 2,
        'commits': ['c0ffee1'],
        'score': 89.5,
        'lost': 0.5,
    }
    assert point['standard_error'] == pytest.approx(1.04, abs=0.01) and point['flops'] > 0
    assert point['times']['mxnet']['int8']['8x128'] == {'ms': 20.0, 'ms_before_pruning': 40.0}
    assert data['times'] == [
        {'file': str(tmp_path / 'times.json'), 'commit': 'abc', 'machine': {'cpu': 'one'}, 'threads': 2}
    ]
    table = written[1].read_text()
    assert RULE in table and all(said in table for said in data['sentences'])
    assert (
        '| 50 % of the FLOPs | 3 | 0.00 M |' in table
        and '89.50 ± 0.50 | 0.50 ± 0.50 | 2.00 ± 0.00 × |' in table
    )


def test_picture_has_a_panel_for_each_shape_and_precision(paths, tmp_path):
    starts, groups, _ = read(*paths)
    panels = panels_of(starts, groups, read_times([write_times(tmp_path / 'times.json')]), 'mxnet')
    figure = draw_panels(panels, 'SST-2 accuracy')
    assert [axes.get_title(loc='center') or axes.get_title(loc='left') for axes in figure.axes] == [
        panel.title for panel in panels
    ]
    for axes in figure.axes:
        means = [list(zip(line.get_xdata(), line.get_ydata())) for line in axes.lines]
        assert [(1.0, 90.0), (2.0, 89.5), (4.0, 87.0)] in means
        assert [(1.0, 90.0), (2.0, 89.75), (4.0, 80.0)] in means
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(labels) == {'not pruned', *(group.label for group in groups)}
    assert 'in float32' in figure.axes[2].get_ylabel() and 'in float32' not in figure.axes[0].get_ylabel()


def test_a_method_has_one_colour_in_the_plots_of_all_tasks(paths, tmp_path):
    times = read_times([write_times(tmp_path / 'times.json')])

    def panel_of(*paths):
        starts, groups, _ = read(*paths)
        return panels_of(starts, groups, times, 'mxnet')[0]

    both, fisher = panel_of(*paths), panel_of(paths[-1])
    figure = draw_tasks([('SST-2 accuracy', both), ('MRPC accuracy', fisher)])
    first, second = figure.axes
    name = fisher.lines[0].label
    colours = [
        container.lines[0].get_color()
        for axes in (first, second)
        for container in axes.containers
        if container.get_label() == name
    ]
    assert len(colours) == 2 and len(set(colours)) == 1
    assert len({container.lines[0].get_color() for container in first.containers}) == 2
    assert first.get_xlim() == second.get_xlim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts].count(name) == 1
    assert [axes.get_title(loc='left') or axes.get_title() for axes in (first, second)] == [
        'SST-2 accuracy, 1 × 128 tokens, float32',
        'MRPC accuracy, 1 × 128 tokens, float32',
    ]
