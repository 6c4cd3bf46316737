"""Every family has something to decide on the shapes that networks have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from tests.kernels.contract import MACHINES
from tvmfuse._tvm import te, topi
from tvmfuse._tvm.recurrence import DEFAULT_ACTIVATIONS, Activation, Recurrence
from tvmfuse.kernels import (
    attention,
    chained,
    choices,
    conv,
    families,
    gemm,
    planes,
    recurrent,
    reduction,
    relayout,
    resize,
    rows,
    scan,
    transposed,
    window,
    winograd,
)
from tvmfuse.kernels.attention_parts import Attention
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.resize import Sampling
from tvmfuse.kernels.transposed import Geometry

MACHINE = MACHINES["16 lanes"]
FEWEST = 3
_WALKS = 24
AROUND = Window((3, 3), padding=(1, 1, 1, 1))
Tensors = list[Any]


def x(*shape: int) -> Any:
    return te.placeholder(shape, name="x")


def weight(*shape: int) -> Any:
    return te.placeholder(shape, name="weight")


def heads(n_heads: int = 12, queries: int = 128, keys: int = 128) -> Tensors:
    lengths = {"q": queries, "k": keys, "v": keys}
    operands = [te.placeholder((1, n_heads, n, 64), name=name) for name, n in lengths.items()]

    def describe(q: Any, k: Any, v: Any) -> Attention:
        return Attention(
            *(1, n_heads, queries, keys, 64, 64),
            query=lambda *i: q[i],
            key=lambda *i: k[i],
            value=lambda *i: v[i],
            score=lambda product, *_: product,
        )

    return [*operands, attention.emit(describe, operands, MACHINE)]


def bottleneck() -> Tensors:
    image, taps, points = x(1, 6, 28, 28, 16), weight(6, 3, 3, 16), weight(2, 6, 1, 1, 16, 16)
    deep = window.emit_depthwise(image, taps, AROUND, MACHINE)
    return [image, taps, points, chained.emit_pointwise(deep, points, MACHINE)]


def lstm() -> Tensors:
    shapes = ((20, 1, 4 * 256), (1, 256, 4 * 256), (1, 1, 256), (1, 1, 256))
    operands = [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    activations = tuple(Activation(name) for name in DEFAULT_ACTIVATIONS["lstm"])
    layer = Recurrence("lstm", (False,), (activations,))
    return [*operands, *recurrent.emit(layer, operands, MACHINE)]


def of(operands: Tensors, emit: Callable[..., Any]) -> Tensors:
    return [*operands, emit(*operands)]


def summed(shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensors:
    image, over = x(*shape), rows.Rows(shape, axes)
    value = rows.reduce(lambda *i: image[i], over, rows.sums(), MACHINE.lanes, name="sum")
    return [image, value]


def norm(image: Any) -> Any:
    return reduction.normalize(image, (1,), MACHINE.lanes, epsilon=1e-5)


def enlarged(image: Any) -> Any:
    return resize.emit(image, {2: 56, 3: 56}, Sampling("linear", "half_pixel"))


KERNELS: Mapping[str, Callable[[], Tensors]] = {
    "attention": heads,
    "attention: one query": lambda: heads(12, 1, 512),
    "attention: one query of one head": lambda: heads(1, 1, 4096),
    "chained": bottleneck,
    "conv": lambda: of(
        [x(1, 4, 28, 28, 16), weight(4, 4, 3, 3, 16, 16)],
        lambda image, w: conv.emit(image, w, AROUND, MACHINE),
    ),
    "elementwise": lambda: of([x(128, 768)], lambda a: topi.multiply(a, a)),
    "elementwise: transposed": lambda: of([x(768, 128)], topi.transpose),
    "gemm": lambda: of(
        [x(128, 64), weight(64, 128)], lambda a, b: gemm.emit_batched(a, b, MACHINE)
    ),
    "generic": lambda: of([x(300, 400)], lambda a: topi.sum(a, 1)),
    "joined": lambda: [(a := x(64, 64)), (b := weight(32, 96)), topi.exp(a), topi.exp(b)],
    "nest": lambda: of([x(1, 64, 57, 57)], lambda a: topi.add(topi.sum(a, 3), 1.0)),
    "planes": lambda: of(
        [x(1, 32, 56, 56), weight(32, 1, 3, 3)],
        lambda image, w: planes.emit(image, w, AROUND, MACHINE),
    ),
    "recurrent": lstm,
    "reduction: softmax": lambda: of([x(128, 128)], lambda a: reduction.softmax(a, 1, 16)),
    "reduction: norm": lambda: of([x(128, 768)], norm),
    "reduction: of rows": lambda: summed((128, 768), (1,)),
    "reduction: of columns": lambda: summed((128, 768), (0,)),
    "reduction: to one number": lambda: summed((128, 768), (0, 1)),
    "relayout": lambda: of(
        [x(1, 4, 56, 56, 16)], lambda a: relayout.emit_plain(a, (1, 64, 56, 56))
    ),
    "resize": lambda: of([x(1, 64, 28, 28)], enlarged),
    "scan": lambda: of([x(128, 768)], lambda a: scan.emit(a, 1, MACHINE)),
    "transposed": lambda: of(
        [x(1, 2, 14, 14, 16), weight(4, 2, 2, 1, 1, 16, 16)],
        lambda image, w: transposed.emit(
            image, w, Geometry((2, 2), (2, 2), (0, 0), (28, 28)), MACHINE
        ),
    ),
    "window": lambda: of(
        [x(1, 4, 56, 56, 16)], lambda image: window.emit_max(image, AROUND, MACHINE)
    ),
    "winograd": lambda: of(
        [x(1, 4, 28, 28, 16), weight(4, 6, 6, 4, 16, 16)],
        lambda image, w: winograd.emit(image, w, AROUND, MACHINE),
    ),
}


def family_of(name: str) -> str:
    return name.partition(":")[0]


def test_no_family_is_left_out() -> None:
    assert {family_of(name) for name in KERNELS} == {*families.FAMILIES, families.JOINED}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_a_usual_shape_can_be_scheduled_in_several_ways(name: str) -> None:
    function = te.create_prim_func(KERNELS[name]())
    seen = set()
    for seed in range(_WALKS):
        recorder = choices.at_random(Random(seed))
        found = families.schedule(function, MACHINE, recorder.choose)
        assert (found.family, found.note) == (family_of(name), ""), recorder.taken
        seen.add(tuple(recorder.taken.items()))
        if len(seen) == FEWEST:
            return
    raise AssertionError(f"only {seen}")
