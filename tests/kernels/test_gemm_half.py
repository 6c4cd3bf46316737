"""Half-precision products are summed in float32, and read their weights as they are."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns bfloat16 from it
import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._pipeline import Options, pipeline, prepare
from tvmfuse._tvm import relax, te, tvm
from tvmfuse.kernels import families, gemm
from tvmfuse.kernels.tiling import Machine, gemm_tile
from tvmfuse.targets import resolve

HALVES = ("float16", "bfloat16")
SIZES = {"whole tiles": (24, 96, 32), "ragged": (7, 33, 17), "one row": (1, 40, 64)}


def run(tensors: list[Any], arrays: list[Any], machine: Machine) -> Any:
    scheduled = families.schedule(te.create_prim_func(tensors), machine)
    assert (scheduled.family, scheduled.note) == ("gemm", "")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=host())
    *_, last = tensors
    out = tvm.runtime.tensor(np.zeros([int(d) for d in last.shape], str(last.dtype)))
    library["main"](*(tvm.runtime.tensor(array) for array in arrays), out)
    return out.numpy()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_packed_product_equals_numpy(
    sizes: tuple[int, int, int], machine: Machine, dtype: str
) -> None:
    m, n, k = sizes
    x, weight = (testing.random_array(s, dtype, seed=len(s)) for s in ((2, m, k), (k, n)))
    panels = gemm.pack(weight, gemm_tile(m, n, machine).columns)
    tensors = [te.placeholder(a.shape, dtype, name=f"x{a.ndim}{len(a)}") for a in (x, panels)]
    found = run([*tensors, gemm.emit_packed(*tensors, n, machine)], [x, panels], machine)
    assert str(found.dtype) == dtype
    testing.assert_close(found, x.astype("f8") @ weight.astype("f8"))


@pytest.mark.parametrize("dtype", HALVES)
def test_batched_product_equals_numpy_and_may_be_wider(dtype: str) -> None:
    machine = MACHINES["8 lanes"]
    a, b = (testing.random_array(s, dtype, seed=s[1]) for s in ((3, 7, 16), (3, 16, 20)))
    tensors = [te.placeholder(v.shape, dtype, name=f"x{v.shape[1]}") for v in (a, b)]
    product = gemm.emit_batched(*tensors, machine, out_dtype="float32")
    found = run([*tensors, product], [a, b], machine)
    testing.assert_close(found, a.astype("f8") @ b.astype("f8"))


def model(dtype: str, x_shape: tuple[int, int], weight: Any) -> Any:
    x = relax.Var("x", relax.TensorType(x_shape, dtype))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            y = block.emit(relax.op.matmul(x, relax.const(weight, dtype)))
            y = block.emit(relax.op.add(y, relax.const(np.ones(weight.shape[1], dtype), dtype)))
            y = block.emit_output(relax.op.tanh(y))
        block.emit_func_output(y)
    return block.get()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_sum_that_leaves_the_range_on_its_way_is_right(dtype: str) -> None:
    """300 x 300 is beyond float16 already; the whole sum is 1."""
    k = 512
    x = np.where(np.arange(k) % 2, 300.0, -300.0).astype(dtype)[None]
    weight = np.full((k, 8), 300.0, dtype)
    x[0, -1] = weight[-1, 0] = 0
    weight[-2], x[0, -2] = 1, 1
    weight[0], x[0, 0] = 0, 0
    target = resolve("cpu")
    module = model(dtype, (1, k), weight)
    executable = tvm.compile(module, target.tvm(), relax_pipeline=pipeline(target))
    (found,) = testing.run(executable, [x])
    exact = np.tanh(x.astype("f8") @ weight.astype("f8") + 1)
    testing.assert_close(found, exact)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_weight_stays_in_half_precision(dtype: str) -> None:
    weight = testing.random_array((32, 48), dtype)
    prepared = prepare(model(dtype, (5, 32), weight), resolve("cpu"), options=Options())
    constants: list[Any] = []
    relax.analysis.post_order_visit(
        prepared.module["main"],
        lambda e: constants.append(e) if isinstance(e, tvm.ir.GenericConst) else None,
    )
    largest = max(constants, key=lambda c: np.prod(c.value.shape))
    assert str(largest.value.dtype) == dtype
