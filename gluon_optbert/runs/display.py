"""Progress of long work for people: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psutil
from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

IN_NOTEBOOK = tqdm is not tqdm_asyncio  # one that shows tqdm's own bar
_RULES = {'-': '---', 'l': ':---', 'c': ':---:', 'r': '---:'}


def markdown_table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, align: str | None = None) -> str:
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


_PREFIX = len('[0]<stderr>:') + 1  # what horovodrun puts in front of a bar, and a space at the end
_FORKED = '--multiprocessing-fork'  # a word in the command line of the process that horovodrun puts between


class Display:
    """The steps of something long: a bar on a terminal or in a notebook, and elsewhere a line at the
    beginning.

    Parameters
    ----------
    title : str
        What is done.
    total : int
        How many steps it has.
    start : int
        How many of them are done.
    unit : str
        What a step is called.
    quiet : bool
        Whether to show nothing, as on workers other than the first.
    """

    def __init__(self, title: str, total: int, *, start: int = 0, unit: str = 'step', quiet: bool = False):
        self.title, self.total, self.done, self.unit = title, total, start, unit
        self._start, self._began, self._quiet = start, time.monotonic(), quiet
        self._bar: tqdm | None = None
        width = None if quiet else columns()
        if IN_NOTEBOOK and not quiet:
            self._bar = tqdm(total=total, initial=start, desc=title, unit=unit, unit_scale=total > 10**6)
        elif width is not None:
            # a terminal of its own may change its width, unless it does not say it
            own = sys.stderr.isatty() and os.get_terminal_size(2).columns > 0
            self._bar = tqdm(
                total=total,
                initial=start,
                desc=title,
                unit=unit,
                unit_scale=total > 10**6,
                dynamic_ncols=own,
                ncols=None if own else width,
                nrows=None if own else 24,
            )

    def advance(self, steps: int = 1) -> None:
        """So many more steps are done."""
        self.done += steps
        if self._bar is not None:
            self._bar.update(steps)

    def time_left(self) -> str:
        """Time for the steps that are left at the speed so far, as ``3 min left``.

        It is empty before the first step and after the last one, and where the bar says it.
        """
        if self._bar is not None or self.done >= self.total or self.done == self._start:
            return ''
        seconds = (time.monotonic() - self._began) / (self.done - self._start)
        return f'{duration(seconds * (self.total - self.done))} left'

    def say(self, line: str) -> None:
        """Show a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        elif not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Counting:
    """A `Display` of its own lines: one at the beginning, and then one at most every ten seconds.

        with counting('verifying', 4, unit='round') as count:
            for number in range(1, 5):
                ...
                count()

    Parameters
    ----------
    display : Display
    seconds : float
        Between two lines.
    """

    def __init__(self, display: Display, seconds: float = 10.0):
        self._display, self._seconds, self._shown = display, seconds, time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        """So many more steps are done."""
        display = self._display
        display.advance(steps)
        left, now = display.time_left(), time.monotonic()
        if left and now - self._shown >= self._seconds:
            self._shown = now
            display.say(f'{display.title} | {display.unit} {display.done:,}/{display.total:,} | {left}')


@contextlib.contextmanager
def counting(title: str, total: int, *, unit: str = 'step', seconds: float = 10.0) -> Iterator[Counting]:
    """While something that has no lines of its own is done: a bar on a terminal, lines elsewhere.

    Parameters
    ----------
    title : str
        What is done.
    total : int
        How many steps it has.
    unit : str
        What a step is called.
    seconds : float
        Between two lines.
    """
    with Display(title, total, unit=unit) as display:
        if columns() is None and not IN_NOTEBOOK:
            display.say(f'{title}: {total:,} {unit}{"" if total == 1 else "s"}')
        yield Counting(display, seconds)


def duration(seconds: float) -> str:
    """A time to wait, for people: ``40 s``, ``3 min``, ``2 h 5 min``, ``4 d 3 h``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f'{max(1, round(seconds))} s'
    if minutes < 60:
        return f'{minutes} min'
    hours = round(seconds / 3600)
    if hours < 24:
        return f'{minutes // 60} h {minutes % 60} min'
    return f'{hours // 24} d {hours % 24} h'


def columns() -> int | None:
    """Columns of the terminal that shows standard error, for a bar; None if none does.

    The standard error of a worker of horovodrun is a pipe. horovodrun passes on what ends with a carriage
    return as it comes, so a bar works where its own standard error is a terminal of this host.
    """
    if sys.stderr.isatty():
        return _width(2)
    if 'HOROVOD_RANK' not in os.environ:
        return None
    try:
        between = next(parent for parent in psutil.Process().parents() if _FORKED in parent.cmdline())
        terminal = os.open(f'/proc/{between.ppid()}/fd/2', os.O_WRONLY | os.O_NOCTTY)
    except (psutil.Error, OSError, StopIteration):  # another launcher, another host, no standard error
        return None
    try:
        return _width(terminal) - _PREFIX if os.isatty(terminal) else None
    finally:
        os.close(terminal)


def _width(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:  # a terminal of a program that does not say its size
        return 80
