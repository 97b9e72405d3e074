"""Processes that are stopped or killed."""

import os
import sys
import traceback

import psutil

# Pre-training in which something happens to a rank before its fourth step.
STRICKEN = """
import json, os, signal, sys, time
from pathlib import Path
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import Optimizer
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.recipe import PretrainRecipe

rank, stricken, steps = Workers().rank, int(sys.argv[3]), []
Path(sys.argv[2], f'pid-{rank}').write_text(str(os.getpid()))
update = Optimizer.update


def striking(self, *args, **kwargs):
    steps.append(1)
    if rank == stricken and len(steps) == 4:
        Path(sys.argv[2], 'struck').touch()
        exec(sys.argv[4])
    return update(self, *args, **kwargs)


Optimizer.update = striking
sys.exit(command(lambda argv: pretrain(fill(PretrainRecipe, json.loads(sys.argv[1]))) and None)())
"""


def living(process):
    """Whether there is such a process; one that has ended and waits for its parent is none."""
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


class Forked:
    """A process that does something and ends with the status that this gives; it has loaded MXNet already, as
    the one that it is forked from.

    Attributes
    ----------
    said, errors : file
        What it writes to its standard output and error.
    """

    def __init__(self, action):
        ends = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        if not self.pid:
            self._do(action, [written for _, written in ends])
        for _, written in ends:
            os.close(written)
        self.said, self.errors = map(os.fdopen, (read for read, _ in ends))

    @staticmethod
    def _do(action, outputs):
        status = 70
        try:
            for number, end in enumerate(outputs, 1):
                os.dup2(end, number)
                os.close(end)
            sys.stdout, sys.stderr = (os.fdopen(number, 'w', buffering=1) for number in (1, 2))
            status = action()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def end(self):
        """Its status, negative for a signal, and what it has written since, once it has ended."""
        written = self.said.read(), self.errors.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), *written
