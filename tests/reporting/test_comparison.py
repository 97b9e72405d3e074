"""Ways of pruning are compared by runs that repeat each other, and by scores of the very same weights."""

import dataclasses
import json

import matplotlib
import pytest
import yaml
from helpers.tiny import run
from helpers.written_runs import BASE, SMALL, write_run, write_task_run

from gluon_optbert.architecture.cost import count_flops
from gluon_optbert.deployment.verify import LEFT_OUT
from gluon_optbert.reporting.comparison import (
    ACCURACY,
    AFTER_CUT,
    COSINE,
    CUT,
    END,
    FITTED,
    FLOPS,
    LOSS,
    PAIRS,
    controls_of,
    draw,
    named,
    networks_of,
    rungs_of,
    table_of,
    with_scores,
    write,
)
from gluon_optbert.reporting.figures import STYLE
from gluon_optbert.runs.files import sha256, write_manifest

SCORE = 'SST-2 accuracy, %'


def pruned(path, loss, *, seed=1, weights=b'', **recipe):
    """A run of one round, verified, with a checksum of its own."""
    write_run(path)
    rows = json.loads((path / 'rounds.json').read_text())
    for row, flops in zip(rows, (8000, 2000)):
        row['flops'] = flops
    rows[1]['recovered'] = {'mlm_loss': loss, 'mlm_accuracy': 0.4, 'instances': 64}
    rows[1]['after_cut'] = {'mlm_loss': 4.5}
    rows[1]['after_reconstruction'] = {'mlm_loss': 3.5}
    (path / 'rounds.json').write_text(json.dumps(rows))
    settings = {'method': 'alpha', 'seed': seed, 'target': 0.6, 'rounds': 1, 'model': 'base'}
    settings.update(objective='parameters', targets=[], output=str(path), reconstruct=False)
    settings.update(recipe)
    (path / 'recipe.yaml').write_text(yaml.safe_dump(settings))
    stages = [
        {'round': 1, 'network': name, 'error': error, 'mlm_loss': 1.0}
        for name, error in (('before', 0.0), ('cut', 0.9), ('reconstructed', 0.5), ('recovered', 0.25))
    ]
    (path / 'verified.json').write_text(json.dumps({'stages': stages}))
    (path / 'round-1' / 'embeddings.json').write_text(
        json.dumps({'recovered': {'cosine': 0.9, 'pair_similarity': 0.75}})
    )
    (path / 'round-1' / 'model').mkdir()
    (path / 'round-1' / 'model' / 'model.params').write_bytes(weights or str(path).encode())
    return path


def base_of(path):
    path.mkdir()
    (path / 'architecture.json').write_text(BASE.to_json())
    (path / 'model.params').write_bytes(b'base')
    (path / 'progress.json').write_text(json.dumps({'mlm_loss': 2.0, 'mlm_accuracy': 0.5}))
    return path


def control(way, path):
    """One network that was not pruned."""
    return controls_of([f'{way}={path}'])[0]


def result_of(path, model, score, **changes):
    values = {'model_sha256': sha256(model / 'model.params'), 'metric': 'dev/accuracy', 'task': 'SST-2'}
    path.write_text(json.dumps({**values, 'mean': {'dev/accuracy': score}, **changes}))
    return path


def test_a_table_has_means_over_seeds_errors_and_scores(tmp_path):
    runs = [pruned(tmp_path / str(seed), 2.5 + seed / 10, seed=seed) for seed in (1, 2)]
    networks = [control('the base', base_of(tmp_path / 'base')), *networks_of('the paper', runs)]
    results = [
        result_of(tmp_path / f'{seed}.json', one / 'round-1' / 'model', 80 + 2 * seed)
        for seed, one in enumerate(runs)
    ]
    results.append(result_of(tmp_path / 'base.json', tmp_path / 'base', 90.0))
    first, second = rungs = rungs_of(with_scores(networks, results))
    assert (first.way, first.share, second.way) == ('the base', 1.0, 'the paper')
    assert second.spread(LOSS).mean == pytest.approx(2.65) and second.spread(LOSS).std == pytest.approx(
        0.1 / 2**0.5
    )
    assert second.spread(CUT).mean == 0.5 and second.spread(END).mean == 0.25  # fitted counts as the cut
    assert (first.spread(FLOPS).mean, second.spread(FLOPS).mean) == (100, 25)
    assert (second.spread(AFTER_CUT).mean, second.spread(FITTED).mean) == (4.5, 3.5)
    assert (second.spread(COSINE).mean, second.spread(PAIRS).mean) == (0.9, 0.75)
    assert second.spread(ACCURACY).mean == 40
    assert second.spread(SCORE).mean == 81 and first.spread(SCORE).mean == 90 and first.spread(CUT) is None
    text = table_of(rungs)
    assert '| 2.650 ± 0.071 |' in text and '| 81.0 ± 1.4 |' in text and '| the base |' in text


def test_a_picture_has_a_line_for_each_way_and_one_for_the_control(tmp_path):
    networks = [control('the base', base_of(tmp_path / 'base'))]
    for way in ('one', 'other'):
        networks += networks_of(way, [pruned(tmp_path / way, 2.5, reconstruct=way == 'other')])
    figure = draw(rungs_of(networks))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ['the base', 'one', 'other']
    (axes,) = figure.axes
    assert axes.get_title() == f'{LOSS} (lower is better)' and axes.get_xlabel() == 'parameters left, %'


def test_ten_ways_look_different(tmp_path):
    networks = [
        network for i in range(10) for network in networks_of(f'way {i}', [pruned(tmp_path / str(i), 2.5)])
    ]
    axes = draw(rungs_of(networks)).axes[0]
    shown = {(bar.lines[0].get_color(), bar.lines[0].get_marker()) for bar in axes.containers}
    assert len(axes.containers) == len(shown) == 10


def test_networks_that_were_not_pruned_are_points_if_there_are_no_others(tmp_path):
    for name, architecture, loss in (('large', BASE, 2.0), ('small', SMALL, 2.5)):
        (base_of(tmp_path / name) / 'architecture.json').write_text(architecture.to_json())
        (tmp_path / name / 'model.params').write_bytes(name.encode())
        (tmp_path / name / 'progress.json').write_text(json.dumps({'mlm_loss': loss}))
    rungs = rungs_of(controls_of([f'{name}={tmp_path / name}' for name in ('small', 'large')]))
    flops = [sum(count_flops(one, 128).values()) for one in (SMALL, BASE)]
    assert [rung.spread(FLOPS).mean for rung in rungs] == [100 * flops[0] / flops[1], 100]
    (axes,) = draw(rungs, against_flops=True).axes
    assert [bar.lines[0].get_ydata().tolist() for bar in axes.containers] == [[2.5], [2.0]]
    assert axes.containers[0].lines[0].get_xdata() == pytest.approx([100 * flops[0] / flops[1]])


def test_fifteen_controls_look_different(tmp_path):
    base = base_of(tmp_path / 'base')
    networks = [control(f'control {i}', base) for i in range(15)]
    networks += networks_of('one', [pruned(tmp_path / 'run', 2.5)])
    axes = draw(rungs_of(networks)).axes[0]
    lines = [line for line in axes.lines if line.get_label().startswith('control')]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 15


def test_names_of_many_ways_lie_within_the_picture(tmp_path):
    names = [f'{number} steps of the gates at a learning rate of 0.05' for number in range(14)]
    runs = [pruned(tmp_path / name, 2.5) for name in names]
    with matplotlib.rc_context(STYLE):
        figure = draw(
            rungs_of([network for name, run in zip(names, runs) for network in networks_of(name, [run])])
        )
        figure.canvas.draw()
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert box.x0 >= 0 and box.x1 <= whole.x1 and box.y0 >= 0
    assert figure.axes[0].get_window_extent().height > 150


def test_a_picture_has_no_panel_without_a_point(tmp_path):
    runs = [pruned(tmp_path / str(seed), 2.5 + seed / 10, seed=seed) for seed in (1, 2)]
    result = result_of(tmp_path / 'one.json', runs[0] / 'round-1' / 'model', 80.0)  # of one seed of two
    figure = draw(rungs_of(with_scores(networks_of('one', runs), [result])))
    assert [axes.get_title() for axes in figure.axes] == [f'{LOSS} (lower is better)']


def test_a_picture_has_no_panel_of_the_control_alone(tmp_path):
    base = base_of(tmp_path / 'base')
    networks = [control('the base', base), *networks_of('one', [pruned(tmp_path / 'one', 2.5)])]
    result = result_of(tmp_path / 'base.json', base, 90.0)
    figure = draw(rungs_of(with_scores(networks, [result])))
    assert [axes.get_title() for axes in figure.axes] == [f'{LOSS} (lower is better)']


def test_a_score_is_of_every_run_with_these_weights(tmp_path):
    networks = []
    for way in ('one', 'other'):
        networks += networks_of(way, [pruned(tmp_path / way, 2.5, weights=b'the same')])
    result = result_of(tmp_path / 'one.json', tmp_path / 'one' / 'round-1' / 'model', 80.0)
    assert [network.values[SCORE] for network in with_scores(networks, [result])] == [80.0, 80.0]


def test_a_picture_can_be_drawn_against_the_flops(tmp_path):
    networks = networks_of('one', [pruned(tmp_path / 'one', 2.5)])
    (rung,) = rungs_of(networks)
    (by_parameters,), (by_flops,) = (draw([rung], against_flops=flops).axes for flops in (False, True))
    places = [axes.lines[0].get_xdata()[0] for axes in (by_parameters, by_flops)]
    assert places == [100 * rung.share, rung.spread(FLOPS).mean] and places[0] != places[1]
    assert by_flops.get_xlabel() == 'FLOPs left, %'
    assert 'flops.png' in {path.name for path in write(networks, tmp_path)}
    unknown = [dataclasses.replace(networks[0], values={LOSS: 2.5})]
    assert 'flops.png' not in {path.name for path in write(unknown, tmp_path)}


def test_a_measurement_that_a_seed_lacks_has_no_mean(tmp_path):
    runs = [pruned(tmp_path / str(seed), 2.5, seed=seed) for seed in (1, 2)]
    (runs[1] / 'verified.json').unlink()
    (rung,) = rungs_of(networks_of('the paper', runs))
    assert rung.spread(LOSS) is not None and rung.spread(CUT) is None
    rows = json.loads((runs[0] / 'rounds.json').read_text())  # the base counts without a control
    assert rung.share == rows[1]['parameters'] / rows[0]['parameters']


def test_a_fit_that_was_left_out_does_not_count_as_the_cut(tmp_path):
    verified = pruned(tmp_path / 'run', 2.5) / 'verified.json'
    verified.write_text(verified.read_text().replace('"reconstructed"', f'"{LEFT_OUT}"'))
    (network,) = networks_of('both', [tmp_path / 'run'])
    assert network.values[CUT] == 0.9


def test_run_of_an_earlier_version_goes_with_runs_that_do_what_it_did(tmp_path):
    earlier, same = pruned(tmp_path / 'one', 2.5), {'seed': 2, 'h_gate': 'stream', 'keep_best': False}
    same['keep_embeddings'] = True  # which reports alone
    assert len(networks_of('both', [earlier, pruned(tmp_path / 'same', 2.5, **same)])) == 2
    other = pruned(tmp_path / 'other', 2.5, **{**same, 'keep_best': True})
    with pytest.raises(ValueError, match=r'differs from .* in keep_best;'):
        networks_of('both', [earlier, other])


def test_runs_of_other_sizes_may_differ_in_the_steps_of_recovery(tmp_path):
    one = pruned(tmp_path / 'one', 2.5, recovery_steps=10)
    smaller = pruned(tmp_path / 'smaller', 2.9, recovery_steps=20, target=0.4)
    assert len(networks_of('both', [one, smaller])) == 2
    longer = pruned(tmp_path / 'longer', 2.8, recovery_steps=30, target=0.4, seed=2)
    with pytest.raises(ValueError, match='longer differs from .*smaller in recovery_steps;'):
        networks_of('all', [one, smaller, longer])


def test_a_run_is_no_repetition_of_itself_nor_its_rounds_of_each_other(tmp_path):
    one, again = pruned(tmp_path / 'one', 2.5), pruned(tmp_path / 'again', 2.5)
    for runs in ([one, one], [one, again]):
        with pytest.raises(ValueError, match='have the same sizes and seed; one of them is no repetition'):
            networks_of('both', runs)
    (network,) = networks_of('one', [one])
    later = dataclasses.replace(network, round=2, parameters=network.parameters - 1)
    assert [len(rung.networks) for rung in rungs_of([network, later])] == [1, 1]


def test_controls_of_one_name_repeat_each_other(tmp_path):
    for name, loss in (('one', 2.0), ('other', 2.2)):
        base_of(tmp_path / name)
        (tmp_path / name / 'model.params').write_bytes(name.encode())
        (tmp_path / name / 'progress.json').write_text(json.dumps({'mlm_loss': loss}))
    texts = [f'trained on={tmp_path / name}' for name in ('one', 'other')]
    (rung,) = rungs_of(controls_of(texts))
    assert len(rung.networks) == 2 and rung.spread(LOSS).mean == pytest.approx(2.1)
    with pytest.raises(ValueError, match='given twice; one of them is no repetition'):
        controls_of([texts[0], texts[0]])
    with pytest.raises(ValueError, match='give every control as NAME=MODEL'):
        controls_of([f'{texts[0]},{tmp_path / "other"}'])


def manifest_alone(model):
    """Take the weights of a model directory away, and leave what its manifest says of them."""
    model.mkdir(parents=True, exist_ok=True)
    weights = model / 'model.params'
    if not weights.exists():
        weights.write_bytes(b'base')
    write_manifest(model, form='gluon_optbert model', version=1)
    checksum = sha256(weights)
    weights.unlink()
    return checksum


def test_scores_find_a_network_whose_weights_were_not_kept(tmp_path):
    model = pruned(tmp_path / 'one', 2.5) / 'round-1' / 'model'
    result = result_of(tmp_path / 'result.json', model, 84.0)
    manifest_alone(model)
    (network,) = with_scores(networks_of('one', [tmp_path / 'one']), [result])
    assert network.values[SCORE] == 84
    (model / 'manifest.json').write_text('{"files": []}')
    with pytest.raises(ValueError, match='manifest.json: not the manifest of a network'):
        with_scores(networks_of('one', [tmp_path / 'one']), [result])


def test_table_says_if_the_runs_began_with_different_networks(tmp_path):
    runs = [pruned(tmp_path / str(seed), 2.5, seed=seed) for seed in (1, 2)]
    bases = [manifest_alone(one / 'round-0' / 'model') for one in runs]
    networks = networks_of('the paper', runs)
    assert [network.base for network in networks] == bases
    for name, words in (('same', False), ('different', True)):
        (tmp_path / name).mkdir()
        write(networks, tmp_path / name)
        said = 'The runs began with 2 different networks.' in (tmp_path / name / 'table.md').read_text()
        assert said == words
        networks = [networks[0], dataclasses.replace(networks[1], base='f00')]


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = pruned(tmp_path / 'one', 2.5)
    other = pruned(tmp_path / 'other', 2.5, reconstruct=True)
    with pytest.raises(ValueError, match='differs from .* in reconstruct; give it a name of its own'):
        networks_of('both', [one, other])
    task = write_task_run(tmp_path / 'task', (BASE, SMALL), (90.0, 89.0))
    with pytest.raises(ValueError, match='was pruned for a task'):
        networks_of('task', [task])
    networks, model = networks_of('one', [one]), one / 'round-1' / 'model'
    result = result_of(tmp_path / 'result.json', model, 80.0)
    with pytest.raises(ValueError, match='a second result'):
        with_scores(networks, [result, result])
    with pytest.raises(ValueError, match='fine-tuned from none of these networks'):
        with_scores(networks, [result_of(tmp_path / 'none.json', model, 80.0, model_sha256='0')])
    with pytest.raises(ValueError, match='not a result of fine-tuning'):
        with_scores(networks, [result_of(tmp_path / 'odd.json', model, 80.0, mean=None)])
    (one / 'verified.json').write_text('{"stages": [{}]}')
    with pytest.raises(ValueError, match='not what verify.py writes'):
        networks_of('one', [one])


@pytest.mark.parametrize('text', ['runs/one', '=runs/one', 'one=', ' =a'])
def test_a_way_has_a_name_and_runs(text):
    with pytest.raises(ValueError, match='wanted NAME=DIRECTORY,DIRECTORY'):
        named(text)
    assert named('a = b=c,d')[0] == 'a = b'


def test_the_command_wants_something_to_compare(tmp_path):
    done = run('tools/compare_pruning.py', '--output', tmp_path / 'out')
    assert done.returncode == 2 and 'give at least one way of pruning, or --controls' in done.stderr


def test_the_command_writes_points_table_and_picture(tmp_path):
    one = pruned(tmp_path / 'one', 2.5)
    words = [
        f'the paper={one}',
        '--controls',
        f'base={base_of(tmp_path / "base")}',
        '--output',
        tmp_path / 'out',
    ]
    done = run('tools/compare_pruning.py', *words)
    assert done.returncode == 0, done.stderr
    assert '| the paper |' in done.stdout and (tmp_path / 'out' / 'comparison.png').stat().st_size > 1000
    (base, network) = json.loads((tmp_path / 'out' / 'points.json').read_text())['points']
    assert network['values'][LOSS] == 2.5 and network['seed'] == 1 and base['run'] is None
    again = run('tools/compare_pruning.py', *words)
    assert again.returncode == 2 and again.stderr.startswith('error: ') and again.stderr.count('\n') == 1
