"""What the plots show is what the runs and the paper say."""

from pathlib import Path

import pytest
from helpers.written_runs import BASE, SMALL, write_run

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.reporting.figures import alpha_bins, draw_alphas, draw_losses, draw_widths, save
from gluon_optbert.reporting.networks import labels_of, loss_table, paper_networks, read_gates, read_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / 'pruned')


def drawn(figure):
    return {
        line.get_label(): list(line.get_ydata())
        for line in figure.axes[0].lines
        if not line.get_label().startswith('_')
    }


def test_same_run_gives_the_same_bytes(run, tmp_path):
    written = [
        save(draw_losses([read_run(run, 'pruned')]), tmp_path / attempt, 'losses')
        for attempt in ('first', 'second')
    ]
    for first, second in zip(*written):
        assert first != second and first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize('letter', 'fakv')
def test_lines_are_the_widths_of_every_round(run, letter):
    figure = draw_widths(letter, read_run(run, 'pruned').networks())
    expected = [[getattr(layer, letter) for layer in network.layers] for network in (BASE, SMALL)]
    assert list(drawn(figure).values()) == expected
    assert figure.axes[0].get_ylim()[0] == 0


def test_paper_lines_are_tables_12_and_7_and_inferred_widths_are_hollow():
    figure = draw_widths('v', paper_networks())
    assert drawn(figure) == {
        'BERT-base, 108M': [64] * 12,
        'optBERT-all, 99M': list(load_table(12).column('v')),
        'optBERT-all, 88M': list(load_table(7).column('v')),
    }
    hollow = [
        list(zip(line.get_xdata(), line.get_ydata()))
        for line in figure.axes[0].lines
        if str(line.get_markerfacecolor()) == 'white'
    ]
    assert hollow == [[(1, 54)], []]


def test_gates_are_divided_as_the_selection_says(run):
    ((number, letters),) = read_gates(read_run(run, 'pruned'))
    counts = {letter: tuple(map(len, pair)) for letter, pair in letters.items()}
    assert (number, counts) == (1, {'h': (3, 1), 'a': (3, 1), 'k': (3, 1), 'v': (3, 1), 'f': (12, 4)})


def test_bars_of_a_round_count_every_unit_once(run):
    gates = read_gates(read_run(run, 'pruned'))
    ((_, letters),) = gates
    figure = draw_alphas(letters, alpha_bins(gates))
    # h is shared by the layers, the others are those of two layers; the last place has the legend
    assert [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes] == [4, 4, 4, 4, 16, 0]


def test_losses_are_those_after_the_cut_and_after_recovery(run):
    sizes = [ParameterCost().cost(network) / 1e6 for network in (BASE, SMALL)]
    recovered, cut, joined = [
        list(zip(line.get_xdata(), line.get_ydata()))
        for line in draw_losses([read_run(run, 'pruned')]).axes[0].lines
    ]
    assert (
        recovered == [(sizes[0], 2.0), (sizes[1], 2.5)]
        and cut == [(sizes[1], 3.0)]
        and joined == [*cut, recovered[1]]
    )


def test_table_has_every_network_with_its_losses(run):
    _, _, first, second = loss_table([read_run(run, 'pruned')]).splitlines()
    size = ParameterCost().cost(SMALL) / ParameterCost().cost(BASE)
    assert first.split(' | ')[2:5] == ['100.0%', '', '2.000'] and second.split(' | ')[2:5] == [
        f'{size:.1%}',
        '3.000',
        '2.500',
    ]


def test_runs_of_the_same_name_are_told_apart():
    assert labels_of([Path('/a/x/run'), Path('/b/x/run'), Path('/c')]) == ['a/x/run', 'b/x/run', 'c']
    assert labels_of([Path('/a/run/round-4/model'), Path('/a/base')]) == ['run/round-4/model', 'base']
    assert labels_of([Path('/model')]) == ['model']
    with pytest.raises(ValueError, match='given twice'):
        labels_of([Path('/a'), Path('/a/')])
