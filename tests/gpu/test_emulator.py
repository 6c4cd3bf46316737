"""The emulator notices what is wrong with a kernel: it would be no test otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.gpu.cases import MATMUL, SOFTMAX, Case
from tests.gpu.emulator import ORDERS, Emulator, KernelError
from tests.gpu.lowering import DeviceCode, device_code
from tvmfuse.targets import resolve

Emulate = Callable[[DeviceCode], Emulator]


@pytest.mark.parametrize("which", [0, 1])
def test_deleted_barrier_of_a_matmul_changes_the_values(which: int, emulate: Emulate) -> None:
    code = device_code(MATMUL, resolve("metal:m1"))
    barriers = list(re.finditer(r"threadgroup_barrier\([^)]*\);", code.text))
    assert len(barriers) == 2
    start, end = barriers[which].span()
    mutant = replace(code, text=code.text[:start] + code.text[end:])
    assert not _is_right(mutant, MATMUL, emulate)


def test_wrong_shuffle_distance_of_a_maximum_changes_the_values(emulate: Emulate) -> None:
    code = device_code(SOFTMAX, resolve("metal:m1"))
    text, count = re.subn(r"(simd_shuffle_down\(\w+\[0\], )16\)", r"\g<1>3)", code.text, count=1)
    assert count == 1
    assert not _is_right(replace(code, text=text), SOFTMAX, emulate)


def test_barrier_that_some_threads_miss_is_a_fault(emulate: Emulate) -> None:
    code = device_code(SOFTMAX, resolve("cuda:sm_80"))
    barrier = "__syncthreads();"
    text = code.text.replace(barrier, f"if (threadIdx.x < 3) {barrier}", 1)
    with pytest.raises(KernelError, match="barrier"):
        _is_right(replace(code, text=text), SOFTMAX, emulate)


def test_write_past_the_end_of_a_buffer_is_a_fault(emulate: Emulate) -> None:
    code = device_code(SOFTMAX, resolve("metal:m1"))
    guard = "if (((int)threadIdx) < 44) {"  # keeps the last of five strides inside the row
    assert guard in code.text
    with pytest.raises(KernelError, match="out of the bounds"):
        _is_right(replace(code, text=code.text.replace(guard, "{")), SOFTMAX, emulate)


def _is_right(code: DeviceCode, case: Case, emulate: Emulate) -> bool:
    """Whether the values are right for every scale, in both orders of the threads."""
    emulator = emulate(code)
    for scale in case.scales:
        inputs = case.inputs(scale)
        expected = case.expected(inputs)
        for order in ORDERS:
            found = np.full(expected.shape, np.nan, case.dtype)
            emulator.run({**inputs, code.output: found}, order)
            if not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
                return False
    return True
