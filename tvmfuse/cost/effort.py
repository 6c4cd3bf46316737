"""How much of each kind of work operators are, as a roofline tells kinds apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from tvmfuse.cost import geometry
from tvmfuse.plan import OpGraph, OpNode

Work = Literal[
    "matmul",
    "conv",
    "winograd",
    "depthwise",
    "pooling",
    "reduction",
    "elementwise",
    "special",
    "moving",
    "opaque",
]

# Operators whose functions take tens of instructions rather than one or two.
SPECIAL = frozenset(
    {
        *("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "power", "softplus", "silu"),
        *("gelu", "gelu_tanh", "softmax", "log_softmax", "rsqrt", "sqrt", "divide", "floor_divide"),
    }
)

# Moves that copy elements in the order in which they lie; others jump.
IN_ORDER = frozenset(
    {
        *("broadcast_to", "concat", "image.resize2d", "nn.pad", "repeat", "split", "stack"),
        *("strided_slice", "tile"),
    }
)

# Columns of a tile: what is left of the last one is computed for nothing.
_COLUMNS = 16

# Families that hold several kernels and know no Winograd.
_DIRECT = frozenset({"joined", "chained"})

# Winograd's transforms pay from so many channels in and out.
_WINOGRAD_CHANNELS = 16

# Below these a kernel runs on one core, for waking the others takes longer: multiply-adds of
# products, and elements of anything else. The schedules decide by the same numbers.
_STEPS = 200_000
_ELEMENTS = 16_384


def effort(
    graph: OpGraph, ops: Sequence[OpNode], repeats: Sequence[float], *, family: str = ""
) -> Mapping[Work, float]:
    """Return the operations of each kind, in units of float32.

    Those done again and those in padded columns count; of special functions and of what
    only moves elements, the elements do.

    Parameters
    ----------
    graph : OpGraph
        Where the operators are from.
    ops : Sequence[OpNode]
        The operators.
    repeats : Sequence[float]
        How often each is evaluated.
    family : str
        The kernel family; some convolve directly only.
    """
    total: defaultdict[Work, float] = defaultdict(float)
    for op, times in zip(ops, repeats, strict=True):
        if op.kind != "view":
            kind = _kind(graph, op, family)
            counts_elements = kind == "special" or op.kind == "injective"
            amount = _elements(graph, op) if counts_elements else op.flops
            total[kind] += amount * times * width(graph, op) * _padding(graph, op, kind)
    return dict(total)


def starts_threads(graph: OpGraph, ops: Sequence[OpNode]) -> bool:
    """Whether a CPU's schedule wakes threads for operators."""
    products = [op for op in ops if op.kind in ("matmul", "conv")]
    if products:
        return sum(op.flops for op in products) / 2 >= _STEPS
    read = (graph.tensors[i].size for op in ops for i in op.inputs if op.kind in _REDUCING)
    made = (_elements(graph, op) for op in ops if op.kind != "view")
    return max((*read, *made), default=0) >= _ELEMENTS


_REDUCING = frozenset({"pooling", "reduction"})


def width(graph: OpGraph, op: OpNode) -> float:
    """Return how many float32 operations one of ``op`` is worth."""
    outputs = (graph.tensors[i] for i in op.outputs)
    return max([1.0, *(t.n_bytes / t.size / 4 for t in outputs if t.size > 0)])


def _kind(graph: OpGraph, op: OpNode, family: str) -> Work:
    match op.kind:
        case "conv":
            if geometry.is_depthwise(graph, op):
                return "depthwise"
            return "winograd" if family not in _DIRECT and _is_winograd(graph, op) else "conv"
        case "elementwise" | "broadcast":
            return "special" if op.name.rpartition(".")[2] in SPECIAL else "elementwise"
        case "injective":
            return "elementwise" if op.name.removeprefix("relax.") in IN_ORDER else "moving"
        case "view":
            return "moving"
        case kind:
            return kind


def _is_winograd(graph: OpGraph, op: OpNode) -> bool:
    shape = geometry.of(graph, op)
    is_dense = round(shape.stride) == 1 and shape.window == 3
    return is_dense and min(shape.channels, shape.columns) >= _WINOGRAD_CHANNELS


def _padding(graph: OpGraph, op: OpNode, kind: Work) -> float:
    """Return how many times as many columns are computed as there are."""
    if kind not in ("matmul", "conv", "winograd", "depthwise"):
        return 1.0
    columns = geometry.of(graph, op).columns
    return _COLUMNS * math.ceil(columns / _COLUMNS) / columns if columns else 1.0


def _elements(graph: OpGraph, op: OpNode) -> int:
    return max((graph.tensors[i].size for i in op.outputs), default=0)
