"""Transposed convolutions agree with NumPy for any stride, filter and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, run, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import te
from tvmfuse.kernels import transposed
from tvmfuse.kernels.tiling import Machine
from tvmfuse.kernels.transposed import Geometry
from tvmfuse.passes.layout.forms import Blocked, TransposedWeight


def reference(x: Any, weight: Any, geometry: Geometry) -> Any:
    """Add every pixel times the filter to where it lands."""
    (n, _, height, width), (_, filters, kh, kw) = x.shape, weight.shape
    (sh, sw), (top, left), (out_h, out_w) = geometry.strides, geometry.before, geometry.out
    full = np.zeros((n, filters, top + out_h + height * sh + kh, left + out_w + width * sw + kw))
    for i in range(height):
        for j in range(width):
            landed = np.einsum("nc,cokl->nokl", x[:, :, i, j], weight)
            full[:, :, i * sh : i * sh + kh, j * sw : j * sw + kw] += landed
    return full[:, :, top : top + out_h, left : left + out_w]


def case(name: str, image: tuple[int, int, int, int], filters: int, geometry: Geometry) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return transposed.emit(x, weight, geometry, machine)

    def forms(machine: Machine) -> tuple[Any, ...]:
        return Blocked(machine.block), TransposedWeight(machine.block, geometry.strides)

    return Case(
        name,
        (image, (image[1], filters, *geometry.kernel)),
        emit,
        lambda x, weight: reference(x, weight, geometry),
        forms,
        is_blocked=True,
    )


CASES = [
    case("2 x 2, stride 2", (1, 32, 9, 11), 16, Geometry((2, 2), (2, 2), (0, 0), (18, 22))),
    case("4 x 4, padded", (2, 16, 5, 6), 32, Geometry((4, 4), (2, 2), (1, 1), (10, 12))),
    case("3 x 3, ragged phases", (1, 16, 6, 5), 16, Geometry((3, 3), (2, 2), (1, 1), (12, 10))),
    case("stride beyond the filter", (1, 16, 4, 3), 16, Geometry((2, 1), (3, 2), (0, 0), (11, 5))),
    case("stride 1", (1, 16, 4, 7), 16, Geometry((3, 3), (1, 1), (1, 2), (4, 5))),
    case("much left out", (1, 16, 5, 5), 16, Geometry((2, 2), (2, 2), (3, 4), (6, 5))),
    case("a row", (1, 20, 1, 30), 12, Geometry((1, 16), (1, 8), (0, 4), (1, 240))),
    case("one pixel", (1, 16, 1, 1), 16, Geometry((4, 4), (4, 4), (0, 0), (4, 4))),
    case("many strips", (1, 24, 40, 13), 48, Geometry((4, 4), (2, 2), (1, 1), (80, 26))),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_equals_numpy_with_an_epilogue(case: Case, machine: Machine) -> None:
    check(case, machine, "transposed", epilogue=scaled_residual_relu(1))


def test_an_infinity_meets_no_tap_that_a_phase_lacks() -> None:
    machine, geometry = MACHINES["8 lanes"], Geometry((3, 3), (2, 2), (1, 1), (7, 7))
    x = testing.random_array((1, 8, 4, 4), "float32")
    x[0, 2, 1, 1], x[0, 3, 3, 0] = np.inf, np.nan
    weight = testing.random_array((8, 8, 3, 3), "float32", seed=1)
    arrays = [Blocked(8).arrange(x), TransposedWeight(8, (2, 2)).arrange(weight)]
    tensors = [te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
    result = transposed.emit(*tensors, geometry, machine)
    found = run([*tensors, result], arrays, machine, family="transposed")[0, 0].transpose(2, 0, 1)
    expected = reference(x.astype(np.float64), weight.astype(np.float64), geometry)[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
