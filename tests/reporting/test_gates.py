"""What a page shows of the gates of a run is what its rounds recorded."""

import json

import pytest
from helpers.written_runs import write_run

from gluon_optbert.reporting.figures import draw_gates, draw_settling
from gluon_optbert.reporting.networks import read_run
from gluon_optbert.reporting.sections import gates_table, of_rounds

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


def run_with(path, **changes):
    write_run(path)
    (path / 'round-1' / 'gates.json').write_text(json.dumps({**RECORD, **changes}))
    return read_run(path, 'pruned')


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_label()[0] != '_'}


def test_panels_are_what_the_rounds_recorded(tmp_path):
    figure = draw_gates(run_with(tmp_path / 'run').gate_records())
    closed, opened, at_cut, correlation = map(lines, figure.axes)
    h, f = 'h (hidden units)', 'f (filters)'
    assert (closed[h], closed[f]) == ([0.25], [0.75]) and (opened[h], opened[f]) == ([0.5], [0.0])
    assert (at_cut[h], at_cut[f]) == ([0.25], []) and (correlation[h], correlation[f]) == ([0.5], [0.1])


def test_a_correlation_that_may_be_chance_is_hollow(tmp_path):
    figure = draw_gates(run_with(tmp_path / 'run').gate_records())
    hollow = [line for line in figure.axes[-1].lines if line.get_markerfacecolor() == 'white']
    assert [list(line.get_ydata()) for line in hollow] == [[0.1]]  # twice its error is 0.4
    assert 'hollow: no better than chance' in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize('stopped, hollow', [('settled', 0), ('steps', 1)])
def test_settling_is_drawn_over_the_steps(tmp_path, stopped, hollow):
    figure = draw_settling(run_with(tmp_path / 'run', stopped=stopped).gate_records())
    (axes,) = figure.axes
    assert lines(axes) == {'round 1': [0.9, 0.97, 0.99]}
    assert sum(line.get_markerfacecolor() == 'white' for line in axes.lines) == hollow
    assert draw_settling(run_with(tmp_path / 'fixed', overlaps=[]).gate_records()) is None


def test_page_has_plots_and_numbers_of_the_gates(tmp_path):
    sections = dict(of_rounds(run_with(tmp_path / 'run')))
    assert sections['Gates'].count('<img') == 3  # histograms, rounds, settling
    cells = gates_table(run_with(tmp_path / 'other').gate_records())
    assert '0.25' in cells and '0.50' in cells and 'below 0.05' in cells
    write_run(tmp_path / 'untrained', trained=False)
    assert 'Gates' not in dict(of_rounds(read_run(tmp_path / 'untrained', 'pruned')))


def test_page_of_a_round_without_its_gates_shows_their_record(tmp_path):
    run = run_with(tmp_path / 'run')
    (run.path / 'round-1' / 'alphas.npz').unlink()
    assert dict(of_rounds(run))['Gates'].count('<img') == 2  # rounds, settling


@pytest.mark.parametrize(
    'change', [{'units': 3}, {'closed': {}}, {'open': {'h': 'x', 'f': 1}}, {'overlaps': [1]}]
)
def test_a_damaged_record_is_named(tmp_path, change):
    run = run_with(tmp_path / 'run', **change)
    with pytest.raises(ValueError, match='gates.json: '):
        run.gate_records()
