"""Tensors without elements need no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax, tirx
from tvmfuse.passes.constants import to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

# What an operator makes of no element at all, as in NumPy and ONNX.
_OF_NONE = {
    "relax.matmul": 0.0,
    "relax.max": -np.inf,
    "relax.mean": np.nan,
    "relax.min": np.inf,
    "relax.prod": 1.0,
    "relax.std": np.nan,
    "relax.sum": 0.0,
    "relax.variance": np.nan,
}

_SCATTERING = ("relax.scatter_elements", "relax.scatter_nd")


def constant_for_empty(flow: Dataflow, position: int) -> Any:
    """Rewrite a result without elements, or one that is made of none, as a constant."""
    operator = flow.operators[position]
    if not operator or not operators.has_no_effect(operator):
        return None
    call = flow.value(position)
    if isinstance(call.ty, relax.TupleType):
        parts = [_without_elements(kind) for kind in call.ty.fields]
        return relax.Tuple(parts) if parts and None not in parts else None
    empty = _without_elements(call.ty)
    if empty is not None:
        return empty
    shape = _known(call.ty)
    if shape is None:
        return None
    if operator in _SCATTERING and 0 in (operators.shape(call.args[1]) or ()):
        return call.args[0]
    value = _OF_NONE.get(operator)
    if value is None or not any(0 in (operators.shape(arg) or ()) for arg in call.args):
        return None
    dtype = operators.dtype(call)
    if not np.isfinite(value) and "float" not in dtype:
        return None
    return to_constant(np.full(shape, value), dtype)


def _without_elements(kind: Any) -> Any:
    """Return the constant of a type that has no elements, else None."""
    shape = _known(kind)
    return to_constant(np.zeros(shape), str(kind.dtype)) if shape and 0 in shape else None


def _known(kind: Any) -> tuple[int, ...] | None:
    """Return the extents of a tensor, None where one is open."""
    shape = kind.shape if isinstance(kind, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(extent, tirx.IntImm) for extent in shape.values):
        return None
    return tuple(int(extent) for extent in shape.values)
