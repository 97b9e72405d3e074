"""Processes of other programs. Most compute when they are told to, so that those which cannot share a process
are timed in turn.

What they are told and say is in peers/protocol.py. Only one computes at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.hub import bert_config, is_plain
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.machine import SETTINGS

SCRIPTS = Path(__file__).resolve().parent / 'peers'
PAUSE = 0.1  # seconds between two workers, for threads that still spin: those of ONNX Runtime do for 0.07


class Worker:
    """A process of another program, such as one that computes a network when it is told to.

    OpenMP is told `threads`; without them the program does as it is installed. `versions` is what it said
    when it was ready, `peak_mb` the most memory that it took.
    """

    def __init__(self, name: str, words: Sequence[Any], *, threads: int | None):
        self.name, self.peak_mb = name, 0.0
        alone = {
            key: value
            for key, value in os.environ.items()
            if key not in SETTINGS and not key.startswith('PYTHON')
        }
        alone['HF_HUB_OFFLINE'] = '1'
        if threads is not None:
            alone['OMP_NUM_THREADS'] = str(threads)
        # open as long as the process lives
        self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115
        self._process = subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env=alone,
        )
        try:
            self.versions = self.answer()['ready']
        except BaseException:
            self.close()
            raise

    def answer(self) -> dict[str, Any]:
        """The next line that it says; RunFailed with its last words if it has ended."""
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines() or ['nothing']
            raise RunFailed(f'{self.name}: its process ended, saying: {said[-1]}')
        return json.loads(line)

    def ask(self, **wanted: Any) -> dict[str, Any]:
        """One line to the process, and its answer."""
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps(wanted) + '\n')
        answer = self.answer()
        self.peak_mb = answer['peak_mb']
        time.sleep(PAUSE)
        return answer

    def timed(self, **wanted: Any) -> Callable[[], float]:
        """A call for `in_turn` that asks for a time and gives its milliseconds."""
        return lambda: self.ask(**wanted)['ms']

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def peer_python(peers: Path, environment: str | None) -> Path:
    """The interpreter of a peer's environment, or this one; FileNotFoundError if it was not made."""
    if environment is None:
        return Path(sys.executable)
    python = peers.absolute() / environment / 'bin' / 'python'
    if not python.exists():
        raise FileNotFoundError(
            f'{python}: no such environment; make it with python benchmarks/peers/install.py {peers} --only '
            f'{environment}'
        )
    return python


def uniform_config(architecture: Architecture) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of Transformers' BertConfig and GluonNLP's BERTEncoder; ValueError if they cannot."""
    if not is_plain(architecture):
        raise ValueError(
            'torch and gluonnlp build plain BERTs only; for uneven widths take onnxruntime and openvino'
        )
    gluon = {
        'num_layers': len(architecture.layers),
        'units': architecture.h,
        'hidden_size': architecture.layers[0].f,
        'num_heads': architecture.layers[0].a,
        'max_length': architecture.max_length,
        'layer_norm_eps': architecture.layer_norm_eps,
        'dropout': 0.0,
    }
    return bert_config(architecture, PRETRAINING, 'pretraining'), gluon
