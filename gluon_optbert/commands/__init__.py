"""The commands: ``gluon_optbert.commands.prune(['small_prune', …])`` and so on, see `runs.programs`.

A command is imported when it is called. A library that it needs and that is missing is one line then, not a
traceback."""

import functools
import importlib
import sys

from ..runs.failures import NotInstalled, remedied
from ..runs.machine import load_mxnet
from ..runs.programs import COMMANDS

_COMMANDS = {command.name: command for command in COMMANDS.values()}


def found(name):
    """The function of a command, with what it needs."""
    if _COMMANDS[name].mxnet:
        load_mxnet()
    module = _COMMANDS[name].entry.partition(':')[0]
    return getattr(importlib.import_module(f'{__name__}.{module}'), name)


def _run(name, argv=None):
    """Run a command and give its exit status."""
    from ..runs.display import Display

    try:
        with remedied():
            with Display(f'{name}: starting', after=0.5):
                function = found(name)
            return function(argv)
    except NotInstalled as error:
        print(f'error: {error}', file=sys.stderr, flush=True)
        return 1


globals().update({name: functools.partial(_run, name) for name in _COMMANDS})
