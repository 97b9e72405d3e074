"""Displays: a bar where a person looks at a terminal, also through horovodrun, and lines elsewhere. Tables in
Markdown.
"""

import io
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.commands import on_terminal
from helpers.tiny import environment
from hypothesis import given, strategies as st

from gluon_optbert.runs import display
from gluon_optbert.runs.display import Display, duration, markdown_row, markdown_table

SHOWS = """
from gluon_optbert.runs.display import Display
with Display('cooking', 3, unit='egg', seconds=10) as display:
    for _ in range(3):
        display.advance()
"""

WITHIN = """
import time
from gluon_optbert.runs.display import Display, doing
with doing('cooking'):
    with Display('boiling', 1, unit='egg') as display:
        time.sleep(2.5)  # cooking is shown in the bar of what is within it
        display.advance()
    time.sleep(2)
"""

# As horovodrun starts a worker: a process between, whose own standard error goes through a pipe.
HOROVODRUN = """
import subprocess, sys
between = 'import subprocess, sys; sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1]]))'
done = subprocess.run(
    [sys.executable, '-c', between, sys.argv[1], '--multiprocessing-fork'], stderr=subprocess.PIPE
)
sys.stdout.buffer.write(done.stderr)
"""


def test_terminal_shows_a_bar_and_what_was_shown_in_it_has_its_own_when_that_is_done():
    text = ''.join(part for part, _ in on_terminal('-c', SHOWS + WITHIN))
    assert 'cooking: 100%' in text and '3/3' in text and 'cooking: 3 eggs' not in text
    assert 'Traceback' not in text and 'cooking' in text.rpartition('boiling')[2]


def test_terminal_of_horovodrun_shows_a_bar():
    text = ''.join(part for part, _ in on_terminal('-c', HOROVODRUN, SHOWS, HOROVOD_RANK='0'))
    assert 'cooking: 100%' in text and '3/3' in text
    assert max(len(part) for part in text.replace('\n', '\r').split('\r')) <= 80 - len('[0]<stderr>:')


def test_worker_of_a_horovodrun_without_terminal_shows_lines():
    done = subprocess.run(
        [sys.executable, '-c', HOROVODRUN, SHOWS], env=environment(HOROVOD_RANK='0'), capture_output=True
    )
    assert done.stdout == b'cooking: 3 eggs\n'


def terminal_of_a_program(monkeypatch):
    """A standard error that says it is a terminal, of a program that has set it."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr(sys, 'stderr', terminal)
    return terminal


def test_bar_is_shown_where_a_program_has_set_standard_error(monkeypatch, capfd):
    """To its standard output, say: then descriptor 2 is no terminal that has a width."""
    terminal = terminal_of_a_program(monkeypatch)
    with Display('cooking', 3, unit='egg') as shown:
        shown.advance(3)
    assert '3/3' in terminal.getvalue()


def test_step_that_the_thread_has_shown_already_counts_once(monkeypatch, clock):
    terminal_of_a_program(monkeypatch)

    class Overtaken(Display):
        """The thread makes the bar between counting a step and showing it."""

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == 'done' and value:
                self.tick()

    with Overtaken('cooking', 3, after=1.0) as shown:
        clock.now += 2.0
        shown.advance()
        assert shown._bar.n == 1


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is put forward."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(display, 'time', clock)
    return clock


def test_lines_are_seconds_apart_and_say_how_far_it_is_and_how_long_it_takes(clock, capsys):
    with Display('verifying', 4, unit='round', seconds=10.0) as shown:
        for _ in range(4):
            clock.now += 60.0
            shown.advance()
    assert capsys.readouterr().err.splitlines() == [
        'verifying: 4 rounds',
        'verifying | round 1/4 | 3 min left',
        'verifying | round 2/4 | 2 min left',
        'verifying | round 3/4 | 60 s left',
    ]
    with Display('counting', 1000, seconds=10.0) as shown:
        for _ in range(1000):
            clock.now += 0.1
            shown.advance()
    assert len(capsys.readouterr().err.splitlines()) == 1 + 9


def test_time_left_follows_from_the_steps_of_this_process(clock):
    shown = Display('training', 100, start=80)
    assert shown.time_left() == ''
    clock.now += 50.0
    shown.advance(10)
    assert shown.time_left() == '50 s left'
    shown.advance(10)
    assert shown.time_left() == ''


def test_durations_and_counts_are_for_people():
    counts = (1, 'batch'), (6, 'batch'), (2, 'pass'), (3, 'epoch'), (1024, 'text')
    said = [display.number_of(*words) for words in counts]
    assert said == ['1 batch', '6 batches', '2 passes', '3 epochs', '1,024 texts']
    shown = [duration(seconds) for seconds in (0.2, 89, 90, 3570, 7500, 100000)]
    assert shown == ['1 s', '89 s', '2 min', '1 h 0 min', '2 h 5 min', '1 d 4 h']


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
