"""Whatever is decided at random, a kernel stays right, its family's own, and one kernel."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._tvm import te, tirx, topi, tvm
from tvmfuse._tvm.recurrence import DEFAULT_ACTIVATIONS, Activation, Recurrence
from tvmfuse.kernels import (
    approx,
    attention,
    chained,
    choices,
    conv,
    families,
    gemm,
    planes,
    pointwise,
    recurrent,
    reduction,
    relayout,
    resize,
    scan,
    window,
)
from tvmfuse.kernels.attention_parts import Attention
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.resize import Sampling
from tvmfuse.kernels.rows import Rows, reduce, sums
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

MACHINE = MACHINES["8 lanes"]
AROUND = Window((3, 3), padding=(1, 1, 1, 1))
Tensors = list[Any]


def tensor(*shape: int) -> Any:
    return te.placeholder(shape, name=f"x{len(shape)}")


def packed_product() -> Tensors:
    x, panels = tensor(20, 24), tensor(3, 24, 16)
    return [x, panels, gemm.emit_packed(x, panels, 48, MACHINE)]


def batched_product() -> Tensors:
    x, y = te.placeholder((2, 20, 24), name="x"), te.placeholder((2, 24, 40), name="y")
    return [x, y, gemm.emit_batched(x, y, MACHINE)]


def padded_conv() -> Tensors:
    x, weight = tensor(1, 2, 9, 13, 8), tensor(4, 2, 3, 3, 8, 8)
    return [x, weight, conv.emit(x, weight, AROUND, MACHINE)]


def pointwise_conv() -> Tensors:
    x, weight = tensor(1, 4, 7, 9, 8), tensor(4, 4, 1, 1, 8, 8)
    return [x, weight, conv.emit(x, weight, Window((1, 1)), MACHINE)]


def depthwise_conv() -> Tensors:
    x, weight = tensor(1, 3, 10, 11, 8), tensor(3, 3, 3, 8)
    return [x, weight, window.emit_depthwise(x, weight, AROUND, MACHINE)]


def depthwise_planes() -> Tensors:
    x, weight = tensor(1, 3, 32, 33), tensor(3, 1, 3, 3)
    return [x, weight, planes.emit(x, weight, AROUND, MACHINE)]


def pointwise_planes() -> Tensors:
    x, weight = tensor(1, 10, 8, 9), tensor(4, 10, 6)
    return [x, weight, pointwise.emit(x, weight, Window((1, 1)), MACHINE, filters=23)]


def pooling() -> Tensors:
    x = tensor(1, 3, 10, 11, 8)
    return [x, window.emit_max(x, AROUND, MACHINE)]


def depthwise_and_pointwise() -> Tensors:
    x, taps, weight = tensor(1, 3, 12, 14, 8), tensor(3, 3, 3, 8), tensor(4, 3, 1, 1, 8, 8)
    deep = window.emit_depthwise(x, taps, AROUND, MACHINE)
    return [x, taps, weight, chained.emit_pointwise(deep, weight, MACHINE)]


def conv_and_pooling() -> Tensors:
    x, weight, pool = tensor(1, 2, 12, 14, 8), tensor(4, 2, 3, 3, 8, 8), Window((2, 2), (2, 2))
    y = conv.emit(x, weight, AROUND, MACHINE, margin=chained.margin(pool, 12))
    return [x, weight, window.emit_max(y, pool, MACHINE, pad=chained.padded)]


def two_products() -> Tensors:
    x, panels, others = tensor(45, 24), te.placeholder((5, 24, 16), name="w"), tensor(3, 80, 16)
    hidden = gemm.emit_packed(x, panels, 80, MACHINE, rows=5)
    return [x, panels, others, chained.emit_product(hidden, others, 40, MACHINE, rows=5)]


def squares() -> Tensors:
    x = tensor(33, 37)
    return [x, te.compute(x.shape, lambda *i: x[i] * x[i], name="square")]


def softmax() -> Tensors:
    x = tensor(33, 37)
    return [x, reduction.softmax(x, 1, MACHINE.lanes)]


def running_sums_of_columns() -> Tensors:
    x = tensor(3, 20, 37)
    return [x, scan.emit(x, 1, MACHINE)]


def running_sums_of_rows() -> Tensors:
    x = tensor(4, 6, 60)
    return [x, scan.emit(x, 2, MACHINE, is_exclusive=True)]


def sums_of_columns() -> Tensors:
    x = tensor(40, 96)
    return [x, reduce(lambda *i: x[i], Rows((40, 96), (0,)), sums(), MACHINE.lanes, name="sum")]


def transposition() -> Tensors:
    x = tensor(35, 48)
    return [x, topi.transpose(x)]


def copy_from_blocks() -> Tensors:
    x = tensor(1, 3, 5, 40, 8)
    return [x, relayout.emit_plain(x, (1, 20, 5, 40))]


def enlargement() -> Tensors:
    x = tensor(1, 3, 7, 40)
    return [x, resize.emit(x, {2: 14, 3: 80}, Sampling("linear", "half_pixel"))]


def sums_of_windows() -> Tensors:
    x = tensor(2, 6, 9, 40)
    return [x, topi.add(topi.sum(x, 2), 1.0)]


def plain_sums() -> Tensors:
    x = tensor(300, 70)
    return [x, topi.sum(x, 0)]


def attended() -> Tensors:
    shapes = {"q": (1, 4, 37, 20), "k": (1, 2, 45, 20), "v": (1, 2, 45, 24), "mask": (37, 45)}
    operands = [te.placeholder(shape, name=name) for name, shape in shapes.items()]

    def describe(q: Any, k: Any, v: Any, mask: Any) -> Attention:
        return Attention(
            *(1, 4, 37, 45, 20, 24),
            query=lambda *i: approx.tanh(q[i]),  # names that stand in it once for each use
            key=lambda *i: k[i],
            value=lambda *i: v[i],
            score=lambda x, b, h, i, j: approx.tanh(x) + mask[i, j],
            key_heads=2,
            causal=8,
        )

    return [*operands, attention.emit(describe, operands, MACHINE)]


def attended_by_one_query(heads: int = 8, keys: int = 300) -> Tensors:
    shapes = {"q": (1, heads, 1, 20), "k": (1, heads, keys, 20), "v": (1, heads, keys, 40)}
    operands = [te.placeholder(shape, name=name) for name, shape in shapes.items()]

    def describe(q: Any, k: Any, v: Any) -> Attention:
        return Attention(
            *(1, heads, 1, keys, 20, 40),
            query=lambda *i: q[i],
            key=lambda *i: k[i],
            value=lambda *i: v[i],
            score=lambda x, *_: x * tirx.const(0.25, "float32"),
            key_heads=heads,
        )

    return [*operands, attention.emit(describe, operands, MACHINE)]


def attended_by_one_query_of_one_head() -> Tensors:
    return attended_by_one_query(1, 1100)


def recurrent_layer() -> Tensors:
    shapes = ((5, 3, 4 * 21), (1, 21, 4 * 21), (1, 3, 21), (1, 3, 21))
    operands = [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    activations = tuple(Activation(name) for name in DEFAULT_ACTIVATIONS["lstm"])
    layer = Recurrence("lstm", (False,), (activations,))
    return [*operands, *recurrent.emit(layer, operands, MACHINE)]


def recurrent_cell() -> Tensors:
    term, weight, state = tensor(5, 4 * 21), tensor(1, 3, 21, 4, 8), tensor(5, 21)
    cell = te.placeholder((5, 21), name="cell")
    operands = [weight, state, cell]
    results = recurrent.emit_cell([term], operands, MACHINE, order=(0, 2, 3, 1))
    return [term, *operands, *results]


KERNELS = {
    "gemm": (packed_product, batched_product, pointwise_planes),
    "planes": (depthwise_planes,),
    "conv": (padded_conv, pointwise_conv),
    "window": (depthwise_conv, pooling),
    "chained": (depthwise_and_pointwise, conv_and_pooling, two_products),
    "elementwise": (squares, transposition),
    "generic": (plain_sums,),
    "nest": (sums_of_windows,),
    "reduction": (softmax, sums_of_columns),
    "attention": (attended, attended_by_one_query, attended_by_one_query_of_one_head),
    "recurrent": (recurrent_layer, recurrent_cell),
    "relayout": (copy_from_blocks,),
    "resize": (enlargement,),
    "scan": (running_sums_of_columns, running_sums_of_rows),
}
# States are carried from step to step, the tables of a resize stand before its loops, and parts
# of a query's keys are merged behind them.
_SEVERAL = ("recurrent", "resize")
_MERGED = (attended_by_one_query, attended_by_one_query_of_one_head)
CASES = [(family, emit) for family, emits in KERNELS.items() for emit in emits]


def run(function: Any, tensors: Tensors) -> list[Any]:
    """Return the results of a kernel, which stand behind its operands."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    library = tvm.compile(module, target=host())
    shapes = [tuple(int(extent) for extent in each.shape) for each in tensors]
    count = sum(isinstance(each.op, te.PlaceholderOp) for each in tensors)
    arrays = [testing.random_array(s, "float32", seed=i) for i, s in enumerate(shapes[:count])]
    results = [tvm.runtime.tensor(np.zeros(shape, "float32")) for shape in shapes[count:]]
    library["main"](*map(tvm.runtime.tensor, arrays), *results)
    return [result.numpy() for result in results]


@pytest.mark.parametrize(("family", "emit"), CASES, ids=[emit.__name__ for _, emit in CASES])
def test_random_decisions_change_the_speed_alone(family: str, emit: Any) -> None:
    tensors = emit()
    function = te.create_prim_func(tensors)
    expected = run(families.schedule(function, MACHINE).function, tensors)
    seen = set()
    for seed in range(8):
        recorder = choices.at_random(Random(seed))
        found = families.schedule(function, MACHINE, recorder.choose)
        assert (found.family, found.note) == (family, ""), recorder.taken
        if tuple(recorder.taken.items()) in seen:
            continue
        seen.add(tuple(recorder.taken.items()))
        facts = kernel_facts(found.function)
        assert facts.parallel_regions <= 1 or family in _SEVERAL, recorder.taken
        if family not in _SEVERAL and emit not in _MERGED:
            assert is_one_kernel(facts), recorder.taken
        for result, wanted in zip(run(found.function, tensors), expected, strict=True):
            testing.assert_close(result, wanted.astype("float64"))
    assert len(seen) >= 3
