"""Move constant factors and offsets towards the weights before them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import Array, constant, narrowed
from tvmfuse.passes.rewrite import labelled
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow


def fold_scale_into_weight(flow: Dataflow, position: int) -> Any:
    """Rewrite ``multiply(conv(x, W), s)`` as ``conv(x, W * s)``, likewise for matmul.

    Only where ``s`` is constant along everything but the output channels, and where
    neither the product nor the weight has another reader: a value that is read
    elsewhere must stay, and a second copy of a shared weight costs more than it saves.
    """
    if flow.operators[position] != "relax.multiply":
        return None
    product, scale = flow.value(position).args
    source = flow.private_source(position, product)
    factor = constant(scale)
    if source is None or factor is None:
        return None
    anchor = flow.value(source)
    if flow.kinds[source] not in ("conv", "matmul"):
        return None
    weight, dtype = constant(anchor.args[1]), operators.dtype(anchor.args[1])
    if weight is None or flow.readers_of_constant[anchor.args[1]] > 1:
        return None
    if not operators.is_float(dtype) or operators.dtype(anchor) != dtype:
        return None
    spread = _weight_factor(anchor, factor.astype(np.float64), weight)
    if spread is None:
        return None
    by, channel_axis = spread
    scaled = narrowed(weight.astype(np.float64) * by, dtype, along=channel_axis)
    if scaled is None:
        return None
    folded = relax.Call(anchor.op, [anchor.args[0], scaled], anchor.attrs, anchor.ty_args)
    return labelled(folded, flow, source)


def move_scale_over_offset(flow: Dataflow, position: int) -> Any:
    """Rewrite ``multiply(add(y, b), s)`` as ``add(multiply(y, s), b * s)``."""
    if flow.operators[position] != "relax.multiply":
        return None
    shifted, scale = flow.value(position).args
    source = flow.private_source(position, shifted)
    factor = constant(scale)
    if source is None or factor is None or flow.operators[source] != "relax.add":
        return None
    inner, offset = flow.value(source).args
    offset_value = constant(offset)
    if offset_value is None or not _can_take_scale(flow, inner):
        return None
    moved = _combined(offset_value, factor, np.multiply, operators.dtype(shifted))
    if moved is None or operators.shape(inner) != operators.shape(shifted):
        return None
    return relax.op.add(relax.op.multiply(inner, scale), moved)


def merge_offsets(flow: Dataflow, position: int) -> Any:
    """Rewrite ``add(add(y, b), c)`` as ``add(y, b + c)``."""
    return _merged(flow, position, "relax.add", np.add)


def merge_scales(flow: Dataflow, position: int) -> Any:
    """Rewrite ``multiply(multiply(y, b), c)`` as ``multiply(y, b * c)``."""
    return _merged(flow, position, "relax.multiply", np.multiply)


def _merged(flow: Dataflow, position: int, operator: str, combine: Any) -> Any:
    if flow.operators[position] != operator:
        return None
    value = flow.value(position)
    source = flow.private_source(position, value.args[0])
    outer = constant(value.args[1])
    if source is None or outer is None or flow.operators[source] != operator:
        return None
    base, operand = flow.value(source).args
    inner = constant(operand)
    if inner is None or operators.shape(base) != operators.shape(value.args[0]):
        return None
    merged = _combined(inner, outer, combine, operators.dtype(value))
    return None if merged is None else relax.Call(value.op, [base, merged])


def _can_take_scale(flow: Dataflow, expr: Any) -> bool:
    """Tell whether a factor of ``expr`` would go into a weight, or into another factor."""
    source = flow.position.get(expr)
    if source is None or flow.kinds[source] in ("conv", "matmul"):
        return source is not None
    is_scaled = flow.operators[source] == "relax.multiply"
    return is_scaled and constant(flow.value(source).args[1]) is not None


def _combined(inner: Array, outer: Array, combine: Any, dtype: str) -> Any:
    """Combine two float constants in float64; None where that grows or overflows."""
    if not operators.is_float(dtype):
        return None
    result = combine(inner.astype(np.float64), outer.astype(np.float64))
    if result.size > max(inner.size, outer.size):
        return None
    return narrowed(result, dtype)


def _weight_factor(anchor: Any, factor: Array, weight: Array) -> tuple[Array, int] | None:
    """Return what to multiply a weight by to scale the anchor's result by ``factor``.

    Returns
    -------
    tuple of (ndarray, int) or None
        An array that broadcasts to the weight's shape, and the weight's axis of output
        channels. None where ``factor`` varies along anything but the output channels.
    """
    shape = operators.shape(anchor) or ()
    if operators.kind(anchor) == "matmul":
        channels = _per_channel(factor, shape, len(shape) - 1) if weight.ndim > 1 else None
        return None if channels is None else (channels, weight.ndim - 1)
    layout, kernel = _layouts(anchor)
    if len(layout) != len(shape) or len(kernel) != weight.ndim:  # channels in blocks: "NCHW16c"
        return None
    channels = _per_channel(factor, shape, layout.index("C"))
    if channels is None:
        return None
    return _filter_factor(anchor, channels, kernel, weight), kernel.index("O")


def _filter_factor(anchor: Any, channels: Array, kernel: str, weight: Array) -> Array:
    """Lay per-channel factors out like a filter.

    A transposed convolution numbers its output channels (group, O), and its I axis
    (group, input channel of the group); a plain one keeps them all in O.
    """
    outputs, inputs = weight.shape[kernel.index("O")], weight.shape[kernel.index("I")]
    if operators.name(anchor).endswith("_transpose"):
        groups = int(anchor.attrs.groups)
        by_group = np.broadcast_to(channels, groups * outputs).reshape(groups, outputs)
        table = np.repeat(by_group, inputs // groups, axis=0)
    else:
        table = np.broadcast_to(channels, outputs)[np.newaxis, :]
    first, second = kernel.index("I"), kernel.index("O")
    if first > second:
        table, first, second = table.T, second, first
    shape = [1] * weight.ndim
    shape[first], shape[second] = table.shape
    return table.reshape(shape)


def _layouts(anchor: Any) -> tuple[str, str]:
    attrs = anchor.attrs
    return str(attrs.out_layout or attrs.data_layout), str(attrs.kernel_layout)


def _per_channel(factor: Array, shape: tuple[int | str, ...], axis: int) -> Array | None:
    """Return a factor of a result of ``shape`` as a vector over one of its axes.

    None where it varies along another axis, or stretches the result.
    """
    padded = (1,) * (len(shape) - factor.ndim) + factor.shape
    fits = all(
        extent == 1 or (i == axis and extent == shape[axis]) for i, extent in enumerate(padded)
    )
    return factor.reshape(-1) if fits and len(padded) == len(shape) else None
