"""A few rows times a weight that nobody packed: read as it lies, right, one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.kernels.gemm import direct
from tvmfuse.kernels.tiling import Machine

SIZES = {"one row": (1, 64, 80), "three rows": (3, 96, 48), "four long rows": (4, 1040, 32)}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_product_equals_numpy(
    sizes: tuple[int, int, int], machine: Machine, *, transposed: bool
) -> None:
    m, n, k = sizes
    assert direct.fits(m, n, k, machine, transposed=transposed)

    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return direct.emit(x, weight, machine, transposed=transposed, dtype="float32")

    def reference(x: Any, weight: Any) -> Any:
        return x @ (weight.T if transposed else weight)

    shapes = ((m, 1, k), (n, k) if transposed else (k, n))
    case = Case("", shapes, emit, reference)
    check(case, machine, "gemm", epilogue=scaled_residual_relu(-1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_linear", [False, True])
def test_a_weight_that_stays_an_input_is_neither_packed_nor_turned(
    dtype: str, *, is_linear: bool
) -> None:
    x = testing.random_array((1, 2, 64), dtype, seed=1)
    weight = testing.random_array((48, 64) if is_linear else (64, 48), dtype, seed=2)

    def graph(x: Any, weight: Any) -> Any:
        turned = relax.op.permute_dims(weight) if is_linear else weight
        return relax.op.nn.relu(relax.op.matmul(x, turned))

    compiled = graphs.compiled(graphs.module(graph, x, weight))
    assert [kernel.family for kernel in compiled.kernels] == ["gemm"]
    (found,) = graphs.run(compiled, x, weight)
    wide = weight.astype("f8").T if is_linear else weight.astype("f8")
    testing.assert_close(found, np.maximum(x.astype("f8") @ wide, 0))


def test_ragged_widths_and_many_rows_are_left_to_the_packing_kernel() -> None:
    machine = MACHINES["16 lanes"]
    assert not direct.fits(1, 33, 64, machine, transposed=False)
    assert not direct.fits(1, 32, 65, machine, transposed=True)
    assert not direct.fits(5, 32, 64, machine, transposed=False)
