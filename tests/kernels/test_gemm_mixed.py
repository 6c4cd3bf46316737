"""Operands of different types that are known only at run time: summed wide, in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax

SHAPES = (((7, 33), (33, 20)), ((2, 3, 9, 16), (2, 3, 16, 12)), ((2, 5, 16), (16, 24)))


def product(x: Any, y: Any, dtype: str) -> Any:
    compiled = graphs.compiled(
        graphs.module(lambda x, y: relax.op.matmul(x, y, out_dtype=dtype), x, y)
    )
    assert [kernel.family for kernel in compiled.kernels] == ["gemm"]
    (found,) = graphs.run(compiled, x, y)
    assert str(found.dtype) == dtype
    return found


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("int8", "int8"), ("int8", "int16")])
@pytest.mark.parametrize("shapes", SHAPES)
def test_integers_are_summed_in_int32(shapes: Any, dtypes: tuple[str, str]) -> None:
    x, y = (
        np.random.default_rng(i).integers(np.iinfo(d).min, np.iinfo(d).max + 1, s).astype(d)
        for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    )
    exact = np.matmul(x.astype("int64"), y.astype("int64")).astype("int32")
    np.testing.assert_array_equal(product(x, y, "int32"), exact)


@pytest.mark.parametrize("shapes", SHAPES)
def test_floats_meet_bytes_in_float32(shapes: Any) -> None:
    x = testing.random_array(shapes[0], "float32")
    y = np.random.default_rng(1).integers(-128, 128, shapes[1]).astype("int8")
    testing.assert_close(product(x, y, "float32"), np.matmul(x.astype("f8"), y.astype("f8")))
