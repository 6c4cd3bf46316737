"""Pooling in ``ceil_mode`` with padding, of which ONNX counts a result too many.

A window that begins behind the image and the padding before it gives no result in PyTorch,
in ONNX Runtime and, from opset 22 on, in ONNX. Shape inference of older opsets counts it,
and all shapes after it are wrong. Such a node is written without ``ceil_mode``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import helper, shape_inference

from tvmfuse.frontend.onnx_check import operator, opset

_RIGHT_FROM = 22
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def settle_ceil_mode(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write pooling nodes whose results ONNX counts wrongly without ``ceil_mode``.

    Parameters
    ----------
    model : onnx.ModelProto
        Changed in place where its inputs have known shapes.

    Returns
    -------
    onnx.ModelProto
        The model.
    """
    if opset(model) >= _RIGHT_FROM:
        return model
    for place, node in enumerate(model.graph.node):
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if operator(node) not in _POOLS or not given.get("ceil_mode"):
            continue
        # Anew for each: what an earlier one of them gives was counted wrongly, too.
        shape = _shape(shape_inference.infer_shapes(model), node.input[0])
        if shape is None or given.get("auto_pad", b"NOTSET") != b"NOTSET":
            continue
        changed = _without_ceil_mode(given, shape[2:], op=node.op_type)
        if changed:
            settled = helper.make_node(
                node.op_type, node.input, node.output, node.name, **{**given, **changed}
            )
            model.graph.node[place].CopyFrom(settled)
    return model


def _without_ceil_mode(
    given: dict[str, Any], extents: Sequence[int], *, op: str
) -> dict[str, Any] | None:
    """Return the attributes to change; None where ONNX counts right, or none would do.

    A last window that reaches beyond the padding needs more of it, which must not be counted.
    """
    rank = len(extents)
    pads = list(given.get("pads", [0] * 2 * rank))
    is_wrong = False
    more = [0] * rank
    for axis, (extent, kernel, stride, dilation) in enumerate(_axes(given, extents)):
        span, before = (kernel - 1) * dilation + 1, extent + pads[axis]
        free = before + pads[rank + axis] - span
        counted = -(-free // stride) + 1
        results = counted - ((counted - 1) * stride >= before)
        is_wrong |= results != counted
        more[axis] = max(0, (results - 1) * stride - free)
    is_counted = op == "AveragePool" and given.get("count_include_pad", 0)
    if not is_wrong or (any(more) and is_counted):
        return None
    after = [pad + extra for pad, extra in zip(pads[rank:], more, strict=True)]
    return {"ceil_mode": 0, "pads": [*pads[:rank], *after]}


def _axes(given: dict[str, Any], extents: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    ones = [1] * len(extents)
    geometry = (given.get("strides", ones), given.get("dilations", ones))
    return zip(extents, given["kernel_shape"], *geometry, strict=True)


def _shape(model: onnx.ModelProto, name: str) -> list[int] | None:
    for value in (*model.graph.input, *model.graph.value_info):
        dims = value.type.tensor_type.shape.dim
        if value.name == name and dims and all(dim.HasField("dim_value") for dim in dims):
            return [dim.dim_value for dim in dims]
    return None
