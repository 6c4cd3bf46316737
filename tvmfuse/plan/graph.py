"""Operators, tensors and dependencies as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

OpKind = Literal[
    "elementwise",  # one output element from the element at the same place
    "broadcast",  # the same, with an operand that is stretched
    "injective",  # moves elements: transpose, concat, slice, gather
    "reduction",  # sum, max, softmax, norms
    "pooling",  # a window reduction
    "matmul",  # matrix products
    "conv",  # convolutions
    "view",  # no work at run time: reshape, tuple access
    "opaque",  # anything else
]

# A loop nest evaluates these anew wherever their value is read; all other values are
# kept in a tile.
INLINED: frozenset[OpKind] = frozenset({"elementwise", "broadcast", "injective", "view"})

_DTYPE_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of an :class:`OpGraph`.

    Parameters
    ----------
    shape : tuple of int or str
        Extents; a symbolic one is the name of its variable.
    dtype : str
        Element type, spelled as NumPy spells it.
    is_constant : bool
        Whether the value is known when compiling (weights).
    """

    shape: tuple[int | str, ...]
    dtype: str
    is_constant: bool = False

    @cached_property
    def size(self) -> int:
        """Number of elements; a symbolic extent counts as 1."""
        return math.prod(d if isinstance(d, int) else 1 for d in self.shape)

    @cached_property
    def n_bytes(self) -> int:
        """Size in bytes; a symbolic extent counts as 1."""
        return self.size * _DTYPE_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class OpNode:
    """One operator of an :class:`OpGraph`.

    Parameters
    ----------
    name : str
        Relax operator, for example ``relax.nn.conv2d``.
    kind : str
        Its class, see :data:`OpKind`.
    inputs, outputs : tuple of int
        Indices into :attr:`OpGraph.tensors`.
    flops : int
        Floating-point operations; one multiply-add counts as two.
    binding : int
        Position of its binding in the function.
    label : str
        What a person calls it: the ONNX node's name where known, else the variable.
    """

    name: str
    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    flops: int
    binding: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Operators and the tensors between them, in program order.

    ``inputs`` and ``outputs`` index ``tensors``; all other tensors live inside.
    """

    tensors: tuple[TensorInfo, ...]
    ops: tuple[OpNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class FunctionGraph:
    """Dependencies between the bindings of one function.

    Parameters
    ----------
    name : str
        Name of the Relax function.
    deps : tuple of tuple of int
        For every binding, the earlier bindings whose values it reads.
    labels : tuple of str
        For every binding, what a person calls it.
    ops : tuple of str
        For every binding, its operator, or "" where it is none.
    n_bytes : tuple of int
        For every binding, the size of its value; 0 for a view of another's memory.
    results : tuple of int
        The bindings whose values the function returns.
    """

    name: str
    deps: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    n_bytes: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
