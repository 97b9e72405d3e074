"""Plots and pages show of widths, gates and losses what the runs and the paper say."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.written_runs import BASE, SMALL, write_run

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.architecture.rounds import GateRecord
from gluon_optbert.reporting.figures import (
    alpha_bins,
    draw_alphas,
    draw_gates,
    draw_losses,
    draw_settling,
    draw_widths,
    save,
)
from gluon_optbert.reporting.networks import labels_of, paper_networks, read_gates, read_run, size_table
from gluon_optbert.reporting.sections import of_rounds

RECORD = {
    'round': 1,
    'steps': 40,
    'stopped': 'settled',
    'overlaps': [[20, 0.9], [30, 0.97], [40, 0.99]],
    'units': {'h': 4, 'f': 16},
    'closed': {'h': 1, 'f': 12},
    'open': {'h': 2, 'f': 0},
    'alpha_at_cut': {'h': 0.25, 'f': None},
    'split_half': {'h': 0.5, 'f': 0.1},
    'split_half_error': {'h': 0.1, 'f': 0.2},
}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return read_run(write_run(tmp_path_factory.mktemp('run') / 'pruned'), 'pruned')


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_label()[0] != '_'}


def hollow(axes):
    return [line for line in axes.lines if str(line.get_markerfacecolor()) == 'white']


def test_same_run_gives_the_same_bytes(run, tmp_path):
    first, second = (save(draw_losses([run]), tmp_path / name, 'losses') for name in ('first', 'second'))
    assert first != second and [one.read_bytes() for one in first] == [one.read_bytes() for one in second]


def test_lines_are_the_widths_of_every_round(run):
    for letter in 'fakv':
        (axes,) = draw_widths(letter, run.networks()).axes
        expected = [[getattr(layer, letter) for layer in network.layers] for network in (BASE, SMALL)]
        assert list(lines(axes).values()) == expected and axes.get_ylim()[0] == 0


def test_paper_lines_are_tables_12_and_7_and_inferred_widths_are_hollow():
    (axes,) = draw_widths('v', paper_networks()).axes
    assert lines(axes) == {
        'BERT-base, 108M': [64] * 12,
        'optBERT-all, 99M': [row['v'] for row in load_table(12).records()],
        'optBERT-all, 88M': [row['v'] for row in load_table(7).records()],
    }
    assert [list(zip(line.get_xdata(), line.get_ydata())) for line in hollow(axes)] == [[(1, 54)], []]


def test_histograms_count_every_gate_once_divided_as_the_selection_says(run):
    gates = read_gates(run)
    ((number, letters),) = gates
    counts = {letter: tuple(map(len, pair)) for letter, pair in letters.items()}
    assert (number, counts) == (1, {'h': (3, 1), 'a': (3, 1), 'k': (3, 1), 'v': (3, 1), 'f': (12, 4)})
    figure = draw_alphas(letters, alpha_bins(gates))
    # h is shared by the layers, the others are those of two layers; the last place has the legend
    assert [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes] == [4, 4, 4, 4, 16, 0]


def test_losses_are_those_after_the_cut_and_after_recovery(run):
    base, small = (ParameterCost().cost(network) / 1e6 for network in (BASE, SMALL))
    drawn = [list(zip(line.get_xdata(), line.get_ydata())) for line in draw_losses([run]).axes[0].lines]
    assert drawn == [[(base, 2.0), (small, 2.5)], [(small, 3.0)], [(small, 3.0), (small, 2.5)]]
    _, _, first, second = (row.split(' | ')[2:5] for row in size_table([run]).splitlines())
    assert first == ['100.0%', '', '2.000'] and second == [f'{small / base:.1%}', '3.000', '2.500']


def test_a_legend_has_names_that_begin_with_an_underscore(run):
    (axes,) = draw_losses([dataclasses.replace(run, label='_first'), run]).axes
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()][:2] == ['_first', 'pruned']
    figure = draw_widths('f', [dataclasses.replace(one, label=f'_{one.label}') for one in run.networks()])
    assert len(figure.legends[0].get_texts()) == 2


def test_runs_of_the_same_name_are_told_apart():
    assert labels_of([Path('/a/x/run'), Path('/b/x/run'), Path('/c')]) == ['a/x/run', 'b/x/run', 'c']
    assert labels_of([Path('/a/run/round-4/model'), Path('/a/base')]) == ['run/round-4/model', 'base']
    assert labels_of([Path('/model')]) == ['model']
    with pytest.raises(ValueError, match='given twice'):
        labels_of([Path('/a'), Path('/a/')])


def test_gates_are_drawn_as_the_rounds_recorded_them():
    figure = draw_gates([GateRecord.from_dict(RECORD)])
    closed, opened, at_cut, correlation = map(lines, figure.axes)
    h, f = 'h (hidden units)', 'f (filters)'
    assert (closed[h], closed[f]) == ([0.25], [0.75]) and (opened[h], opened[f]) == ([0.5], [0.0])
    assert (at_cut[h], at_cut[f]) == ([0.25], []) and (correlation[h], correlation[f]) == ([0.5], [0.1])
    assert [list(line.get_ydata()) for line in hollow(figure.axes[-1])] == [[0.1]]  # twice its error is 0.4
    assert 'hollow: no better than chance' in [text.get_text() for text in figure.legends[0].get_texts()]


def test_settling_is_drawn_over_the_steps():
    for stopped, unsettled in (('settled', 0), ('steps', 1)):
        (axes,) = draw_settling([GateRecord.from_dict({**RECORD, 'stopped': stopped})]).axes
        assert lines(axes) == {'round 1': [0.9, 0.97, 0.99]} and len(hollow(axes)) == unsettled
    assert draw_settling([GateRecord.from_dict({**RECORD, 'overlaps': []})]) is None


def test_page_has_plots_and_numbers_of_the_gates_that_were_trained(tmp_path):
    path = write_run(tmp_path / 'run')
    (path / 'round-1' / 'gates.json').write_text(json.dumps(RECORD))
    content = dict(of_rounds(read_run(path, 'pruned')))['Gates']
    assert content.count('<img') == 3  # histograms, rounds, settling
    assert '0.25' in content and '0.50' in content and 'below 0.05' in content
    (path / 'round-1' / 'alphas.npz').unlink()
    assert dict(of_rounds(read_run(path, 'pruned')))['Gates'].count('<img') == 2  # rounds, settling
    for damage in ({'units': 3}, {'closed': {}}, {'open': {'h': 2, 'k': 0}}, {'overlaps': [1]}):
        (path / 'round-1' / 'gates.json').write_text(json.dumps({**RECORD, **damage}))
        with pytest.raises(ValueError, match='gates.json: '):
            read_run(path, 'pruned').gate_records()
    untrained = read_run(write_run(tmp_path / 'untrained', trained=False), 'pruned')
    assert 'Gates' not in dict(of_rounds(untrained))
