"""Adam's step on the CPU, block by block, with the bits of GluonNLP's operator.

MXNet's CPU kernel takes the root and the quotient of one number at a time. NumPy takes those of many at once,
in the same order and with the same rounding. A block stays in the processor's cache through all of its
operations, so a step reads and writes the memory once.

NumPy works on MXNet's memory itself. Nothing that MXNet has been asked for may be under way meanwhile."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from ..runs.machine import threads_here

BLOCK = 2**15  # numbers; six such arrays fit into a second-level cache of 1 MB
VANISHED = np.float32(1e-35)  # below it a moment changes no weight: epsilon and the learning rate see to it
Slices = tuple[np.ndarray, ...]


def on_host(arrays: Sequence[mx.nd.NDArray]) -> bool:
    """Whether all arrays are dense float32 in the memory of the CPU, where `host_view` reaches them."""
    return all(
        array.context.device_type == 'cpu' and array.stype == 'default' and array.dtype == np.float32
        for array in arrays
    )


def host_view(array: mx.nd.NDArray) -> np.ndarray:
    """The numbers of an array that is `on_host`, shape (size,), for reading and writing in place.

    The view is good until MXNet is asked for something that writes the array.
    """
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return np.frombuffer((ctypes.c_float * array.size).from_address(pointer.value), np.float32)


_room = threading.local()


def _scratch(size: int) -> np.ndarray:
    """Two rows for what is in between, shape (2, size); each thread has its own, and takes the same again."""
    if not hasattr(_room, 'rows'):
        _room.rows = np.empty((2, BLOCK), np.float32)
    return _room.rows[:, :size]


def adam_step(
    weight: np.ndarray,
    gradient: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    rescale: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
    rate: float,
) -> None:
    """One step of BERTAdam in place, with the rounding of MXNet's ``multi_adamw_update``:
    ``weight -= rate * (mean / (sqrt(variance) + epsilon) + decay * weight)``.

    All arrays are float32, shape (n,). The gradient is multiplied by `rescale` as it is read.
    """
    rescale, beta1, beta2, epsilon, decay, rate = map(
        np.float32, (rescale, beta1, beta2, epsilon, decay, rate)
    )
    now, decayed = _scratch(weight.size)
    np.multiply(gradient, rescale, out=now)
    mean -= now
    mean *= beta1
    mean += now
    now *= now
    variance -= now
    variance *= beta2
    variance += now
    np.sqrt(variance, out=now)
    now += epsilon
    np.divide(mean, now, out=now)
    np.multiply(weight, decay, out=decayed)
    now += decayed
    now *= rate
    weight -= now


def forget_vanished(moment: np.ndarray) -> None:
    """Set numbers below `VANISHED` to zero, in place.

    The moments of a weight without a gradient shrink by a factor in every step. Without this they end as
    subnormal numbers, which never reach zero, and which processors multiply several times as slowly.
    """
    small = np.abs(moment) < VANISHED
    if small.any():
        moment[small] = 0


@functools.cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix='blocks')


def in_blocks(work: Sequence[tuple[Callable[..., None], Slices]]) -> None:
    """Apply functions to arrays, each in blocks of the same rows, on as many threads as MXNet has.

    Parameters
    ----------
    work : sequence of (function, arrays)
        The function changes a block of each array in place, shape (n,) with n at most `BLOCK`. What it does
        to one block depends on no other.
    """
    pieces = [
        (function, [array[start : start + BLOCK] for array in arrays])
        for function, arrays in work
        for start in range(0, arrays[0].size, BLOCK)
    ]

    def apply(share: list[tuple[Callable[..., None], Slices]]) -> None:
        with np.errstate(all='ignore'):  # as MXNet; what is not finite shows in the next norm
            for function, blocks in share:
                function(*blocks)

    number = min(threads_here(), len(pieces))
    if number < 2:
        apply(pieces)
    else:
        list(_threads(threads_here()).map(apply, [pieces[i::number] for i in range(number)]))
