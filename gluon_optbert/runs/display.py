"""Progress of long work for people: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

if TYPE_CHECKING:
    import jinja2

IN_NOTEBOOK = tqdm is not tqdm_asyncio  # one that shows tqdm's own bar
T = TypeVar('T')


@functools.cache
def markdown_template(path: Path, **filters: Callable[..., Any]) -> jinja2.Template:
    """A template of Markdown that may use some filters; a name that it is not given is an error."""
    import jinja2  # few commands need it, and all import this module

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(path.name)


def markdown_table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, numbers: bool = False) -> str:
    """The lines of a table, without a line end behind the last; ValueError if a row has another length than
    the header. With `numbers` all columns but the first stand at the right.
    """
    rules = [':---', *['---:'] * (len(header) - 1)] if numbers else ['---'] * len(header)
    lines = [markdown_row(header), markdown_row(rules)]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f'{len(row)} cells below {len(header)} heads: {row!r:.200}')
        lines.append(markdown_row(row))
    return '\n'.join(lines)


def markdown_row(cells: Sequence[Any]) -> str:
    """One line of a table: cells as `str` gives them, but None is empty, a pipe is escaped, and a line break
    becomes a space.
    """
    texts = ('' if cell is None else ' ' + ' '.join(str(cell).splitlines()) for cell in cells)
    return '|' + ''.join(text.replace('|', '\\|') + ' |' for text in texts)


_PREFIX = len('[0]<stderr>:') + 1  # what horovodrun puts in front of a bar, and a space at the end
_FORKED = '--multiprocessing-fork'  # a word in the command line of the process that horovodrun puts between


MOMENT = 1.5  # seconds that something may take without a word
_SHOWN: list[Display] = []  # that are open, the outermost first
_LOCK = threading.RLock()
_TICK, _LONG = 0.5, 60.0  # seconds until a bar is renewed, and a line that says the same


class Display:
    """The steps of something long: a bar on a terminal or in a notebook, and elsewhere lines.

        with Display('verifying', 4, unit='round', seconds=10) as display:
            for number in range(1, 5):
                ...
                display.advance()

    A thread keeps the bar moving while a step takes long. What is shown while another display has a bar
    stands behind that one.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,  # steps; None where that is not known
        *,
        start: int = 0,  # how many of them are done
        unit: str = 'step',
        quiet: bool = False,  # whether to show nothing, as on workers other than the first
        seconds: float | None = None,  # between two lines, where there is no bar; by default there are none
        after: float = 0.0,  # that it has to take to be shown at all; its bar goes when it is done
    ):
        self.title, self.total, self.done, self.unit = title, total, start, unit
        self._start, self._began, self._quiet = start, time.monotonic(), quiet
        self._width = None if quiet else 80 if IN_NOTEBOOK else columns()
        self._seconds, self._said, self._known = seconds, -1.0, start  # when a line was said, and of how many
        # lines within something that has its own wait longer
        self._after = after if self._width is not None or not _SHOWN else max(after, seconds or 0.0)
        self._bar: tqdm | None = None
        self._within: Display | None = None  # the one whose bar shows this, too
        self.tick()

    def advance(self, steps: int = 1) -> None:
        """So many more steps are done."""
        self.done += steps
        if self._bar is not None:
            self._bar.update(self.done - self._bar.n)  # the thread may have shown them already
        if self._width is None:
            self.tick()

    def time_left(self) -> str:
        """Time for the steps that are left at the speed so far, as ``3 min left``.

        It is empty before the first step and after the last one, and where the bar says it.
        """
        if self._bar is not None or self.total is None or self.done >= self.total or self.done == self._start:
            return ''
        seconds = (time.monotonic() - self._began) / (self.done - self._start)
        return f'{duration(seconds * (self.total - self.done))} left'

    def say(self, line: str) -> None:
        """Show a line, above the bar if there is one."""
        shown = self if self._bar is not None else self._within
        if shown is not None and shown._bar is not None:
            shown._bar.write(line, file=sys.stderr)
        elif not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Show how far it is, if it is time to."""
        now = time.monotonic()
        if self._quiet or now - self._began < self._after:
            return
        if self._width is not None:
            with _LOCK:
                self._refresh(self._width, now)
        elif self._seconds is not None and (self._said < 0 or now - self._said >= self._seconds):
            left = self.time_left()
            several = '' if self.total is None else f': {number_of(self.total, self.unit)}'
            if self._said < 0 and self.done == self._start:
                self._said = now
                self.say(f'{self.title}{several}')
            elif left and (self.done != self._known or now - self._said >= _LONG):
                self._said, self._known = now, self.done
                self.say(f'{self.title} | {self.unit} {self.done:,}/{self.total:,} | {left}')

    def _refresh(self, width: int, now: float) -> None:
        """Show or renew the bar, or what this says in another one's."""
        if self._within is not None and self._within._bar is None:  # that one is done
            self._within = None
        if self._within is None and self._bar is None:
            self._within = next((other for other in _SHOWN if other._bar is not None), None)
        if self._within is not None:
            far = '' if self.total is None else f' {self.done:,}/{self.total:,}'
            self._within._bar.set_postfix_str(f'{self.title}{far}')
        elif self._bar is not None:
            self._bar.set_description(self.title)
        else:
            # a terminal of its own may change its width, unless it does not say it
            own = sys.stderr.isatty() and _width(2) > 0
            sizes = {'dynamic_ncols': own, 'ncols': None if own else width, 'nrows': None if own else 24}
            self._bar = tqdm(
                total=self.total,
                initial=self._start,
                desc=self.title,
                unit=self.unit,
                unit_scale=(self.total or 0) > 10**6,
                leave=not self._after,
                bar_format=None if self.total else '{desc}: {elapsed}',
                **({} if IN_NOTEBOOK else sizes),
            )
            self._bar.start_t -= now - self._began
            self._bar.update(self.done - self._start)

    def __enter__(self) -> Display:
        if not self._quiet:
            with _LOCK:
                _SHOWN.append(self)
                if len(_SHOWN) == 1:
                    threading.Thread(target=_tick, args=(self,), name='display', daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            if self in _SHOWN:
                _SHOWN.remove(self)
            if self._within is not None and self._within._bar is not None:
                self._within._bar.set_postfix_str('')
            if self._bar is not None:
                self._bar.close()
                self._bar = None


def _tick(first: Display) -> None:
    """Renew what is shown, as long as a display or one within it is."""
    while first in _SHOWN:
        threading.Event().wait(_TICK)
        with _LOCK:
            for display in _SHOWN if first in _SHOWN else ():
                display.tick()


def doing(title: str, total: int | None = None, *, unit: str = 'step', quiet: bool = False) -> Display:
    """A `Display` of what is said once it has taken longer than a moment."""
    return Display(title, total, unit=unit, quiet=quiet, seconds=10.0, after=MOMENT)


def tracked(
    items: Iterable[T],
    title: str,
    total: int | None = None,
    *,
    unit: str = 'batch',
    quiet: bool = False,
    size: Callable[[T], int] = lambda _: 1,
) -> Iterator[T]:
    """The items one by one, while `doing` says how many are done; `size` gives the steps of one."""
    with doing(title, total, unit=unit, quiet=quiet) as display:
        for item in items:
            yield item
            display.advance(size(item))


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


def number_of(count: int, noun: str) -> str:
    """A count and its noun, for people: ``1 text``, ``3 epochs``, ``1,024 batches``."""
    ending = '' if count == 1 else 'es' if noun.endswith(('tch', 's', 'sh', 'x')) else 's'
    return f'{count:,} {noun}{ending}'


def columns() -> int | None:
    """Columns of the terminal that shows standard error, for a bar; None if none does.

    The standard error of a worker of horovodrun is a pipe. horovodrun passes on what ends with a carriage
    return as it comes, so a bar works where its own standard error is a terminal of this host.
    """
    if sys.stderr.isatty():
        return _width(2) or 80
    if 'HOROVOD_RANK' not in os.environ:
        return None
    try:
        between = next(parent for parent in psutil.Process().parents() if _FORKED in parent.cmdline())
        terminal = os.open(f'/proc/{between.ppid()}/fd/2', os.O_WRONLY | os.O_NOCTTY)
    except (psutil.Error, OSError, StopIteration):  # another launcher, another host, no standard error
        return None
    try:
        return (_width(terminal) or 80) - _PREFIX if os.isatty(terminal) else None
    finally:
        os.close(terminal)


def _width(terminal: int) -> int:
    """Columns of a terminal; 0 if it does not say, or is none, as where a program has set sys.stderr."""
    try:
        return os.get_terminal_size(terminal).columns
    except OSError:
        return 0
