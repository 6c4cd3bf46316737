"""Kernels without reductions agree with NumPy, whatever they read and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES, Case, check, host, scaled_residual_relu, stretched
from tvmfuse import testing
from tvmfuse._tvm import relax, s_tir, te, topi, tvm
from tvmfuse.kernels import blocks, families
from tvmfuse.kernels.tiling import Machine, product


def chain(machine: Machine, a: Any, b: Any) -> Any:
    """Scale, add with stretching, and square: three blocks, all inlined."""
    shape = np.broadcast_shapes(*(tuple(int(d) for d in t.shape) for t in (a, b)))

    def at(x: Any, index: Any) -> Any:
        return stretched(x, index[len(index) - len(x.shape) :])

    doubled = te.compute(a.shape, lambda *i: a[i] * 2, name="double")
    total = te.compute(shape, lambda *i: at(doubled, i) + at(b, i), name="add")
    return te.compute(shape, lambda *i: total[i] * total[i], name="square")


def case(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
    return Case(name, (left, right), chain, lambda a, b: (2 * a + b) ** 2)


def moved(name: str, shape: tuple[int, ...], emit: Any, reference: Any) -> Case:
    return Case(name, (shape,), lambda machine, x: emit(x), reference)


CASES = [
    *(case(f"{n} elements", (n,), (n,)) for n in (1, 3, 7, 16, 31, 1000)),
    case("three axes", (3, 5, 7), (3, 5, 7)),
    case("enough for all cores", (130, 300), (130, 300)),
    case("a row", (6, 37), (37,)),
    case("a column", (6, 37), (6, 1)),
    case("both stretch", (4, 1, 9), (5, 1)),
    case("one number", (5, 33), ()),
    case("last axis of one", (40, 1), (40, 1)),
    moved("transposed", (33, 20), topi.transpose, np.transpose),
    moved(
        "axes permuted",
        (2, 3, 5, 18),
        lambda x: topi.transpose(x, (0, 3, 1, 2)),
        lambda x: x.transpose(0, 3, 1, 2),
    ),
    moved(
        "every other",
        (9, 40),
        lambda x: topi.strided_slice(x, [1, 3], [9, 35], [2, 2]),
        lambda x: x[1:9:2, 3:35:2],
    ),
    moved(
        "padded",
        (5, 19),
        lambda x: topi.nn.pad(x, (1, 2), (0, 3)),
        lambda x: np.pad(x, ((1, 0), (2, 3))),
    ),
    moved("reshaped", (6, 10), lambda x: topi.reshape(x, (4, 15)), lambda x: x.reshape(4, 15)),
    Case(
        "joined",
        ((4, 7), (4, 22)),
        lambda machine, a, b: topi.concatenate([a, b], 1),
        lambda a, b: np.concatenate([a, b], 1),
    ),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_elementwise_kernel_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "elementwise", epilogue=scaled_residual_relu(-1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_number_alone_is_computed(machine: Machine) -> None:
    check(case("", (), ()), machine, "elementwise")


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("shape", [(50,), (7, 33), (20, 40, 64)])
def test_two_results_of_one_shape_share_their_loops(
    shape: tuple[int, ...], machine: Machine
) -> None:
    x = te.placeholder(shape, name="x")
    doubled = te.compute(shape, lambda *i: x[i] * 2, name="double")
    square = te.compute(shape, lambda *i: x[i] * x[i], name="square")
    scheduled = families.schedule(te.create_prim_func([x, doubled, square]), machine)
    assert (scheduled.family, scheduled.note) == ("elementwise", "")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=host())
    values = testing.random_array(shape, "float32")
    results = [tvm.runtime.tensor(np.zeros(shape, "float32")) for _ in range(2)]
    library["main"](tvm.runtime.tensor(values), *results)
    np.testing.assert_array_equal(results[0].numpy(), 2 * values)
    np.testing.assert_array_equal(results[1].numpy(), values * values)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_results_that_do_not_read_one_another_are_computed_once_each(machine: Machine) -> None:
    x = te.placeholder((6, 3, 50), name="x")
    parts = [topi.strided_slice(x, [0, i, 0], [6, i + 1, 50]) for i in range(3)]
    scheduled = families.schedule(te.create_prim_func([x, *parts]), machine)
    assert (scheduled.family, scheduled.note) == ("elementwise", "")
    sch = s_tir.Schedule(families.as_module(scheduled.function))
    for block in blocks.outputs(sch):
        steps = product(blocks.extents(sch, sch.get_loops(block)))
        assert 6 * 50 <= steps < 6 * (50 + machine.lanes)


def test_a_result_that_reads_another_crosswise_is_no_elementwise_kernel() -> None:
    x = te.placeholder((40, 40), name="x")
    doubled = te.compute((40, 40), lambda *i: x[i] * 2, name="double")
    turned = te.compute((40, 40), lambda i, j: doubled[j, i] + 1, name="turned")
    scheduled = families.schedule(te.create_prim_func([x, doubled, turned]), MACHINES["8 lanes"])
    assert scheduled.note.startswith("elementwise: a result is read elsewhere")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=host())
    values = testing.random_array((40, 40), "float32")
    results = [tvm.runtime.tensor(np.zeros((40, 40), "float32")) for _ in range(2)]
    library["main"](tvm.runtime.tensor(values), *results)
    np.testing.assert_array_equal(results[1].numpy(), 2 * values.T + 1)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "float16", "float64", "bool"])
def test_other_element_types_are_scheduled_too(dtype: str) -> None:
    values = testing.random_array((9, 50), dtype)
    x = te.placeholder(values.shape, dtype, name="x")
    y = topi.transpose(x)
    scheduled = families.schedule(te.create_prim_func([x, y]), MACHINES["8 lanes"])
    assert scheduled.family == "elementwise"
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), target=host())
    out = tvm.runtime.tensor(np.zeros((50, 9), dtype))
    library["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), values.T)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_transposes_move_tiles(machine: Machine) -> None:
    x, y = (testing.random_array(shape, "float32") for shape in [(2, 33, 5, 70), (2, 70, 33, 5)])
    orders = ([0, 3, 1, 2], [0, 2, 3, 1], [3, 2, 1, 0], [0, 1, 3, 2])

    def graph(x: Any, y: Any) -> list[Any]:
        moved = [relax.op.permute_dims(x, order) for order in orders]
        return [*moved, relax.op.add(moved[0], y)]

    compiled = graphs.compiled(graphs.module(graph, x, y), target=graphs.on(machine))
    *found, total = graphs.run(compiled, x, y)
    for result, order in zip(found, orders, strict=True):
        np.testing.assert_array_equal(result, x.transpose(order))
    np.testing.assert_array_equal(total, x.transpose(orders[0]) + y)
    assert {kernel.family for kernel in compiled.kernels} <= {"elementwise", "joined"}
