"""Runs the CUDA and Metal text of kernels on the CPU, to check the values that they compute.

A C++ compiler takes TVM's text as it is, given headers (``include/``) that stand in
for CUDA's and Metal's: GPU threads become fibers. It checks values, barriers that a
block meets only in part, and writes past the end of a buffer; it proves no absence of
races, and inline PTX is out of its reach.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tests.gpu.lowering import DeviceCode, Launch

Array = np.ndarray
Order = Literal["ascending", "descending"]
ORDERS: tuple[Order, ...] = ("ascending", "descending")

_INCLUDE = Path(__file__).parent / "include"
_FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing")
_GUARD = 64  # elements beside each buffer, which a kernel must leave alone


class KernelError(AssertionError):
    """A kernel did what no GPU may be asked to do."""


@dataclass(frozen=True)
class Emulator:
    """Device code, compiled for the CPU."""

    library: ctypes.CDLL
    launches: tuple[Launch, ...]

    def run(self, arrays: Mapping[str, Array], order: Order = "ascending") -> None:
        """Launch all kernels in order, on arrays by the names of the function's parameters.

        Parameters
        ----------
        arrays : Mapping of str to numpy.ndarray
            Inputs, and outputs to be overwritten.
        order : Order
            Which of the threads that may run does so first.

        Raises
        ------
        KernelError
            A block meets a barrier only in part, or a kernel writes out of bounds.
        """
        guarded = {name: _Guarded.around(array) for name, array in arrays.items()}
        for launch in self.launches:
            self._launch(launch, [guarded[name] for name in launch.arguments], order)
        for name, array in arrays.items():
            if not guarded[name].is_intact():
                raise KernelError(f"a kernel writes out of the bounds of {name}")
            array[...] = guarded[name].inner.reshape(array.shape)

    def _launch(self, launch: Launch, buffers: Sequence[_Guarded], order: Order) -> None:
        pointers = [ctypes.c_void_p(buffer.inner.ctypes.data) for buffer in buffers]
        values = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(p) for p in pointers))
        triple = ctypes.c_uint * 3
        is_divergent = self.library[f"emu_{launch.kernel}"](
            values,
            triple(*launch.grid),
            triple(*launch.block),
            ctypes.c_size_t(launch.dynamic_bytes),
            int(order == "descending"),
        )
        if is_divergent:
            raise KernelError(f"{launch.kernel}: a barrier that not all threads of a block meet")


def compile_for_cpu(code: DeviceCode, folder: Path, *, cxx: str = "g++") -> Emulator:
    """Compile device code for the CPU.

    Parameters
    ----------
    code : DeviceCode
        CUDA or Metal text with its launches.
    folder : Path
        Where the C++ text and the library go.
    cxx : str
        The compiler; GCC or Clang.
    """
    exports = "".join(f"EMU_EXPORT({launch.kernel})\n" for launch in code.launches)
    source, library = folder / f"{code.kind}.cc", folder / f"{code.kind}.so"
    source.write_text(_as_cpp(code.kind, code.text) + "\n" + exports)
    command = [cxx, *_FLAGS, f"-I{_INCLUDE}", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return Emulator(ctypes.CDLL(str(library)), code.launches)


def _as_cpp(kind: str, text: str) -> str:
    """Rewrite the one declaration of each language that no macro can."""
    if kind == "cuda":
        return re.sub(
            r"extern __shared__ .*?(\w+)\s+(\w+)\[\];", r"\1* \2 = emu::dynamic_shared<\1>();", text
        )
    return re.sub(r"^(\s*)threadgroup (?=[^()]*;)", r"\1EMU_SHARED ", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class _Guarded:
    """A copy of an array with a margin on both sides."""

    whole: Array

    @classmethod
    def around(cls, array: Array) -> _Guarded:
        margin = np.frombuffer(b"\x5a" * (_GUARD * array.itemsize), array.dtype)
        return cls(np.concatenate([margin, array.ravel(), margin]))

    @property
    def inner(self) -> Array:
        return self.whole[_GUARD:-_GUARD]

    def is_intact(self) -> bool:
        margins = self.whole[:_GUARD].tobytes() + self.whole[-_GUARD:].tobytes()
        return margins == b"\x5a" * len(margins)
