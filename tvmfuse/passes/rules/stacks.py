"""Turn a reduction over stacked tensors back into operators between them.

TVM's ONNX importer writes ``Sum``, ``Max``, ``Min`` and ``Mean`` of several
tensors as a reduction of their stack: a copy of all of them, and no residual
that a pattern could see.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow


def operator_for_stack(flow: Dataflow, position: int) -> Any:
    """Rewrite ``sum(stack(x, y, …))`` over the stacked axis as ``add(add(x, y), …)``."""
    operator = flow.operators[position]
    pairwise = {
        "relax.sum": relax.op.add,
        "relax.mean": relax.op.add,
        "relax.max": relax.op.maximum,
        "relax.min": relax.op.minimum,
    }.get(operator)
    if pairwise is None:
        return None
    call = flow.value(position)
    source = flow.position.get(call.args[0])
    if source is None or flow.operators[source] != "relax.stack":
        return None
    stack = flow.value(source)
    if not isinstance(stack.args[0], relax.Tuple):
        return None
    axis = int(stack.attrs.axis or 0) % stack.ty.ndim
    reduced = [int(a) % stack.ty.ndim for a in call.attrs.axis or range(stack.ty.ndim)]
    if reduced != [axis] or call.attrs.keepdims:
        return None
    tensors = operators.tensors(stack)
    combined = reduce(pairwise, tensors)
    if operator != "relax.mean":
        return combined
    if not operators.is_float(operators.dtype(call)):
        return None
    share = to_constant(np.array(1.0 / len(tensors)), operators.dtype(call))
    return relax.op.multiply(combined, share)
