"""Products of quantised tensors in one form: 8-bit integers in, int32 out.

Models hold them in two: on dequantised values (ONNX's QDQ form), or on integers that
were widened and had their zero points taken off (``MatMulInteger``). Both become
``matmul(x, weight)`` of the integers as they are stored, from which the zero point's
share, a constant vector, is subtracted. Whatever scales, adds or quantises the result
stays what it was, so the patterns of matrix products find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import Array, constant, is_constant, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_BYTES = ("int8", "uint8")
_CONVOLUTIONS = {"relax.nn.conv1d": relax.op.nn.conv1d, "relax.nn.conv2d": relax.op.nn.conv2d}
# Beyond that, the sum of products of 8 bits may leave int32.
_MAX_LENGTH = (2**31 - 1) // (255 * 255)


@dataclass(frozen=True)
class _Quantised:
    """A tensor ``scale * (values - zero_point)``; no scale where it stays integer."""

    values: Any
    zero_point: Any
    scale: Any = None


def integer_product(flow: Dataflow, position: int) -> Any:
    """Rewrite a product of widened or dequantised integers as one of the integers."""
    if flow.operators[position] != "relax.matmul":
        return None
    left, right = flow.value(position).args
    weight = _weight(flow, right)
    if weight is None:
        return None
    values, scale = weight
    rows = _dequantised(flow, left) if scale is not None else _widened(flow, left)
    if rows is None or len(values) > _MAX_LENGTH:
        return None
    product = relax.op.matmul(rows.values, _narrow(values), out_dtype="int32")
    shifted = _without_zero_point(product, rows.zero_point, values)
    if scale is None:
        return shifted
    factor = _scaled(rows.scale, scale)
    return relax.op.multiply(relax.op.astype(shifted, "float32"), factor)


def integer_convolution(flow: Dataflow, position: int) -> Any:
    """Rewrite a convolution of dequantised images as one of the integers.

    Where zero is not stored as 0, the image is padded with what it is stored as first, so
    that the zero point takes part in every sum alike.
    """
    if flow.operators[position] not in _CONVOLUTIONS:
        return None
    call = flow.value(position)
    image, found = _dequantised(flow, call.args[0]), _filters(flow, call)
    if image is None or found is None:
        return None
    filters, scale = found
    zero = constant(image.zero_point)
    padding = [int(p) for p in call.attrs.padding]
    axes = len(padding) // 2
    by_filter = (-1, *(1,) * axes)
    attrs = call.attrs
    x = image.values
    if any(padding):
        if zero is None:
            return None
        if zero.reshape(()):
            ends = zip(padding[:axes], padding[axes:], strict=True)
            around = [0, 0, 0, 0, *(width for pair in ends for width in pair)]
            x = relax.op.nn.pad(x, around, "constant", float(zero.reshape(())))
            padding = [0] * len(padding)
    convolve = _CONVOLUTIONS[flow.operators[position]]
    sums = convolve(
        x,
        _narrow(filters),
        strides=attrs.strides,
        padding=padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_dtype="int32",
    )
    by_channel = filters.reshape(len(filters), -1).T
    shifted = _without_zero_point(sums, image.zero_point, by_channel, shape=by_filter)
    factor = _scaled(image.scale, scale.reshape(by_filter) if scale.size > 1 else scale)
    return relax.op.multiply(relax.op.astype(shifted, "float32"), factor)


def _filters(flow: Dataflow, call: Any) -> tuple[Array, Array] | None:
    """Return the constant filters (out, in, [kh,] kw) of a convolution, and their scale."""
    attrs = call.attrs
    layout = str(attrs.data_layout)
    if operators.dtype(call) != "float32" or str(attrs.out_layout or layout) != layout:
        return None
    if (layout, str(attrs.kernel_layout)) not in (("NCHW", "OIHW"), ("NCW", "OIW")):
        return None
    stored = _call(flow, call.args[1])
    if operators.name(stored) != "relax.dequantize":
        return None
    values, scale, zero_point = (constant(arg) for arg in stored.args[:3])
    if values is None or scale is None or zero_point is None or str(values.dtype) not in _BYTES:
        return None
    if scale.size > 1 and int(stored.attrs.axis) % values.ndim != 0:
        return None
    if values[0].size > _MAX_LENGTH:
        return None
    by_filter = (-1, *(1,) * (values.ndim - 1))
    centre = zero_point.reshape(by_filter) if zero_point.size > 1 else zero_point.reshape(())
    return values.astype(np.int32) - centre.astype(np.int32), scale.reshape(-1)


def is_weight_of_quantised(flow: Dataflow, position: int) -> bool:
    """Whether a binding dequantises a weight that :func:`integer_product` will take as it is.

    Folding constants would make a float32 weight of it, four times as large.
    """
    if flow.operators[position] != "relax.dequantize" or flow.deps[position]:
        return False
    users = [user for at in flow.users[position] for user in _behind_transpose(flow, at)]
    return bool(users) and all(_will_be_integer(flow, user) for user in users)


def _will_be_integer(flow: Dataflow, position: int) -> bool:
    call = flow.value(position)
    if flow.operators[position] == "relax.matmul":
        found: Any = _weight(flow, call.args[1])
    elif flow.operators[position] in _CONVOLUTIONS:
        found = _filters(flow, call)
    else:
        return False
    return found is not None and _dequantised(flow, call.args[0]) is not None


def _behind_transpose(flow: Dataflow, position: int) -> tuple[int, ...]:
    is_transpose = flow.operators[position] == "relax.permute_dims"
    return flow.users[position] if is_transpose else (position,)


def _weight(flow: Dataflow, expr: Any) -> tuple[Array, Array | None] | None:
    """Return a constant weight (K, N) without its zero point, and its scale, if it has one."""
    if is_constant(expr):
        return _narrow_weight(expr)
    call = _call(flow, expr)
    is_transposed = operators.name(call) == "relax.permute_dims"
    if is_transposed:
        call = _call(flow, call.args[0])
    if operators.name(call) != "relax.dequantize":
        return None
    stored, scale, zero_point = (constant(arg) for arg in call.args[:3])
    if stored is None or scale is None or zero_point is None or stored.ndim != 2:
        return None
    if str(stored.dtype) not in _BYTES:
        return None
    axis = int(call.attrs.axis) % 2
    spread = [p.reshape(-1, 1) if axis == 0 and p.size > 1 else p for p in (scale, zero_point)]
    whole = stored.astype(np.int32) - spread[1].astype(np.int32)
    scale = np.broadcast_to(spread[0], (1, 1) if scale.size == 1 else spread[0].shape)
    if is_transposed:
        whole, scale = whole.T, scale.T if scale.ndim == 2 else scale
        axis = 1 - axis
    if scale.size > 1 and axis != 1:
        return None  # one scale for each term of the sums
    return np.ascontiguousarray(whole), scale.reshape(-1)


def _narrow_weight(expr: Any) -> tuple[Array, None] | None:
    """Return a constant int32 weight (K, N) whose values fit 8 bits."""
    if operators.dtype(expr) != "int32":
        return None
    values = expr.value.numpy()
    return (values, None) if values.ndim == 2 and _has_8_bits(values) else None


def _widened(flow: Dataflow, expr: Any) -> _Quantised | None:
    """Take ``astype(x, int32) - zero_point`` apart."""
    call = _call(flow, expr)
    zero_point = None
    if operators.name(call) == "relax.subtract":
        inner, zero_point = call.args
        if not _is_one_number(zero_point):
            return None
        call = _call(flow, inner)
    if operators.name(call) != "relax.astype" or operators.dtype(call) != "int32":
        return None
    x = call.args[0]
    return _Quantised(x, zero_point) if operators.dtype(x) in _BYTES else None


def _dequantised(flow: Dataflow, expr: Any) -> _Quantised | None:
    """Take ``dequantize(x, scale, zero_point)`` with one scale apart."""
    call = _call(flow, expr)
    if operators.name(call) != "relax.dequantize":
        return None
    x, scale, zero_point = call.args[:3]
    is_plain = all(_is_one_number(arg) for arg in (scale, zero_point))
    if not is_plain or operators.dtype(x) not in _BYTES or operators.dtype(call) != "float32":
        return None
    if operators.dtype(scale) != "float32":
        return None
    return _Quantised(x, zero_point, scale)


def _without_zero_point(
    product: Any, zero_point: Any, weight: Array, *, shape: tuple[int, ...] = (-1,)
) -> Any:
    """Subtract what the rows' zero point contributed: itself times the sums of the columns."""
    if zero_point is None:
        return product
    sums = weight.sum(axis=0, dtype=np.int32).reshape(shape)
    known = constant(zero_point)
    if known is not None:
        offset = sums * known.astype(np.int32).reshape(())
        if not offset.any():
            return product
        return relax.op.subtract(product, to_constant(offset, "int32"))
    wide = relax.op.astype(zero_point, "int32")
    return relax.op.subtract(product, relax.op.multiply(wide, to_constant(sums, "int32")))


def _scaled(rows: Any, weight: Array) -> Any:
    known = constant(rows)
    if known is not None:
        return to_constant(known.astype(np.float32).reshape(()) * weight, "float32")
    return relax.op.multiply(rows, to_constant(weight, "float32"))


def _narrow(weight: Array) -> Any:
    fits = weight.min(initial=0) >= -128 and weight.max(initial=0) <= 127
    dtype = "int8" if fits else "int16"
    return to_constant(weight.astype(dtype), dtype)


def _has_8_bits(weight: Array) -> bool:
    low, high = int(weight.min(initial=0)), int(weight.max(initial=0))
    return high - low <= 255 and low >= -255 and high <= 255


def _is_one_number(expr: Any) -> bool:
    shape = operators.shape(expr)
    return shape is not None and len(shape) <= 1 and all(extent == 1 for extent in shape)


def _call(flow: Dataflow, expr: Any) -> Any:
    position = flow.position.get(expr)
    return expr if position is None else flow.value(position)
