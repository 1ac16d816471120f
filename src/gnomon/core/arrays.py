"""The array types that the simulators pass around, and memory for large ones."""

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LARGE = 1 << 22  # Bytes from which on NumPy asks for huge pages.


def sparse_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """`np.zeros` for an array of which little may ever be touched: in small pages, where the system has a choice. A
    huge page is cleared as a whole when its first byte is written."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # A system without huge pages.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
