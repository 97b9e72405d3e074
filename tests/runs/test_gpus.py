"""The GPUs of a machine are named in what goes with a result; a CPU has none."""

import mxnet as mx
import pytest

from gluon_optbert.runs import machine

NAMES = [b'Tesla V100', b'Tesla T4']


class Driver:
    """Stands in for libcuda.so.1, with two GPUs."""

    def __init__(self, status=0, without=0):
        self.status, self.without = status, without

    def cuInit(self, flags):
        return self.without

    def cuDeviceGetCount(self, count):
        count._obj.value = len(NAMES)
        return 0

    def cuDeviceGet(self, device, number):
        device._obj.value = number + 10
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = NAMES[device.value - 10]
        return self.status


class Features:
    """Those of MXNet for GPUs."""

    def is_enabled(self, name):
        return name == 'CUDA'


@pytest.mark.parametrize(
    'driver, names',
    [
        (Driver(), ['Tesla V100', 'Tesla T4']),
        (Driver(status=101), ['unknown'] * 2),
        (Driver(without=100), []),
        (None, []),  # MXNet for CPUs asks no driver
    ],
)
def test_gpus_that_mxnet_sees_are_named(monkeypatch, driver, names):
    if driver:
        monkeypatch.setattr(mx.runtime, 'Features', Features)
    monkeypatch.setattr(machine.ctypes, 'CDLL', driver and (lambda name: driver))
    assert machine.gpu_names() == names
    monkeypatch.undo()
    monkeypatch.setattr(machine, 'gpu_names', lambda: names)
    assert machine.machine().get('gpus', []) == names and ('gpus' in machine.machine()) == bool(names)
