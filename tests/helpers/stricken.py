"""Processes that are stopped or killed."""

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
