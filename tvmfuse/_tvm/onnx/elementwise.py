"""``Clip`` and ``Pad`` as Relax operators.

TVM 0.27's ONNX importer emits ready-made kernels for both, which no fusion
pattern can look into, and for ``Clip`` it also compares constant bounds with
NaN at run time.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, is_constant, is_tensor


def convert_clip(node: Node) -> relax.Expr:
    """Convert ``Clip`` with constant bounds; a bound of NaN bounds nothing."""
    if not all(bound is None or is_constant(bound) for bound in (node.input(1), node.input(2))):
        return node.default()
    value = node.inputs[0]
    dtype = dtype_of(value)
    low, high = _bound(node, 1), _bound(node, 2)
    if low is not None and high is not None and low <= high and "float" in dtype:
        return relax.op.clip(value, low, high)
    # ONNX takes the upper bound where the lower one is above it.
    if low is not None:
        value = relax.op.maximum(value, relax.const(low, dtype))
    if high is not None:
        value = relax.op.minimum(value, relax.const(high, dtype))
    return value


def convert_pad(node: Node) -> relax.Expr:
    """Convert ``Pad`` by a constant, with constant widths on all axes."""
    data, widths, fill = node.inputs[0], node.input(1), node.input(2)
    is_plain = (
        node.text("mode", "constant") == "constant"
        and is_constant(widths)
        and (fill is None or is_constant(fill))
        and node.input(3) is None
        and is_tensor(data)
        and "float" in dtype_of(data)
    )
    if not is_plain or (node.array(1) < 0).any():
        return node.default()
    before, after = node.array(1).reshape(2, -1).tolist()
    pairs = [width for pair in zip(before, after, strict=True) for width in pair]
    value = 0.0 if fill is None else node.array(2).item()
    return relax.op.nn.pad(data, pairs, "constant", value)


def _bound(node: Node, index: int) -> Any:
    """Return a bound as a number, or None where there is none."""
    if node.input(index) is None:
        return None
    value = node.array(index).item()
    return None if math.isnan(value) else value
