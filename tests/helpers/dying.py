"""A worker of `make_shards` that dies. It is imported in its process, where the tests' libraries are not."""

import os
import signal

from gluon_optbert.text import make_shards


class _Dying(make_shards._Worker):
    def make(self, chunk):
        if chunk.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make(chunk)


def start_dying(recipe):
    """Have this process make chunks, but for the third."""
    make_shards._worker = _Dying(recipe)
