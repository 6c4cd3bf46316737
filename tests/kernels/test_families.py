"""A kernel goes to the family of its blocks, and never ends without a way to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._tvm import te, topi, tvm, tvm_ffi
from tvmfuse._tvm.recurrence import Activation, Recurrence
from tvmfuse.kernels import (
    attention,
    chained,
    conv,
    families,
    gemm,
    planes,
    recurrent,
    reduction,
    resize,
    scan,
    transposed,
    window,
    winograd,
)
from tvmfuse.kernels.attention_parts import Attention
from tvmfuse.kernels.families import Scheduled
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.resize import Sampling
from tvmfuse.kernels.transposed import Geometry
from tvmfuse.passes.layout.convert import unblocking

MACHINE = MACHINES["8 lanes"]
GRU = Recurrence("gru", (False,), ((Activation("sigmoid"), Activation("tanh")),))
DOUBLING = Geometry((2, 2), (2, 2), (0, 0), (10, 10))


def image(*shape: int) -> Any:
    return te.placeholder(shape, name="x")


def weight(*shape: int) -> Any:
    return te.placeholder(shape, name="weight")


def kernels() -> dict[str, list[Any]]:
    """Return one kernel for each family, as its operands and result."""
    x, w = image(1, 2, 5, 5, 8), weight(2, 2, 3, 3, 8, 8)
    doubling, tiles = weight(4, 2, 2, 1, 1, 8, 8), weight(2, 6, 6, 2, 8, 8)
    a, b = image(6, 8), weight(8, 16)
    layer = [te.placeholder(shape) for shape in ((3, 1, 15), (1, 5, 15), (1, 1, 5))]
    flat, plane, taps = image(4, 50), image(1, 4, 9, 9), weight(4, 1, 3, 3)
    flat4 = image(1, 2, 3, 5)
    deep = window.emit_depthwise(x, block_taps := weight(2, 3, 3, 8), Window((3, 3)), MACHINE)
    points = weight(2, 2, 1, 1, 8, 8)
    q, k, v = (te.placeholder((1, 2, 9, 8), name=name) for name in "qkv")

    def heads(q: Any, k: Any, v: Any) -> Attention:
        return Attention(
            batch=1,
            heads=2,
            queries=9,
            keys=9,
            depth=8,
            width=8,
            query=lambda *i: q[i],
            key=lambda *i: k[i],
            value=lambda *i: v[i],
            score=lambda product, *_: product,
        )

    return {
        "attention": [q, k, v, attention.emit(heads, (q, k, v), MACHINE)],
        "chained": [x, block_taps, points, chained.emit_pointwise(deep, points, MACHINE)],
        "conv": [x, w, conv.emit(x, w, Window((3, 3)), MACHINE)],
        "transposed": [x, doubling, transposed.emit(x, doubling, DOUBLING, MACHINE)],
        "winograd": [x, tiles, winograd.emit(x, tiles, Window((3, 3)), MACHINE)],
        "recurrent": [*layer, *recurrent.emit(GRU, layer, MACHINE)],
        "relayout": [x, unblocking((1, 12, 5, 5))(x)],
        "planes": [plane, taps, planes.emit(plane, taps, Window((3, 3)), MACHINE)],
        "resize": [flat4, resize.emit(flat4, {2: 6, 3: 9}, Sampling("linear", "half_pixel"))],
        "scan": [flat, scan.emit(flat, 1, MACHINE)],
        "window": [x, window.emit_max(x, Window((2, 2)), MACHINE)],
        "gemm": [a, b, gemm.emit_batched(a, b, MACHINE)],
        "reduction": [flat, reduction.softmax(flat, 1, MACHINE.lanes)],
        "elementwise": [flat, topi.exp(flat)],
        "nest": [x, topi.exp(topi.sum(x, 2))],
        "generic": [flat, topi.sum(flat, 1)],
    }


@pytest.mark.parametrize("family", families.FAMILIES)
def test_each_family_knows_its_own_kernels(family: str) -> None:
    assert families.family_of(te.create_prim_func(kernels()[family])) == family


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_scheduled_kernel_is_marked_and_keeps_its_attributes(family: str) -> None:
    function = te.create_prim_func(kernels()[family]).with_attr("mine", 3)
    scheduled = families.schedule(function, MACHINE)
    assert scheduled.family == family
    assert bool(scheduled.function.attrs["tirx.is_scheduled"])
    assert int(scheduled.function.attrs["mine"]) == 3
    assert str(scheduled.function.attrs["global_symbol"]) == "main"


def with_a_result_of_another_shape() -> list[Any]:
    """Return a product whose sum of rows is a second result."""
    a, b = image(6, 8), weight(8, 16)
    product = gemm.emit_batched(a, b, MACHINE)
    return [a, b, product, topi.sum(product, 1)]


def test_what_a_family_refuses_is_scheduled_plainly_and_says_why() -> None:
    tensors = with_a_result_of_another_shape()
    scheduled = families.schedule(te.create_prim_func(tensors), MACHINE)
    assert scheduled.family == "generic"
    assert scheduled.note.startswith("gemm: ")
    assert "\n" not in scheduled.note
    a, b = (testing.random_array(shape, "float32") for shape in ((6, 8), (8, 16)))
    product, total = np.empty((6, 16), "float32"), np.empty(6, "float32")
    _run(scheduled, [a, b], [product, total])
    exact = a.astype(np.float64) @ b
    testing.assert_close(product, exact)
    testing.assert_close(total, exact.sum(1))


def test_two_independent_sums_are_scheduled_plainly() -> None:
    x = image(5, 40)
    tensors = [x, topi.sum(x, 0), topi.max(x, 1)]
    scheduled = families.schedule(te.create_prim_func(tensors), MACHINE)
    values = testing.random_array((5, 40), "float32")
    results = [np.empty(40, "float32"), np.empty(5, "float32")]
    _run(scheduled, [values], results)
    testing.assert_close(results[0], values.astype(np.float64).sum(0))
    testing.assert_close(results[1], values.astype(np.float64).max(1))


def test_a_decision_goes_through_choose() -> None:
    asked: dict[str, Any] = {}

    def choose(name: str, options: Any, *, default: Any) -> Any:
        asked[name] = (tuple(options), default)
        return options[0]

    families.schedule(te.create_prim_func(kernels()["gemm"]), MACHINE, choose)
    assert set(asked) >= {"unroll", "column_tasks", "row_tasks", "outer_tiles"}
    assert all(default in options for options, default in asked.values())


def _run(scheduled: Scheduled, arrays: list[Any], results: list[Any]) -> None:
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=host())
    out = [tvm.runtime.tensor(result) for result in results]
    library["main"](*map(tvm.runtime.tensor, arrays), *out)
    for tensor, result in zip(out, results, strict=True):
        result[...] = tensor.numpy()


def test_scheduling_leaves_the_kernel_that_it_was_given() -> None:
    # TVM 0.27 schedules a function in place where nothing but the schedule holds its module.
    x = te.placeholder((64, 64), name="x")
    function = te.create_prim_func([x, te.compute((64, 64), lambda *i: x[i] + 1.0)])
    before = function.script()
    first = families.schedule(function, MACHINE)
    assert function.script() == before
    assert tvm_ffi.structural_equal(first.function, families.schedule(function, MACHINE).function)
