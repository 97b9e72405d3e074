"""How long a command is silent on a terminal, with a function of it that takes its time."""

import os
import pty
import select
import subprocess
import sys
import time

from helpers.tiny import environment

SLOWED = """
import importlib, sys, time
from gluon_optbert import commands
place, seconds, name, *words = sys.argv[1:]
if place:
    module, _, path = place.partition(':')
    *owners, last = path.split('.')
    commands.found(name)
    owner = importlib.import_module('gluon_optbert.' + module)
    for part in owners:
        owner = getattr(owner, part)
    function, struck = getattr(owner, last), []
    def slow(*args, **kwargs):
        if not struck:
            struck.append(1)
            print('[slowed]', flush=True)
            time.sleep(float(seconds))
        return function(*args, **kwargs)
    setattr(owner, last, slow)
sys.exit(getattr(commands, name)(words))
"""


def silence(name, *words, slowed='', seconds=0.0):
    """The longest silence of a command in seconds, its exit status, and what it wrote.

    Parameters
    ----------
    name : str
        Of the function of the command.
    slowed : str
        A function that takes so many `seconds` longer when it is called first, as ``room.module:name``.
    """
    primary, secondary = pty.openpty()
    program = [sys.executable, '-W', 'ignore', '-c', SLOWED, slowed, seconds, name, *words]
    process = subprocess.Popen(
        list(map(str, program)), env=environment(COLUMNS='80'), stdout=secondary, stderr=secondary
    )
    os.close(secondary)
    content, longest, spoken = b'', 0.0, time.monotonic()
    while select.select([primary], [], [], 120)[0]:
        try:
            part = os.read(primary, 65536)
        except OSError:  # the program has ended
            break
        longest, spoken = max(longest, time.monotonic() - spoken), time.monotonic()
        content += part
    os.close(primary)
    return max(longest, time.monotonic() - spoken), process.wait(), content.decode(errors='replace')
