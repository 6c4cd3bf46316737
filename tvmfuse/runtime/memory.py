"""Memory on the host: aligned, and for weights in pages as large as the system gives.

A product with one row reads each weight once, and with pages of 4 KiB the
processor waits for their addresses as much as for their values. Pages of 2 MiB
shorten a 64 MiB product by a fifth.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np

_PAGE = 2 << 20  # of the large pages of x86-64, and of Arm with pages of 4 KiB
_CHUNK = 16 * _PAGE
ALIGNMENT = 64  # bytes; what TVM's kernels take for granted


class LargePages:
    """Hands out host memory, from mappings for which large pages are asked.

    Nothing is given back: an array keeps the mapping alive that it lies in.
    """

    def __init__(self) -> None:
        self.mappings: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._free: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array of ``shape`` and ``dtype`` with no particular values."""
        n_bytes = math.prod(shape) * dtype.itemsize
        room = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        if room > self._free.size:
            self._free = _mapped(max(_CHUNK, -(-room // _PAGE) * _PAGE))
            self.mappings.append(self._free)
        found, self._free = self._free[:n_bytes], self._free[room:]
        return found.view(dtype).reshape(shape)


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of an array that begins where TVM's kernels can read it."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def _mapped(n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return fresh memory that begins at a multiple of a large page."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
    mapping = mmap.mmap(-1, n_bytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without them: ordinary pages serve too
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + n_bytes]
