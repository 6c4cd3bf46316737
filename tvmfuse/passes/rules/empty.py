"""Tensors without elements need no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def constant_for_empty(flow: Dataflow, position: int) -> Any:
    """Rewrite a result without elements, or one that is made of none, as a constant."""
    operator = flow.operators[position]
    found = flow.shapes[position]
    if found is None or not operators.has_no_effect(operator):
        return None
    shape = tuple(extent for extent in found if isinstance(extent, int))
    if len(shape) < len(found):  # an extent is open
        return None
    call = flow.value(position)
    if 0 in shape:
        return to_constant(np.zeros(shape), operators.dtype(call))
    value = _OF_NONE.get(operator)
    if value is None or not any(0 in (operators.shape(arg) or ()) for arg in call.args):
        return None
    dtype = operators.dtype(call)
    if not np.isfinite(value) and "float" not in dtype:
        return None
    return to_constant(np.full(shape, value), dtype)
