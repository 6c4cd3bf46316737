"""Resize agrees with products of each axis with a matrix of its weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.kernels import resize
from tvmfuse.kernels.resize import Sampling
from tvmfuse.kernels.tiling import Machine

COORDINATES = {
    "half_pixel": lambda i, extent, size: (i + 0.5) * extent / size - 0.5,
    "align_corners": lambda i, extent, size: i * (extent - 1) / (size - 1),
    "asymmetric": lambda i, extent, size: i * extent / size,
}
ROUNDING = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
}


def cubic(distance: float, alpha: float) -> float:
    """Return the weight of an element at a distance (Keys, 1981)."""
    d = abs(distance)
    if d <= 1:
        return (alpha + 2) * d**3 - (alpha + 3) * d**2 + 1
    return alpha * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def matrix(extent: int, size: int, sampling: Sampling) -> Any:
    """Return what turns the elements along an axis into those of the result."""
    if extent == size:
        return np.eye(extent)
    weights = np.zeros((size, extent))
    for i in range(size):
        x = COORDINATES[sampling.coordinates](i, extent, size)
        if sampling.method == "nearest_neighbor":
            taps = {ROUNDING[sampling.rounding](x): 1.0}
        elif sampling.method == "linear":
            taps = {math.floor(x) + t: 1 - abs(x - math.floor(x) - t) for t in (0, 1)}
        else:
            taps = {math.floor(x) + t: cubic(x - math.floor(x) - t, -0.75) for t in range(-1, 3)}
            if sampling.is_inside_only:
                taps = {at: weight for at, weight in taps.items() if 0 <= at < extent}
                taps = {at: weight / sum(taps.values()) for at, weight in taps.items()}
        for at, weight in taps.items():
            weights[i, min(max(at, 0), extent - 1)] += weight
    return weights


def resized(x: Any, shape: tuple[int, ...], sampling: Sampling) -> Any:
    for axis, size in enumerate(shape):
        weights = matrix(x.shape[axis], size, sampling)
        x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
    return x


SAMPLINGS = [
    Sampling("nearest_neighbor", "asymmetric", "floor"),
    Sampling("nearest_neighbor", "half_pixel", "round_prefer_floor"),
    Sampling("nearest_neighbor", "align_corners", "ceil"),
    *(Sampling(method, at) for method in ("linear", "cubic") for at in COORDINATES),
    Sampling("cubic", "half_pixel", is_inside_only=True),
]
SHAPES = [
    ((1, 3, 7, 9), (1, 3, 14, 18)),
    ((2, 3, 16, 33), (2, 3, 5, 40)),
    ((1, 2, 1, 5), (1, 2, 3, 8)),
    ((1, 40, 20, 50), (1, 40, 20, 130)),
    ((1, 2, 3, 5, 7), (1, 2, 6, 4, 11)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"{s.method} {s.coordinates}")
def test_resize_with_an_epilogue_equals_its_matrices(sampling: Sampling, machine: Machine) -> None:
    for shape, result in SHAPES:
        sizes = dict(enumerate(result))
        case = Case(
            "",
            (shape,),
            lambda machine, x, sizes=sizes: resize.emit(x, sizes, sampling),
            lambda x, result=result: resized(x, result, sampling),
        )
        check(case, machine, "resize", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
def test_other_element_types_are_resized(dtype: str) -> None:
    x = testing.random_array((1, 2, 5, 6), dtype)

    def graph(x: Any) -> Any:
        size = relax.ShapeExpr([10, 18])
        return relax.op.image.resize2d(
            x,
            size,
            method="nearest_neighbor",
            rounding_method="floor",
            coordinate_transformation_mode="asymmetric",
        )

    compiled = graphs.compiled(graphs.module(graph, x))
    found = graphs.run(compiled, x)
    np.testing.assert_array_equal(
        np.asarray(found).reshape(1, 2, 10, 18), x.repeat(2, 2).repeat(3, 3)
    )
    assert [kernel.family for kernel in compiled.kernels] == ["resize"]
