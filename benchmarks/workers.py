"""Processes that compute when they are told to, so that programs which cannot share one are timed in turn.

What they are told is in peers/protocol.py. Only one computes at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.machine import SETTINGS

SCRIPTS = Path(__file__).resolve().parent / 'peers'
PAUSE = 0.1  # seconds between two workers, for threads that still spin: those of ONNX Runtime do for 0.07


class Worker:
    """A process that computes one network when it is told to.

    Parameters
    ----------
    name : str
    words : sequence
        Its command line.
    threads : int, optional
        What OpenMP is told; without, the program does as it is installed.
    settings : mapping, optional
        More variables of its environment.
    size_mb : float
        Of the network's files on disk.
    precision : str
    """

    def __init__(
        self,
        name: str,
        words: Sequence[Any],
        *,
        threads: int | None,
        settings: Mapping[str, str] | None = None,
        size_mb: float = 0.0,
        precision: str = 'float32',
    ):
        self.name, self.size_mb, self.precision, self.peak_mb = name, size_mb, precision, 0.0
        self.threads = threads
        alone = {key: value for key, value in os.environ.items() if key not in ('PYTHONPATH', *SETTINGS)}
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
            env={**alone, **(settings or {})},
        )
        self.versions = self._answer()['ready']

    def _answer(self) -> dict[str, Any]:
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
        answer = self._answer()
        self.peak_mb = answer['peak_mb']
        time.sleep(PAUSE)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()


@contextlib.contextmanager
def busy_program() -> Iterator[None]:
    """While another program computes without end."""
    process = subprocess.Popen([sys.executable, '-c', 'while True: pass'], start_new_session=True)
    try:
        time.sleep(0.2)  # it has begun
        yield
    finally:
        process.kill()
        process.wait()


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
    """What Transformers' BertConfig and GluonNLP's BERTEncoder are told; ValueError if they cannot."""
    layers = set(architecture.layers)
    dims = next(iter(layers), None)
    if (
        len(layers) != 1
        or architecture.e is not None
        or dims.k != dims.v
        or dims.a * dims.k != architecture.h
        or not dims.f
    ):
        raise ValueError(
            'torch and gluonnlp build plain BERTs only; for uneven widths take onnxruntime and openvino'
        )
    theirs = {
        'vocab_size': architecture.vocab_size,
        'hidden_size': architecture.h,
        'num_hidden_layers': len(architecture.layers),
        'num_attention_heads': dims.a,
        'intermediate_size': dims.f,
        'max_position_embeddings': architecture.max_length,
        'layer_norm_eps': architecture.layer_norm_eps,
        'type_vocab_size': architecture.token_types,
    }
    gluon = {
        'num_layers': len(architecture.layers),
        'units': architecture.h,
        'hidden_size': dims.f,
        'num_heads': dims.a,
        'max_length': architecture.max_length,
        'layer_norm_eps': architecture.layer_norm_eps,
        'dropout': 0.0,
    }
    return theirs, gluon
