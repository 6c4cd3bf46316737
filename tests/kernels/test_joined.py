"""Kernels of several parts: one launch, every task of every part exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._tvm import te, topi, tvm, tvm_ffi
from tvmfuse.kernels import choices, families, gemm, joined, reduction
from tvmfuse.kernels.families import Scheduled
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

MACHINE = MACHINES["8 lanes"]
MANY = Machine(8, 16, 6, 1 << 19)


def product_of(m: int, k: int, n: int, machine: Machine = MACHINE) -> list[Any]:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    return [a, b, gemm.emit_batched(a, b, machine)]


def softmax_of(*shape: int) -> list[Any]:
    x = te.placeholder(shape, name="x")
    return [x, reduction.softmax(x, 1, MACHINE.lanes)]


def doubled(*shape: int) -> list[Any]:
    x = te.placeholder(shape, name="y")
    return [x, topi.multiply(x, 2.0)]


def function_of(*parts: list[Any]) -> Any:
    """Return one function that computes every part; its results come last."""
    operands = [tensor for part in parts for tensor in part[:-1]]
    return te.create_prim_func([*operands, *(part[-1] for part in parts)])


def run(scheduled: Scheduled, function: Any) -> tuple[list[Any], list[Any]]:
    """Run a kernel on random operands; return all parameters before and after."""
    shapes = [[int(d) for d in param.ty.shape] for param in function.params]
    arrays = [testing.random_array(s, "float32", seed=i) for i, s in enumerate(shapes)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    named = scheduled.function.with_attr("global_symbol", "main")
    tvm.compile(tvm.IRModule({"main": named}), target=host())["main"](*tensors)
    return arrays, [tensor.numpy() for tensor in tensors]


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


SIZES = {
    "many tasks beside few": ((96, 64, 96), (700, 40), (3, 5)),
    "few tasks beside many": ((7, 9, 16), (1000, 64), (100, 400)),
    "all small": ((3, 4, 5), (3, 4), (2, 3)),
}


@pytest.mark.parametrize("machine", [MACHINE, MANY], ids=["one core", "six cores"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_parts_of_three_families_are_one_kernel_and_right(sizes: Any, machine: Machine) -> None:
    of_product, of_softmax, of_double = sizes
    function = function_of(
        product_of(*of_product, machine), softmax_of(*of_softmax), doubled(*of_double)
    )
    scheduled = families.schedule(function, machine)
    assert (scheduled.family, scheduled.note) == (families.JOINED, "")
    assert is_one_kernel(kernel_facts(scheduled.function))
    (a, b, x, y, *_), (*_, product, soft, double) = run(scheduled, function)
    a, b, x = (array.astype(np.float64) for array in (a, b, x))
    testing.assert_close(product, a @ b)
    testing.assert_close(soft, softmax(x))
    testing.assert_close(double, 2 * y)


def test_small_parts_that_are_much_together_are_spread_over_the_threads() -> None:
    parts = [product_of(32, 48, 64) for _ in range(4)]
    function = function_of(*parts)
    alone = families.schedule(function_of(parts[0]), MACHINE)
    assert kernel_facts(alone.function).parallel_regions == 0
    scheduled = families.schedule(function, MACHINE)
    assert kernel_facts(scheduled.function).parallel_regions == 1
    before, after = run(scheduled, function)
    for i in range(4):
        exact = before[2 * i].astype(np.float64) @ before[2 * i + 1]
        testing.assert_close(after[8 + i], exact)


def test_parts_that_read_one_tensor_stay_apart_and_results_of_results_together() -> None:
    x = te.placeholder((40, 30), name="x")
    total, peak = topi.sum(x, 1), topi.max(x, 1)
    assert len(joined.split(te.create_prim_func([x, total, peak]))) == 2
    assert len(joined.split(te.create_prim_func([x, total, topi.exp(total)]))) == 1


def test_a_part_of_several_loop_nests_runs_after_the_others_and_says_why() -> None:
    x = te.placeholder((300, 400), name="x")
    rows, columns = topi.sum(x, 1), topi.sum(x, 0)
    both = te.compute((300, 400), lambda i, j: rows[i] * columns[j], name="both")
    function = function_of([x, both], doubled(64, 64))
    scheduled = families.schedule(function, MACHINE)
    assert scheduled.family == "generic"
    assert scheduled.note.startswith("joined: a part of it has a parallel loop")
    (x_value, y, *_), (*_, found, double) = run(scheduled, function)
    exact = x_value.astype(np.float64)
    testing.assert_close(found, exact.sum(1)[:, None] * exact.sum(0))
    testing.assert_close(double, 2 * y)


def test_decisions_of_the_parts_are_told_apart_and_replay() -> None:
    function = function_of(product_of(96, 64, 96), product_of(24, 64, 32))
    recorder = choices.by_default()
    first = families.schedule(function, MACHINE, recorder.choose)
    assert {"0.unroll", "1.unroll"} <= set(recorder.taken)
    again = families.schedule(function, MACHINE, choices.from_record(recorder.taken).choose)
    assert tvm_ffi.structural_equal(first.function, again.function)
