"""Jobs of several Horovod workers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gluon_optbert.network.saved_model import read_model
from helpers.tiny import ROOT, environment

HOROVODRUN = Path(sys.executable).with_name('horovodrun')
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None or not HOROVODRUN.exists(),
    reason='Horovod is not installed here; make install builds it',
)
# Sums over two shares of a batch are taken in another order; a few steps of Adam later float32 agrees this
# well.
TOLERANCE = 1e-5
EXACT = {'dropout': 0.0}


def horovodrun(*arguments, by='--gloo', starter=(str(HOROVODRUN),)):
    """A finished job of two workers, which `tools/run_workers.py` may start as well."""
    root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'} if by == '--mpi' else {}
    return subprocess.run(
        [*starter, by, '-np', '2', sys.executable, '-W', 'ignore', *map(str, arguments)],
        cwd=str(ROOT),
        env=environment(**root),
        timeout=300,
        capture_output=True,
        text=True,
    )


def assert_close_records(one, two):
    assert len(one) == len(two)
    for found, wanted in zip(two, one):
        assert found.keys() == wanted.keys()
        assert found == {
            name: pytest.approx(value, rel=TOLERANCE) if isinstance(value, float) else value
            for name, value in wanted.items()
        }


def assert_close_models(one, two):
    for name, value in read_model(one).parameters.items():
        np.testing.assert_allclose(
            read_model(two).parameters[name], value, rtol=1e-3, atol=1e-5, err_msg=name
        )
