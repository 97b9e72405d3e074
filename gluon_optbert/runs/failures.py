"""Failures whose input was good, and what installs a library that is missing."""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
import sys
from collections.abc import Iterable, Iterator

LONGEST_MESSAGE = 500  # characters


def shown(message: object) -> str:
    """A message that may have words of a hostile file, as people see it: without control characters, and cut.

    Line ends stay where an indented line follows, as in a list.
    """
    text = re.sub(r'\n(?!  )', r'\\n', str(message)[: 2 * LONGEST_MESSAGE])
    text = ''.join(
        sign if sign.isprintable() or sign == '\n' else sign.encode('unicode_escape').decode()
        for sign in text
    )
    return text if len(text) <= LONGEST_MESSAGE else f'{text[: LONGEST_MESSAGE - 1]}…'


def say(*lines: object) -> None:
    """Print lines that may have words of a hostile file, each as `shown`."""
    print('\n'.join(map(shown, lines)), flush=True)


def meant(word: str, known: Iterable[str]) -> str:
    """Addition to a message about a wrong word: ``, did you mean rounds?``; nothing if no known one is like
    it.
    """
    return ''.join(f', did you mean {near}?' for near in difflib.get_close_matches(word, known, n=1))


class LogLine(logging.Formatter):
    """A message of the log as `shown`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return shown(record.message)


class RunFailed(RuntimeError):
    """A run that could not go on, though its input was good; what there was is saved as the message says."""


class Interrupted(RunFailed, KeyboardInterrupt):
    """A run that was asked to stop (Ctrl-C, SIGINT, SIGTERM) and can be resumed."""


class Terminated(Interrupted):
    """One whose workers have agreed to stop and have saved its state; rank 0 speaks for them."""


class NotInstalled(ImportError):
    """A library that is needed now is not there; the message has the command that installs it."""


_FITS = (3, 10) <= sys.version_info[:2] <= (3, 11)
_STACK = (
    'pip install gluon_optbert[cpu] installs it, or pip install gluon_optbert[cu112] for GPUs with CUDA 11; '
    'in a checkout, make install'
    + ('' if _FITS else '. It needs CPython 3.10 or 3.11, not {}.{}'.format(*sys.version_info))
)
_SERVE = 'pip install gluon_optbert[serve] installs it'
REMEDIES = {
    **{
        name: f'{name} is not installed: {_STACK}'
        for name in ('blingfire', 'google_crc32c', 'matplotlib', 'onnx', 'safetensors', 'sacremoses')
        + ('scipy', 'sklearn')
    },
    'onnxruntime': f'ONNX Runtime is not installed: {_SERVE}',
    'openvino': 'OpenVINO is not installed: pip install gluon_optbert[openvino] installs it',
    'torch': 'PyTorch is not installed: pip install torch transformers installs what crosses to Transformers',
    'transformers': 'Transformers is not installed: pip install torch transformers installs it',
    'fastapi': f'FastAPI, a part of the service, is not installed: {_SERVE}',
    'uvicorn': f'uvicorn, a part of the service, is not installed: {_SERVE}',
    'markdown_it': f'markdown-it-py, a part of the service, is not installed: {_SERVE}',
    'mxnet': f'MXNet is not installed: {_STACK}',
    'gluonnlp': f'GluonNLP is not installed: {_STACK}',
    'horovod': 'Horovod is not installed, and a job of several workers needs it. It is compiled against the '
    'MXNet that is there, with cmake below 4: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 '
    'HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 pip install --no-build-isolation --no-binary '
    'horovod gluon_optbert[horovod]; in a checkout, make install',
}


@contextlib.contextmanager
def remedied() -> Iterator[None]:
    """Say how to install a library of `REMEDIES` where the block fails to import it."""
    try:
        yield
    except ImportError as error:
        library = (error.name or '').partition('.')[0]
        if isinstance(error, NotInstalled) or library not in REMEDIES:
            raise
        raise NotInstalled(REMEDIES[library], name=library) from error
