"""The GPUs of a machine are named in what goes with a result; a CPU has none."""

from types import SimpleNamespace

import mxnet as mx
import pytest

from gluon_optbert.runs import machine


def driver_of(*names, status=0, without=0):
    """Stands in for libcuda.so.1, with some GPUs."""

    def count(found):
        found._obj.value = len(names)
        return 0

    def get(device, number):
        device._obj.value = number + 10

    def get_name(name, size, device):
        name.value = names[device.value - 10]
        return status

    return SimpleNamespace(
        cuInit=lambda flags: without, cuDeviceGetCount=count, cuDeviceGet=get, cuDeviceGetName=get_name
    )


@pytest.mark.parametrize(
    'driver, names',
    [
        (driver_of(b'V100', b'T4'), ['V100', 'T4']),
        (driver_of(b'V100', status=101), ['unknown']),
        (driver_of(b'V100', without=100), []),
        (None, []),  # MXNet for CPUs asks no driver
    ],
)
def test_gpus_that_mxnet_sees_are_named(monkeypatch, driver, names):
    if driver:
        enabled = SimpleNamespace(is_enabled=lambda name: name == 'CUDA')
        monkeypatch.setattr(mx.runtime, 'Features', lambda: enabled)
    monkeypatch.setattr(machine.ctypes, 'CDLL', driver and (lambda name: driver))
    assert machine.gpu_names() == names
    monkeypatch.undo()
    monkeypatch.setattr(machine, 'gpu_names', lambda: names)
    assert ('gpus' in machine.machine()) == bool(names)
