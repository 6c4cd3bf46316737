"""Large results pass by the caches, and are what they would be otherwise."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._tvm import registers, te, tirx, tvm
from tvmfuse.kernels import families, reduction
from tvmfuse.targets import resolve


def streaming(name: str, _options: Any, *, default: Any) -> Any:
    """Take every decision by default, but let results of any size pass by the caches."""
    return True if name == "is_streamed" else default


def doubled(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: x[i] * tirx.const(2, x.dtype), name="doubled")


def compiled(x: Any, y: Any, target: Any) -> Any:
    scheduled = families.schedule(te.create_prim_func([x, y]), MACHINES["16 lanes"], streaming)
    function = scheduled.function.with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    return tvm.compile(module, target=target, tir_pipeline=registers.PIPELINE)


def placeholder(*shape: int, dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name="x")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_a_streamed_result_is_right(dtype: str) -> None:
    x = placeholder(1 << 11, (1 << 10) + 16, dtype=dtype)
    values = testing.random_array((1 << 11, (1 << 10) + 16), dtype)
    out = tvm.runtime.tensor(np.zeros(values.shape, dtype))
    compiled(x, doubled(x), host())["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), 2 * values)


def test_streamed_rows_of_a_softmax_are_right() -> None:
    x = placeholder(1 << 11, 1 << 10)
    values = testing.random_array((1 << 11, 1 << 10), "float32")
    out = tvm.runtime.tensor(np.zeros_like(values))
    library = compiled(x, reduction.softmax(x, 1, 16), host())
    library["main"](tvm.runtime.tensor(values), out)
    powers = np.exp(values.astype(np.float64) - values.max(1, keepdims=True))
    testing.assert_close(out.numpy(), powers / powers.sum(1, keepdims=True))


STORES = {
    "x86-64-v3": r"\bvmovntps\s+%ymm",
    "x86-64-v4": r"\bvmovntps\s+%zmm",
    "aarch64": r"\bstnp\s+q",
}


@pytest.mark.parametrize("cpu", STORES)
def test_only_large_results_are_streamed(cpu: str) -> None:
    target = resolve(f"cpu:{cpu}").tvm()
    stored = re.compile(STORES[cpu])
    for shape, is_streamed in {(1 << 12, 1 << 10): True, (64, 64): False}.items():
        x = placeholder(*shape)
        library = compiled(x, doubled(x), target)
        assert bool(stored.search(library.mod.inspect_source("asm"))) is is_streamed


def test_rows_that_are_no_whole_vectors_are_not_streamed() -> None:
    x = placeholder(1 << 12, 1001)
    library = compiled(x, reduction.softmax(x, 1, 16), resolve("cpu:x86-64-v4").tvm())
    assert "vmovnt" not in library.mod.inspect_source("asm")
