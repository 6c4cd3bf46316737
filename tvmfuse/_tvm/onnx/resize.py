"""Resize, whose scales TVM 0.27's ONNX importer rounds to whole sizes.

It keeps just the size of the result and samples by the ratio of the sizes. Where
a scale times a size is no whole number ONNX samples by the scale itself, which
gives other values; and ``antialias`` it overlooks. Both are refused.
"""

from __future__ import annotations

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node

_SCALES = 2


def convert_resize(node: Node) -> relax.Expr:
    """Convert ``Resize`` where TVM samples at the right places."""
    if int(node.attrs.get("antialias", 0)):
        raise NotImplementedError("antialias=1 is not supported: export without it")
    scales = node.input(_SCALES)
    if scales is not None and node.input(_SCALES + 1) is None:
        factors = node.array(_SCALES).astype(np.float64)
        sizes = np.array([int(extent) for extent in node.inputs[0].ty.shape], np.float64)
        if factors.size == sizes.size:
            results = factors * sizes
            if np.abs(results - np.round(results)).max(initial=0.0) > 1e-3:
                raise NotImplementedError(
                    f"scales {factors.tolist()} of {[int(s) for s in sizes]} give no whole sizes: "
                    "give sizes instead"
                )
    return node.default()
