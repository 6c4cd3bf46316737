"""TVM's operator of attention, written out: what ``torch.export`` programs become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_NAMES = ("relax.nn.attention", "relax.nn.attention_bias")


def write_attention_out(flow: Dataflow, position: int) -> Any:
    """Rewrite attention as products, a softmax and the transposes around them.

    TVM 0.27 computes the operator in three steps with the whole score matrix, and gives
    NaN in rows that are masked throughout; PyTorch gives zeros there, and so does this.
    """
    if flow.operators[position] not in _NAMES:
        return None
    call = flow.value(position)
    query, key, value, *bias = call.args
    extents = [_static_shape(operand) for operand in (query, key)]
    if call.attrs.window_size is not None or not all(extents):
        return None
    (_, rows, heads, depth), (_, columns, key_heads, _) = extents
    if heads != key_heads:
        return None
    op, dtype = relax.op, operators.dtype(query)
    scale = call.attrs.scale
    factor = 1 / math.sqrt(depth) if scale is None else float(scale)
    left, right = op.permute_dims(query, [0, 2, 1, 3]), op.permute_dims(key, [0, 2, 3, 1])
    scores = op.multiply(op.matmul(left, right), to_constant(np.array(factor), dtype))
    for mask in (*bias, *_causal(call.attrs.causal_mask, rows, columns, dtype)):
        scores = op.add(scores, mask)
    weights = op.nn.softmax(scores, axis=-1)
    if bias or call.attrs.causal_mask:
        weights = op.where(op.isnan(weights), to_constant(np.array(0.0), dtype), weights)
    context = op.matmul(weights, op.permute_dims(value, [0, 2, 1, 3]))
    return op.permute_dims(context, [0, 2, 1, 3])


def _causal(kind: Any, rows: int, columns: int, dtype: str) -> list[Any]:
    """Return the mask that hides later keys, as something to add."""
    if not kind:
        return []
    offset = columns - rows if str(kind) == "BottomRight" else 0
    seen = np.tril(np.ones((rows, columns), bool), offset)
    return [to_constant(np.where(seen, 0.0, -np.inf), dtype)]


def _static_shape(operand: Any) -> tuple[int, ...]:
    """Return four static extents, or none."""
    shape = operators.shape(operand) or ()
    known = tuple(extent for extent in shape if isinstance(extent, int))
    return known if len(known) == len(shape) == 4 else ()
