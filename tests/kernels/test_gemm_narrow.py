"""Products by weights of 4 and 8 bits in groups equal those of the dequantised weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Machine
from tvmfuse import testing
from tvmfuse._tvm import te, tirx, tvm
from tvmfuse.kernels import families
from tvmfuse.kernels.gemm import narrow
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

RNG = np.random.default_rng(0)


def operands(
    bits: int, groups: int, group: int, n: int, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = (-128, 128) if dtype == "int8" else (0, 2**bits)
    weight = RNG.integers(low, high, (groups, group, n)).astype(dtype)
    scale, offset = RNG.standard_normal((2, groups, 1, n)).astype("float32") / 2**bits
    return weight, scale, offset


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("bits", "dtype"), [(4, "uint8"), (8, "uint8"), (8, "int8")])
@pytest.mark.parametrize("has_offset", [True, False])
@pytest.mark.parametrize(("rows", "n"), [(1, 37), (3, 64), (6, 37), (12, 150), (13, 37)])
def test_product_equals_that_of_the_dequantised_weight(
    machine: Machine, bits: int, dtype: str, rows: int, n: int, *, has_offset: bool
) -> None:
    values, scale, offset = operands(bits, 3, 16, n, dtype)
    x = RNG.standard_normal((rows, 48)).astype("float32")
    stored = narrow.Narrow(bits, narrow.columns_for(rows, machine))
    arrays = [
        x,
        narrow.pack_narrow(values, stored),
        narrow.pack_scales(scale, stored.columns),
    ]
    if has_offset:
        arrays.append(narrow.pack_scales(offset, stored.columns))
    inputs = [te.placeholder(a.shape, str(a.dtype)) for a in arrays]

    def followed(y: Any) -> Any:
        zero = tirx.const(0.0, "float32")
        return te.compute(y.shape, lambda *i: te.max(y[i], zero), name="relu")

    weight = (*inputs[1:], *([] if has_offset else [None]))
    result = followed(narrow.emit_narrow(inputs[0], weight, n, stored, machine))
    scheduled = families.schedule(te.create_prim_func([*inputs, result]), machine)
    assert (scheduled.family, scheduled.note) == ("gemm", "")
    assert is_one_kernel(kernel_facts(scheduled.function))
    built = tvm.compile(families.as_module(scheduled.function), tvm.target.Target("llvm"))
    out = tvm.runtime.tensor(np.empty((rows, n), "float32"))
    built["main"](*(tvm.runtime.tensor(a) for a in arrays), out)
    whole = (scale.astype("f8") * values + (offset if has_offset else 0)).reshape(48, n)
    testing.assert_close(out.numpy(), np.maximum(x.astype("f8") @ whole, 0))
