"""The commands: ``gluon_optbert.commands.prune(['small_prune', …])`` and so on, see `runs.programs`.

A command is imported when it is called. A library that it needs and that is missing is one line then, not a
traceback."""

import functools
import importlib
import sys

from ..runs.failures import NotInstalled, remedied
from ..runs.programs import COMMANDS

_ENTRIES = {command.name: command.entry for command in COMMANDS.values()}


def found(name):
    """The function of a command, with what it needs."""
    module, _, name = _ENTRIES[name].partition(':')
    return getattr(importlib.import_module(f'{__name__}.{module}'), name)


def _run(name, argv=None):
    """Run a command and give its exit status."""
    try:
        with remedied():
            return found(name)(argv)
    except NotInstalled as error:
        print(f'error: {error}', file=sys.stderr, flush=True)
        return 1


globals().update({name: functools.partial(_run, name) for name in _ENTRIES})
