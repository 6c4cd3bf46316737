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
    "library",
    "division",
    "moving",
    "kept",
    "half",
    "half_matmul",
    "byte_product",
    "opaque",
]

# Functions that take tens of instructions rather than one or two, in vectors; those that a
# library of C computes, element by element; and what a divider does.
_FUNCTIONS: Mapping[str, Work] = {
    **dict.fromkeys(("exp", "tanh", "sigmoid", "erf", "silu", "softmax"), "special"),
    **dict.fromkeys(("gelu", "gelu_tanh", "log_softmax"), "special"),
    **dict.fromkeys(("log", "sin", "cos", "power", "softplus", "mish"), "library"),
    **dict.fromkeys(("rsqrt", "sqrt", "divide", "floor_divide"), "division"),
}

# Moves that copy elements in the order in which they lie; others jump.
IN_ORDER = frozenset(
    {
        *("broadcast_to", "concat", "nn.pad", "repeat", "split", "stack", "strided_slice", "tile"),
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
    is_product = any(op.kind in ("matmul", "conv") for op in ops)
    for op, times in zip(ops, repeats, strict=True):
        if op.kind == "view" or (op.kind == "injective" and is_product):
            continue  # a product reads and writes in whatever order
        kind = _kind(graph, op, family)
        counts_elements = kind in _BY_ELEMENT or op.kind == "injective"
        amount = _elements(graph, op) if counts_elements else op.flops
        total[kind] += amount * times * width(graph, op) * _padding(graph, op, kind)
        if _is_half(graph, op):
            total["half"] += _elements(graph, op) * times
    if kept := _kept(graph, ops):
        total["kept"] = kept
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
_BY_ELEMENT = frozenset({"special", "library", "division"})


def width(graph: OpGraph, op: OpNode) -> float:
    """Return how many float32 operations one of ``op`` is worth."""
    outputs = (graph.tensors[i] for i in op.outputs)
    return max([1.0, *(t.n_bytes / t.size / 4 for t in outputs if t.size > 0)])


def _kind(graph: OpGraph, op: OpNode, family: str) -> Work:
    match op.kind:
        case "matmul" if _is_half(graph, op):
            return "half_matmul"
        case "conv" | "matmul" if graph.tensors[op.inputs[0]].dtype in ("int8", "uint8"):
            return "byte_product"
        case "conv":
            if geometry.is_depthwise(graph, op):
                return "depthwise"
            return "winograd" if family not in _DIRECT and _is_winograd(graph, op) else "conv"
        case "elementwise" | "broadcast":
            return _FUNCTIONS.get(op.name.rpartition(".")[2], "elementwise")
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


def _is_half(graph: OpGraph, op: OpNode) -> bool:
    """Whether an operator's elements are widened before and rounded after it."""
    return any(graph.tensors[i].dtype in ("float16", "bfloat16") for i in op.outputs)


def _kept(graph: OpGraph, ops: Sequence[OpNode]) -> float:
    """Return the elements that a reduction writes beside their sums: one by one, as it goes."""
    sums = [op for op in ops if op.kind == "reduction"]
    made = {i for op in ops if op.kind != "reduction" for i in op.outputs}
    if not sums or any(op.kind in ("matmul", "conv", "pooling") for op in ops):
        return 0.0
    reduced = max(_elements(graph, op) for op in sums)
    written = (graph.tensors[i].size for i in made.intersection(graph.outputs))
    return float(sum(size for size in written if size > reduced))


def _elements(graph: OpGraph, op: OpNode) -> int:
    return max((graph.tensors[i].size for i in op.outputs), default=0)
