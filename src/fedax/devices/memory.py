"""The host's memory: arrays that a CPU's devices share, and what the compiler leaves behind."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# What JAX reports when XLA is done with a program, in the thread that then runs it.
_COMPILED = "/jax/core/compile/backend_compile_duration"
# So many seconds of compiling leave enough memory that giving it back, some milliseconds, pays.
_LONG = 0.5

# An array that begins at a multiple of so many bytes is a CPU device's own without a copy.
ALIGNMENT = 64


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, or a copy, in JAX's dtype, such that all devices of a CPU read it where it is.

    Example:
      >>> numbers = np.arange(40, dtype=np.int32)[1:]
      >>> same = aligned(numbers)
      >>> same.ctypes.data % ALIGNMENT, bool((same == numbers).all())
      (0, True)
    """
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    fits = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if fits and array.dtype == dtype:
        return array
    copy = aligned_zeros(array.shape, dtype)
    copy[...] = array
    return copy


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that all devices of a CPU read where they are.

    Example:
      >>> aligned_zeros((3, 5), np.float32).ctypes.data % ALIGNMENT
      0
    """
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.zeros(size + ALIGNMENT, np.uint8)
    first = -buffer.ctypes.data % ALIGNMENT
    return buffer[first : first + size].view(dtype).reshape(shape)


def _give_back(event: str, duration_secs: float, **kwargs: Any) -> None:
    """Returns what the compiler has freed to the system, before the program asks for its own."""
    del kwargs
    if event == _COMPILED and duration_secs >= _LONG and (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """The C library's `malloc_trim`; None where there is none (musl, macOS, Windows)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


jax.monitoring.register_event_duration_secs_listener(_give_back)
