"""Running sums agree with NumPy along every axis."""

from __future__ import annotations

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES, Case, check
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.kernels import scan
from tvmfuse.kernels.tiling import Machine

SHAPES = [(1,), (7,), (300,), (5, 33), (40, 130), (3, 5, 7), (2, 70, 3, 67), (1, 1, 40)]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("is_exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_running_sums_equal_numpy(
    shape: tuple[int, ...], *, is_exclusive: bool, machine: Machine
) -> None:
    for axis in range(len(shape)):
        case = Case(
            "",
            (shape,),
            lambda machine, x, axis=axis: scan.emit(x, axis, machine, is_exclusive=is_exclusive),
            lambda x, axis=axis: np.cumsum(x, axis) - (x if is_exclusive else 0),
        )
        check(case, machine, "scan")


@pytest.mark.parametrize(("dtype", "family"), [("float32", "scan"), ("int32", "")])
def test_running_sums_of_a_model_are_right_in_each_type(dtype: str, family: str) -> None:
    x = testing.random_array((3, 40, 20), dtype)
    module = graphs.module(lambda x: relax.op.cumsum(x, axis=-2, exclusive=True), x)
    compiled = graphs.compiled(module)
    testing.assert_close(graphs.run(compiled, x)[0], np.cumsum(x, 1) - x)
    assert [kernel.family for kernel in compiled.kernels] == [family]
