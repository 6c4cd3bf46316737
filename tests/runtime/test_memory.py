"""Memory for weights."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tvmfuse._tvm import tvm
from tvmfuse.runtime.memory import LargePages
from tvmfuse.runtime.transfer import weight

SHAPES = ((3, 5), (), (0, 4), (1 << 20,), (9 << 20,), (1,), (1025, 33))


def test_arrays_are_aligned_and_do_not_overlap():
    memory = LargePages()
    arrays = [memory.empty(shape, np.dtype("float32")) for shape in SHAPES]
    for number, array in enumerate(arrays):
        array[...] = number
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        assert array.shape == SHAPES[number]
        assert (array == number).all()


def test_an_array_outlives_the_memory_that_it_came_from():
    array = LargePages().empty((1 << 20,), np.dtype("int64"))
    gc.collect()
    array[...] = 7
    assert array.sum() == 7 << 20


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "bool", "int64"])
def test_a_weight_keeps_its_values(shape, dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    values = np.resize(np.arange(3), shape).astype(kind)
    tensor = weight(values, tvm.cpu(), LargePages())
    assert tuple(tensor.shape) == shape
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy().view(kind), values)
