"""Weights of 4 or 8 bits in groups, in the one form that a product takes in.

A weight that is widened, shifted by zero points, scaled and perhaps transposed becomes
``reshape(values * scale + offset)`` of integers (groups, group, columns), and stays so:
folded, it would be eight times as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import Array, constant, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.narrow_matmul import FOUR_BITS, stored_weight

_ARITHMETIC = ("relax.multiply", "relax.add", "relax.subtract")
_VIEWS = ("relax.reshape", "relax.permute_dims")
_BYTES = ("int8", "uint8")
_RANK = 3
_LARGEST = 127  # of int8


@dataclass(frozen=True)
class _Weight:
    """Integers (groups, group, n), and scale and offset of each group (groups, 1, n)."""

    values: Array
    scale: Array
    offset: Array


def narrow_weight(flow: Dataflow, position: int) -> Any:
    """Rewrite a product by a weight of small integers so that it takes in the weight."""
    if flow.operators[position] != "relax.matmul":
        return None
    call = flow.value(position)
    x, right = call.args
    if stored_weight(flow, right) is not None:
        return None
    found = _weight(flow, right)
    if found is None or not _is_float32_rows(call):
        return None
    groups, group, n = found.values.shape
    values = relax.op.astype(to_constant(found.values, str(found.values.dtype)), "float32")
    scaled = relax.op.multiply(values, to_constant(found.scale, "float32"))
    if found.offset.any():
        scaled = relax.op.add(scaled, to_constant(found.offset, "float32"))
    return relax.op.matmul(x, relax.op.reshape(scaled, (groups * group, n)))


def is_narrow_weight(flow: Dataflow, position: int) -> bool:
    """Whether a binding widens integers that :func:`narrow_weight` takes as they are stored."""
    if flow.operators[position] != "relax.astype" or flow.deps[position]:
        return False
    stored = flow.value(position).args[0]
    if operators.dtype(stored) not in _BYTES or len(operators.shape(stored) or ()) != _RANK:
        return False
    readers = list(_readers(flow, position))
    return bool(readers) and all(
        flow.operators[reader] == "relax.matmul"
        and _is_float32_rows(flow.value(reader))
        and _weight(flow, flow.value(reader).args[1]) is not None
        for reader in readers
    )


def _readers(flow: Dataflow, position: int) -> Iterator[int]:
    for user in flow.users[position]:
        if flow.operators[user] in (*_ARITHMETIC, *_VIEWS):
            yield from _readers(flow, user)
        else:
            yield user


def _is_float32_rows(call: Any) -> bool:
    x = call.args[0]
    shape = operators.shape(x)
    is_static = shape is not None and all(isinstance(extent, int) for extent in shape)
    return is_static and len(shape or ()) > 1 and operators.dtype(x) == "float32"


def _weight(flow: Dataflow, expr: Any) -> _Weight | None:
    """Take ``[permute](reshape(scale * integers + offset))`` apart."""
    call = _call(flow, expr)
    is_turned = operators.name(call) == "relax.permute_dims"
    if is_turned:
        call = _call(flow, call.args[0])
    if operators.name(call) != "relax.reshape":
        return None
    matrix, parts = operators.shape(call), operators.shape(call.args[0])
    if matrix is None or parts is None or (len(matrix), len(parts)) != (2, _RANK):
        return None
    affine = _affine(flow, call.args[0])
    if affine is None:
        return None
    values, scale, offset = affine
    if is_turned:  # (n, groups, group)
        if matrix[0] != parts[0]:
            return None
        values, scale, offset = (part.transpose(1, 2, 0) for part in (values, scale, offset))
    elif matrix[1] != parts[2]:
        return None
    wide = (values.shape[0], 1, values.shape[2])
    if scale.shape[1] != 1 or offset.shape[1] != 1:
        return None
    scale, offset = (np.broadcast_to(part, wide) for part in (scale, offset))
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    # Counted from zero where 4 bits hold them in pairs, else from the middle of a byte.
    is_narrow = high - low <= FOUR_BITS and values.shape[1] % 2 == 0
    shift = min(low, max(0, high - FOUR_BITS)) if is_narrow else max(0, high - _LARGEST)
    values, offset = values.astype(np.int16) - shift, offset + shift * scale
    if _is_uniform(scale) or (_is_uniform(offset) and offset.any()):
        return None  # one number is folded into others: then it is a weight like any other
    dtype = "uint8" if is_narrow else "int8"
    return _Weight(
        np.ascontiguousarray(values.astype(dtype)),
        scale.astype(np.float32),
        offset.astype(np.float32),
    )


def _affine(flow: Dataflow, expr: Any) -> tuple[Array, Array, Array] | None:
    """Return integers, scale and offset of what is computed from them and constants."""
    steps = []
    call = _call(flow, expr)
    while operators.name(call) in _ARITHMETIC:
        factor = _known(flow, call.args[1])
        if factor is None or operators.dtype(call) != "float32" or factor.ndim > _RANK:
            return None
        steps.append((operators.name(call), factor.astype(np.float64)))
        call = _call(flow, call.args[0])
    if operators.name(call) != "relax.astype":
        return None
    values = constant(call.args[0])
    if values is None or values.ndim != _RANK or str(values.dtype) not in _BYTES:
        return None
    scale, offset = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    for operator, factor in reversed(steps):
        if operator == "relax.multiply":
            scale, offset = scale * factor, offset * factor
        else:
            offset = offset + (factor if operator == "relax.add" else -factor)
    return values, scale, offset


def _known(flow: Dataflow, expr: Any) -> Array | None:
    """Return a constant, which may be yet to be widened."""
    call = _call(flow, expr)
    return constant(call.args[0] if operators.name(call) == "relax.astype" else call)


def _is_uniform(array: Array) -> bool:
    return bool((array == array.reshape(-1)[:1]).all())


def _call(flow: Dataflow, expr: Any) -> Any:
    position = flow.position.get(expr)
    return expr if position is None else flow.value(position)
