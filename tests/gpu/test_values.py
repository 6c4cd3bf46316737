"""The CUDA and Metal text of fused kernels computes what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.gpu.cases import ADD_LAYER_NORM, MATMUL, MATMUL_HALF, SOFTMAX, Case
from tests.gpu.emulator import ORDERS, Emulator
from tests.gpu.lowering import DeviceCode, device_code
from tvmfuse.targets import resolve

CASES = (MATMUL, MATMUL_HALF, SOFTMAX, ADD_LAYER_NORM)
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}


@pytest.mark.parametrize("spec", ["cuda:sm_80", "metal:m1"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_agrees_with_numpy_in_both_thread_orders(
    case: Case, spec: str, emulate: Callable[[DeviceCode], Emulator]
) -> None:
    code = device_code(case, resolve(spec))
    emulator = emulate(code)
    for scale in case.scales:
        inputs = case.inputs(scale)
        expected = case.expected(inputs)
        for order in ORDERS:
            found = np.full(expected.shape, np.nan, case.dtype)
            emulator.run({**inputs, code.output: found}, order)
            error = np.abs(found - expected).max() / np.abs(expected).max()
            assert error < TOLERANCE[case.dtype], f"{scale=} {order=}"


@pytest.mark.parametrize("spec", ["cuda:sm_80", "metal:m1"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fused_group_is_one_launch_within_the_limits(case: Case, spec: str) -> None:
    target = resolve(spec)
    (launch,) = device_code(case, target).launches
    assert np.prod(launch.block) <= target.attrs["max_threads_per_block"]
    assert launch.dynamic_bytes <= target.attrs["max_shared_memory_per_block"]
