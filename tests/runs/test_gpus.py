"""The GPUs of a machine are named in what goes with a result; a CPU has none."""

import mxnet as mx
import pytest

from gluon_optbert.runs import machine as gpus
from gluon_optbert.runs import machine as provenance

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


@pytest.mark.parametrize('status, names', [(0, ['Tesla V100', 'Tesla T4']), (101, ['unknown'] * 2)])
def test_gpus_that_mxnet_sees_are_named(monkeypatch, status, names):
    monkeypatch.setattr(mx.runtime, 'Features', Features)
    monkeypatch.setattr(gpus.ctypes, 'CDLL', lambda name: Driver(status))
    assert gpus.gpu_names() == names


def test_machine_without_gpus_names_none(monkeypatch):
    monkeypatch.setattr(mx.runtime, 'Features', Features)
    monkeypatch.setattr(gpus.ctypes, 'CDLL', lambda name: Driver(without=100))
    assert gpus.gpu_names() == []


def test_mxnet_for_cpus_asks_no_driver(monkeypatch):
    monkeypatch.setattr(gpus.ctypes, 'CDLL', None)
    assert gpus.gpu_names() == []


def test_machine_has_the_names_if_there_are_any(monkeypatch):
    for names in (['Tesla T4'], []):
        monkeypatch.setattr(provenance, 'gpu_names', lambda names=names: names)
        machine = provenance.machine()
        assert machine.get('gpus', []) == names and ('gpus' in machine) == bool(names)
