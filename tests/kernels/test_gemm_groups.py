"""What one kernel may hold beside a product: more products, statistics, prepared rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from tests.kernels.contract import MACHINES, run
from tvmfuse import testing
from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, choices, families, gemm
from tvmfuse.kernels.rows import Rows, reduce, sums
from tvmfuse.kernels.tiling import Machine, gemm_tile
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

SIZES = {"whole tiles": (24, 96, 32), "ragged": (7, 33, 17), "one row": (1, 40, 64)}


@pytest.fixture(params=MACHINES.values(), ids=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


@pytest.fixture(params=SIZES.values(), ids=SIZES)
def sizes(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    found: tuple[int, int, int] = request.param
    return found


def operands(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    arrays = [testing.random_array(shape, "float32", seed=i) for i, shape in enumerate(shapes)]
    return arrays, [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]


def packed(weight: Any, m: int, machine: Machine) -> tuple[Any, Any]:
    panels = gemm.pack(weight, gemm_tile(m, weight.shape[1], machine).columns)
    return panels, te.placeholder(panels.shape, name="panels")


def test_a_gated_product_is_one_kernel(machine: Machine, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    (x, gate, up), (tx, *_) = operands((2, m, k), (k, n), (k, n))
    (gate_panels, tg), (up_panels, tu) = (packed(w, m, machine) for w in (gate, up))
    a, b = (gemm.emit_packed(tx, t, n, machine) for t in (tg, tu))

    def gated(*i: Any) -> Any:
        return approx.bind(a[i], lambda v: v * approx.sigmoid(v)) * b[i]

    out = te.compute((2, m, n), gated, name="gated")
    found = run([tx, tg, tu, out], [x, gate_panels, up_panels], machine, family="gemm")
    left, right = x.astype("f8") @ gate, x.astype("f8") @ up
    testing.assert_close(found, left * expit(left) * right)
    function = families.schedule(te.create_prim_func([tx, tg, tu, out]), machine).function
    assert is_one_kernel(kernel_facts(function))


def test_a_statistic_of_the_rows_scales_the_result(
    machine: Machine, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    (x, weight), (tx, _) = operands((m, k), (k, n))
    panels, tp = packed(weight, m, machine)
    rows = Rows((m, k), (1,))
    squares = reduce(
        lambda *i: approx.bind(tx[i], lambda v: v * v), rows, sums(), machine.lanes, name="squares"
    )
    product = gemm.emit_packed(tx, tp, n, machine)
    scale = tirx.const(1.0 / k, "float32")
    out = te.compute(
        (m, n), lambda i, j: product[i, j] / te.sqrt(squares[i, 0] * scale), name="scaled"
    )
    found = run([tx, tp, out], [x, panels], machine, family="gemm")
    exact = x.astype("f8")
    norm = np.sqrt((exact**2).mean(1, keepdims=True))
    testing.assert_close(found, exact @ weight / norm)
    function = families.schedule(te.create_prim_func([tx, tp, out]), machine).function
    assert is_one_kernel(kernel_facts(function))


def test_rows_are_prepared_before_they_are_multiplied(
    machine: Machine, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    (x, weight), (tx, _) = operands((2, m, k), (k, n))
    panels, tp = packed(weight, m, machine)
    rows, flat = gemm.rows_for(2 * m, panels.shape[2], machine), gemm.flattened(tx)
    tanh = gemm.prepared(flat, lambda *i: approx.bind(flat[i], approx.tanh), rows)
    out = gemm.emit_packed(tanh, tp, n, machine, lead=(2, m))
    found = run([tx, tp, out], [x, panels], machine, family="gemm")
    testing.assert_close(found, np.tanh(x.astype("f8")) @ weight)
    function = families.schedule(te.create_prim_func([tx, tp, out]), machine).function
    assert is_one_kernel(kernel_facts(function))


def test_every_decision_of_two_products_has_a_name_of_its_own(machine: Machine) -> None:
    x, panels = te.placeholder((12, 32)), te.placeholder((2, 32, machine.lanes))
    a, b = (gemm.emit_packed(x, panels, 2 * machine.lanes, machine) for _ in range(2))
    out = te.compute(a.shape, lambda *i: a[i] * b[i], name="out")
    recorder = choices.by_default()
    families.schedule(te.create_prim_func([x, panels, out]), machine, recorder.choose)
    assert len(recorder.taken) == len(recorder.decisions)


def test_products_of_different_tiles_are_refused() -> None:
    machine = MACHINES["8 lanes"]
    x = te.placeholder((12, 32), name="x")
    widths = (8, 16)
    panels = [te.placeholder((32 // w, 32, w), name=f"panels{w}") for w in widths]
    a, b = (gemm.emit_packed(x, p, 32, machine) for p in panels)
    out = te.compute(a.shape, lambda *i: a[i] * b[i], name="out")
    scheduled = families.schedule(te.create_prim_func([x, *panels, out]), machine)
    assert scheduled.note.startswith("gemm: products in one kernel need equal tiles")
