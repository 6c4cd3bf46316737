"""Whatever is decided at random, a kernel stays right, its family's own, and one kernel."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse import testing
from tvmfuse._tvm import te, tvm
from tvmfuse.kernels import (
    chained,
    choices,
    conv,
    families,
    gemm,
    planes,
    pointwise,
    reduction,
    window,
)
from tvmfuse.kernels.image import Window
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


KERNELS = {
    "gemm": (packed_product, batched_product, pointwise_planes),
    "planes": (depthwise_planes,),
    "conv": (padded_conv, pointwise_conv),
    "window": (depthwise_conv, pooling),
    "chained": (depthwise_and_pointwise, conv_and_pooling, two_products),
    "elementwise": (squares,),
    "reduction": (softmax,),
}
CASES = [(family, emit) for family, emits in KERNELS.items() for emit in emits]


def run(function: Any, tensors: Tensors) -> Any:
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    library = tvm.compile(module, target=host())
    shapes = [tuple(int(extent) for extent in each.shape) for each in tensors]
    arrays = [testing.random_array(shape, "float32", seed=i) for i, shape in enumerate(shapes)]
    arguments = [tvm.runtime.tensor(array) for array in arrays[:-1]]
    out = tvm.runtime.tensor(np.zeros(shapes[-1], "float32"))
    library["main"](*arguments, out)
    return out.numpy()


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
        assert is_one_kernel(kernel_facts(found.function)), recorder.taken
        testing.assert_close(run(found.function, tensors), expected.astype("float64"))
    assert len(seen) > 1
