"""The published tables: whole, marked where they were inferred, and as consistent as the paper is."""

from decimal import Decimal
from pathlib import Path

import pytest

from gluon_optbert.architecture import paper
from gluon_optbert.architecture.paper import NUMBERS, load_table

RESULTS = (6, 8, 9, 11, 13, 14, 15)
TASKS = ('squad1_f1', 'squad2_f1', 'mnli', 'mrpc', 'sst2', 'rte')


@pytest.mark.parametrize('number', NUMBERS)
def test_every_table_names_its_source(number):
    table = load_table(number)
    assert table.source.endswith(f', Table {number}') and table.caption and table.rows
    assert len(table.architectures) == len(table.rows)
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names) and {len(row) for row in table.rows} == {len(names)}
    cells = [(one.row, one.column) for one in table.inferred]
    assert all(one.reason for one in table.inferred) and len(set(cells)) == len(cells)
    assert all(0 <= row < len(table.rows) and column in names for row, column in cells)


def test_every_file_is_a_table():
    files = sorted(path.name for path in Path(paper.__file__).with_name('paper').iterdir())
    assert files == [f'table_{number:02d}.json' for number in NUMBERS]


def test_published_averages_are_means_of_their_rows_but_for_one():
    wrong = {}
    for number in RESULTS:
        for row in load_table(number).records():
            if row['average'] is not None:
                mean = sum(Decimal(str(row[task])) for task in TASKS) / 6
                # half of the last digit printed
                if abs(mean - Decimal(str(row['average']))) > Decimal('0.05'):
                    wrong[number, row['model']] = (row['average'], round(mean, 1))
    assert wrong == {(15, 'BERT-all uniform'): (71.7, Decimal('77.7'))}


@pytest.mark.parametrize('number, size', [(7, 88), (12, 99)])
def test_layer_tables_span_the_ranges_of_table_10(number, size):
    table, ranges = (
        load_table(number),
        next(row for row in load_table(10).records() if row['parameters_m'] == size),
    )
    assert (table.settings['h'], len(table.rows)) == (ranges['h'], ranges['layers'])
    for letter in 'fakv':
        widths = [row[letter] for row in table.records()]
        assert (min(widths), max(widths)) == (ranges[letter + '_min'], ranges[letter + '_max'])


def test_unknown_table_is_named_with_what_there_is():
    with pytest.raises(ValueError, match='Table 2; there is for 1, 6, 7'):
        load_table(2)
