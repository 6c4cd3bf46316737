"""Products of a few float rows by a weight that is stored in 8 bits.

Such a product takes as long as reading its weight, so a weight of bytes makes it up to
four times as fast; the kernel converts what it reads. With many rows arithmetic is the
limit, and the weight becomes float32 when compiling, as any other constant expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import Array, constant, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_MAX_ROWS = 16
_BYTES = ("int8", "uint8")
_STEPS = ("relax.subtract", "relax.multiply", "relax.permute_dims")  # after the conversion


def byte_weight(flow: Dataflow, position: int) -> Any:
    """Rewrite ``matmul(x, scale * W)`` as ``matmul(x, W) * scale``, where W is 8-bit."""
    if flow.operators[position] != "relax.matmul" or not _has_few_rows(flow, position):
        return None
    x, right = flow.value(position).args
    found = _scaled_bytes(flow, right)
    if found is None:
        return None
    values, scale = found
    product = relax.op.matmul(x, to_constant(values, "int8"), out_dtype="float32")
    return relax.op.multiply(product, to_constant(scale, "float32"))


def is_weight_of_few_rows(flow: Dataflow, position: int) -> bool:
    """Whether a binding widens a constant that :func:`byte_weight` takes as it is stored."""
    if flow.operators[position] not in ("relax.astype", "relax.dequantize"):
        return False
    if flow.deps[position] or operators.dtype(flow.value(position).args[0]) not in _BYTES:
        return False
    readers = list(_readers(flow, position))
    return bool(readers) and all(
        flow.operators[reader] == "relax.matmul"
        and _has_few_rows(flow, reader)
        and _scaled_bytes(flow, flow.value(reader).args[1]) is not None
        for reader in readers
    )


def _readers(flow: Dataflow, position: int) -> Iterator[int]:
    for user in flow.users[position]:
        if flow.operators[user] in _STEPS:
            yield from _readers(flow, user)
        else:
            yield user


def _has_few_rows(flow: Dataflow, position: int) -> bool:
    call = flow.value(position)
    x = call.args[0]
    shape = operators.shape(x)
    if (
        shape is None
        or len(shape) < 2
        or {operators.dtype(x), operators.dtype(call)} != {"float32"}
    ):
        return False
    lead = [d for d in shape[:-1] if isinstance(d, int)]
    return len(lead) == len(shape) - 1 and math.prod(lead) <= _MAX_ROWS


def _scaled_bytes(flow: Dataflow, expr: Any) -> tuple[Array, Array] | None:
    """Return a weight as int8 (K, N) and its scale, (N,) or (1,), where it is so made."""
    call = _call(flow, expr)
    is_turned = operators.name(call) == "relax.permute_dims"
    if is_turned:
        call = _call(flow, call.args[0])
    found = _dequantised(call) or _converted(flow, call)
    if found is None:
        return None
    values, scale = (part.T if is_turned else part for part in found)
    if scale.size > 1 and scale.shape != (1, values.shape[1]):
        return None  # a scale for each term of the sums
    if values.min(initial=0) < -128 or values.max(initial=0) > 127:
        return None
    return np.ascontiguousarray(values).astype(np.int8), scale.reshape(-1)


def _dequantised(call: Any) -> tuple[Array, Array] | None:
    """Take ``dequantize(constant)`` apart: whole numbers without zero point, and the scale."""
    if operators.name(call) != "relax.dequantize":
        return None
    stored, scale, zero_point = (constant(arg) for arg in call.args[:3])
    if stored is None or scale is None or zero_point is None or stored.ndim != 2:
        return None
    axis = int(call.attrs.axis) % 2
    spread = [p.reshape((-1, 1) if axis == 0 else (1, -1)) for p in (scale, zero_point)]
    return stored.astype(np.int32) - spread[1].astype(np.int32), spread[0].astype(np.float32)


def _converted(flow: Dataflow, call: Any) -> tuple[Array, Array] | None:
    """Take ``(astype(constant) - zero point) * scale`` apart."""
    if operators.name(call) != "relax.multiply":
        return None
    inner, factor = _call(flow, call.args[0]), constant(call.args[1])
    offset: Array | None = np.zeros((), np.float32)
    if operators.name(inner) == "relax.subtract":
        inner, offset = _call(flow, inner.args[0]), constant(inner.args[1])
    if factor is None or offset is None or operators.name(inner) != "relax.astype":
        return None
    stored = constant(inner.args[0])
    if stored is None or stored.ndim != 2 or str(stored.dtype) not in _BYTES:
        return None
    whole = stored.astype(np.float64) - offset
    if whole.shape != stored.shape or (whole != np.rint(whole)).any():
        return None
    scale = factor.reshape((1,) * (2 - factor.ndim) + factor.shape)
    return (whole.astype(np.int32), scale.astype(np.float32)) if scale.ndim == 2 else None


def _call(flow: Dataflow, expr: Any) -> Any:
    position = flow.position.get(expr)
    return expr if position is None else flow.value(position)
