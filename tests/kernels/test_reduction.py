"""Reductions, softmax and norms agree with NumPy along any axes and at any length."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import relax, te
from tvmfuse.kernels import families, reduction
from tvmfuse.kernels.rows import Rows, reduce, sums
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.verify import kernel_facts

SHAPE = (3, 4, 2, 37)
LENGTHS = (1, 2, 15, 16, 31, 32, 77)
AXES = list(chain.from_iterable(combinations(range(4), n) for n in range(1, 5)))


def softmax(shape: tuple[int, ...], axis: int, *, is_log: bool = False) -> Case:
    def emit(machine: Machine, x: Any) -> Any:
        return reduction.softmax(x, axis, machine.lanes, is_log=is_log)

    def reference(x: Any) -> Any:
        shifted = x - x.max(axis, keepdims=True)
        total = np.exp(shifted).sum(axis, keepdims=True)
        return shifted - np.log(total) if is_log else np.exp(shifted) / total

    name = f"{'log ' if is_log else ''}softmax of {shape} along {axis}"
    return Case(name, (shape,), emit, reference)


def norm(shape: tuple[int, ...], axes: tuple[int, ...], *, centered: bool = True) -> Case:
    weight = tuple(d if i in axes else 1 for i, d in enumerate(shape))

    def emit(machine: Machine, x: Any, gamma: Any) -> Any:
        def affine(normal: Any, index: Any) -> Any:
            return normal * gamma[tuple(v if i in axes else 0 for i, v in enumerate(index))]

        return reduction.normalize(
            x, axes, machine.lanes, epsilon=1e-3, centered=centered, affine=affine
        )

    def reference(x: Any, gamma: Any) -> Any:
        distance = x - x.mean(axes, keepdims=True) if centered else x
        return distance / np.sqrt((distance**2).mean(axes, keepdims=True) + 1e-3) * gamma

    name = f"{'layer' if centered else 'rms'} norm of {shape} over {axes}"
    return Case(name, (shape, weight), emit, reference)


def group_norm(shape: tuple[int, ...], groups: int) -> Case:
    def emit(machine: Machine, x: Any, gamma: Any) -> Any:
        return reduction.normalize_groups(
            x, groups, machine.lanes, epsilon=1e-3, affine=lambda y, channel: y * gamma[channel]
        )

    def reference(x: Any, gamma: Any) -> Any:
        parted = x.reshape(len(x), groups, -1)
        centred = parted - parted.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
        return normal.reshape(x.shape) * gamma.reshape(-1, *[1] * (x.ndim - 2))

    return Case(f"group norm of {shape} in {groups}", (shape, shape[1:2]), emit, reference)


def after_an_addition(case: Case) -> Case:
    """Return the case with the sum of two tensors as its first operand."""

    def emit(machine: Machine, a: Any, b: Any, *rest: Any) -> Any:
        total = te.compute(a.shape, lambda *i: a[i] + b[i], name="add")
        return case.emit(machine, total, *rest)

    return Case(
        f"addition, {case.name}",
        (case.shapes[0], *case.shapes),
        emit,
        lambda a, b, *rest: case.reference(a + b, *rest),
    )


CASES = [
    *(softmax(SHAPE, axis) for axis in range(4)),
    *(softmax(SHAPE, axis, is_log=True) for axis in (1, 3)),
    *(softmax((5, length), 1) for length in LENGTHS),
    *(softmax((length, 16), 0) for length in (1, 9)),
    softmax((64, 300), 1),
    *(norm(SHAPE, axes) for axes in ((3,), (2, 3), (1, 2, 3), (1,))),
    *(norm((5, length), (1,)) for length in LENGTHS),
    *(norm((3, length), (1,), centered=False) for length in (16, 33)),
    group_norm((2, 6, 3, 37), 3),
    group_norm((1, 4, 16), 4),
    group_norm((2, 6, 5, 5), 1),
    after_an_addition(norm((6, 45), (1,))),
    after_an_addition(softmax((6, 45), 1)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_with_an_epilogue_equal_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "reduction", epilogue=scaled_residual_relu(-1))


REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (relax.op.sum, np.sum),
    "mean": (relax.op.mean, np.mean),
    "max": (relax.op.max, np.max),
    "min": (relax.op.min, np.min),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("keepdims", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_over_any_axes_equals_numpy(
    name: str, *, keepdims: bool, machine: Machine, subtests: pytest.Subtests
) -> None:
    operator, reference = REDUCTIONS[name]
    x = testing.random_array(SHAPE, "float32")
    mod = graphs.module(lambda x: [operator(x, axes, keepdims) for axes in AXES], x)
    compiled = graphs.compiled(mod, target=graphs.on(machine), options=graphs.UNFUSED)
    for axes, found in zip(AXES, graphs.run(compiled, x), strict=True):
        with subtests.test(axes=axes):
            exact = np.asarray(reference(x.astype(np.float64), axis=axes, keepdims=keepdims))
            testing.assert_close(found, exact)
    assert {kernel.family for kernel in compiled.kernels} == {"reduction"}


RESULTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "layer norm": (
        lambda x, ones: relax.op.nn.layer_norm(x, ones, relax.op.multiply(ones, ones), [-1], 1e-3),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) + 1,
    ),
    "RMS norm": (
        lambda x, ones: relax.op.nn.rms_norm(x, ones, [-1], 1e-3),
        lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3),
    ),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", RESULTS)
def test_a_sum_and_its_norm_are_one_kernel(name: str, machine: Machine) -> None:
    norm_of, reference = RESULTS[name]

    def graph(a: Any, b: Any, ones: Any) -> list[Any]:
        total = relax.op.add(a, b)
        return [total, norm_of(total, ones)]

    a, b = (testing.random_array((5, 6, 77), "float32", seed=i) for i in range(2))
    ones = np.ones(77, "float32")
    mod = graphs.module(graph, a, b, ones)
    compiled = graphs.compiled(mod, target=graphs.on(machine))
    assert "reduction" in {kernel.family for kernel in compiled.kernels}
    assert not [kernel for kernel in compiled.kernels if kernel.note]
    total = a.astype(np.float64) + b
    for found, exact in zip(
        graphs.run(compiled, a, b, ones), (total, reference(total)), strict=True
    ):
        testing.assert_close(found, exact)


def test_the_sum_of_a_large_tensor_is_shared_among_threads() -> None:
    x = te.placeholder((300, 200), name="x")
    rows = Rows((300, 200), (0, 1))
    total = reduce(lambda *i: x[i], rows, sums(), 16, name="sum")
    found = families.schedule(te.create_prim_func([x, total]), MACHINES["16 lanes"])
    assert (found.family, found.note) == ("reduction", "")
    assert kernel_facts(found.function).parallel_regions == 1
