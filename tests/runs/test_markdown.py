"""Tables in Markdown."""

import re

import pytest
from hypothesis import given, strategies as st

from gluon_optbert.runs.display import markdown_row, markdown_table


def test_a_table_is_its_header_a_rule_and_its_rows():
    assert markdown_table(['a', '', 3], [(1, 'x y', ''), [None, 2.5, '–']]) == '\n'.join(
        ['| a |  | 3 |', '| --- | --- | --- |', '| 1 | x y |  |', '| | 2.5 | – |']
    )
    assert markdown_table(['a'], iter([])) == '| a |\n| --- |'
    assert markdown_table('abc', [], numbers=True).splitlines()[1] == '| :--- | ---: | ---: |'


@given(st.lists(st.text('a|\n\r\u2028 ', max_size=8), min_size=1, max_size=3))
def test_every_cell_is_found_again(row):
    line = markdown_row(row)
    assert len(line.splitlines()) == 1
    cells = [cell[1:-1].replace('\\|', '|') for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
    assert cells == [' '.join(cell.splitlines()) for cell in row]


def test_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match='1 cells below 2 heads'):
        markdown_table(['a', 'b'], [(1,)])
