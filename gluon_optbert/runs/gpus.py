"""The names of the GPUs that this process may use, from NVIDIA's driver."""

from __future__ import annotations

import ctypes
from typing import List


def gpu_names() -> List[str]:
    """A name for each GPU, in MXNet's order; none where MXNet is the one for CPUs, or not installed."""
    try:
        import mxnet as mx
    except ImportError:
        return []
    if not mx.runtime.Features().is_enabled('CUDA'):
        return []
    driver, count, names = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    for number in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), number)
        failed = driver.cuDeviceGetName(name, len(name), device)
        names.append('unknown' if failed else name.value.decode(errors='replace'))
    return names
