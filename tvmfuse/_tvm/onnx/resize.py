"""Resize, of which TVM 0.27's ONNX importer keeps just the size of the result.

It samples by the ratio of the sizes. Where a scale times a size is no whole number ONNX
samples by the scale itself, which gives other values; ``antialias`` and
``keep_aspect_ratio_policy`` it overlooks. These are resampled here, axis by axis: what a place
of the result is made of is known when compiling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant
from tvmfuse._tvm.onnx.resampling import Sampling, nearest, weights

Array = np.ndarray[Any, Any]

_ROI, _SCALES, _SIZES = 1, 2, 3


def convert_resize(node: Node) -> relax.Expr:
    """Convert ``Resize``: by TVM where it samples at the right places, else by weights."""
    # Up to opset 12 scales had to be given, if only as a tensor without elements.
    given = [None if is_constant(x) and 0 in (extents(x) or ()) else x for x in node.inputs]
    node = replace(node, inputs=given)
    shape = extents(node.inputs[0])
    if shape is None:
        return node.default()
    axes = [int(a) % len(shape) for a in node.attrs.get("axes", range(len(shape)))]
    sizes = np.array([shape[axis] for axis in axes], np.float64)
    is_sized = node.input(_SIZES) is not None
    factors = node.array(_SIZES) / sizes if is_sized else node.array(_SCALES)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if is_sized and policy != "stretch":
        factors = np.full_like(factors, {"not_larger": min, "not_smaller": max}[policy](factors))
    elif not node.attrs.get("antialias", 0) and (is_sized or _are_whole(factors * sizes)):
        return node.default()
    results = np.rint(factors * sizes) if is_sized else np.floor(factors * sizes)
    value = node.inputs[0]
    for k, axis in enumerate(axes):
        sampling = _sampling(node, shape[axis], int(results[k]), float(factors[k]), k, len(axes))
        if sampling.out_size != sampling.in_size or sampling.scale != 1.0:
            value = node.emit(_resampled(node, value, axis, sampling))
    return value


def _are_whole(results: Array) -> bool:
    return bool(np.abs(results - np.round(results)).max(initial=0.0) <= 1e-3)


def _sampling(
    node: Node, in_size: int, out_size: int, scale: float, k: int, count: int
) -> Sampling:
    transformation = node.text("coordinate_transformation_mode", "half_pixel")
    region = (0.0, 1.0)
    if transformation == "tf_crop_and_resize":
        roi = node.array(_ROI)
        region = (float(roi[k]), float(roi[k + count]))
    return Sampling(
        in_size,
        out_size,
        scale,
        transformation,
        antialias=bool(node.attrs.get("antialias", 0)),
        exclude_outside=bool(node.attrs.get("exclude_outside", 0)),
        cubic=float(node.attrs.get("cubic_coeff_a", -0.75)),
        region=region,
    )


def _resampled(node: Node, value: relax.Expr, axis: int, sampling: Sampling) -> relax.Expr:
    """Return ``value`` with one axis resampled."""
    mode = node.text("mode", "nearest")
    outside = sampling.outside
    if outside.any():
        raise NotImplementedError(
            "tf_crop_and_resize beyond the image is not supported: crop within it"
        )
    if mode == "nearest":
        rounding = node.text("nearest_mode", "round_prefer_floor")
        return relax.op.take(value, relax.const(nearest(sampling, rounding)), axis=axis)
    if not dtype_of(value).startswith(("float", "bfloat")):
        raise NotImplementedError(
            f"{mode} resampling of {dtype_of(value)} is not supported: cast to float32 before"
        )
    matrix = relax.const(weights(sampling, mode).T.astype(dtype_of(value)), dtype_of(value))
    rank = int(value.ty.ndim)
    if axis == rank - 1:
        return relax.op.matmul(value, matrix)
    order = [a for a in range(rank) if a != axis] + [axis]
    last = relax.op.matmul(relax.op.permute_dims(value, order), matrix)
    return relax.op.permute_dims(last, [order.index(a) for a in range(rank)])
