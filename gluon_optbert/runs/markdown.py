"""Tables in Markdown."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

_RULES = {'-': '---', 'l': ':---', 'c': ':---:', 'r': '---:'}


def markdown_table(
    header: Sequence[Any], rows: Iterable[Sequence[Any]], *, align: Optional[str] = None
) -> str:
    """The lines of a table, without a line end behind the last.

    Parameters
    ----------
    header : sequence
        The heads of the columns; they and all cells are written as `str` gives them, None as an empty cell.
    rows : iterable of sequence
        The cells of each row, as many as heads.
    align : str, optional
        A letter for each column: l, c or r; ``-`` leaves it to the reader's program, as all are without it.

    Raises
    ------
    ValueError
        If a row or `align` has another length than the header, or `align` another letter.
    """
    align = '-' * len(header) if align is None else align
    if len(align) != len(header) or not set(align) <= set(_RULES):
        raise ValueError(
            f'align {align!r}: wanted one of {" ".join(_RULES)} for each of {len(header)} columns'
        )
    lines = [markdown_row(header), markdown_row([_RULES[letter] for letter in align])]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f'{len(row)} cells below {len(header)} heads: {row!r:.200}')
        lines.append(markdown_row(row))
    return '\n'.join(lines)


def markdown_row(cells: Sequence[Any]) -> str:
    """One line of a table; None is an empty cell, a pipe is escaped, and a line break becomes a space."""
    return '|' + ''.join(' |' if cell is None else f' {_text(cell)} |' for cell in cells)


def _text(cell: Any) -> str:
    return ' '.join(str(cell).splitlines()).replace('|', '\\|')
