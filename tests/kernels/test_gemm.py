"""Matrix products agree with NumPy on any shape and any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, Epilogue, check, scaled_residual_relu
from tvmfuse._tvm import te
from tvmfuse.kernels import gemm
from tvmfuse.kernels.tiling import Machine, gemm_tile
from tvmfuse.passes.layout.forms import PLAIN, Panels

# rows, columns and length of the sums
PRODUCTS = {
    "whole tiles": (12, 64, 32),
    "ragged": (7, 33, 17),
    "many tasks": (50, 130, 96),
    "one row": (1, 100, 64),
    "one column": (9, 1, 20),
    "sums of one product": (5, 9, 1),
    "one number": (1, 1, 1),
    "one row and sums of one product": (1, 7, 1),
    "prime extents": (31, 37, 41),
}


def packed(name: str, rows: int, columns: int, length: int, *batch: int) -> Case:
    def emit(machine: Machine, x: Any, panels: Any) -> Any:
        return gemm.emit_packed(x, panels, columns, machine)

    def forms(machine: Machine) -> tuple[Any, ...]:
        return PLAIN, Panels(gemm_tile(rows, columns, machine).columns)

    return Case(name, ((*batch, rows, length), (length, columns)), emit, np.matmul, forms)


def batched(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
    def emit(machine: Machine, a: Any, b: Any) -> Any:
        return gemm.emit_batched(a, b, machine)

    return Case(name, (left, right), emit, np.matmul)


def transposed(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
    def emit(machine: Machine, a: Any, b: Any) -> Any:
        return gemm.emit_batched(a, b, machine, transposed=True)

    return Case(name, (left, right), emit, lambda a, b: a @ np.swapaxes(b, -1, -2))


CASES = [
    *(packed(f"packed, {name}", *extents) for name, extents in PRODUCTS.items()),
    packed("packed, two leading axes", 7, 20, 16, 2, 3),
    *(batched(f"plain, {name}", (m, k), (k, n)) for name, (m, n, k) in PRODUCTS.items()),
    batched("batched", (3, 7, 16), (3, 16, 20)),
    batched("left operand stretches", (1, 2, 7, 16), (4, 1, 16, 20)),
    batched("left operand lacks axes", (7, 16), (4, 16, 20)),
    batched("right operand lacks axes", (4, 7, 16), (16, 20)),
    transposed("transposed", (7, 16), (20, 16)),
    transposed("transposed, batched, ragged", (2, 3, 13, 10), (2, 3, 19, 10)),
    transposed("transposed, one row", (2, 1, 16), (2, 33, 16)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_product_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "gemm", epilogue=scaled_residual_relu(-1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
def test_product_alone_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "gemm")


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_product_stored_transposed_equals_numpy(machine: Machine) -> None:
    transpose = Epilogue(
        shapes=lambda _: (),
        emit=lambda x: te.compute((*x.shape[:-2], x.shape[-1], x.shape[-2]), _swapped(x)),
        reference=lambda x: np.swapaxes(x, -1, -2),
    )
    check(batched("", (3, 13, 16), (3, 16, 20)), machine, "gemm", epilogue=transpose)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_rows_of_all_batches_are_those_of_one_product(machine: Machine) -> None:
    """Also where batches are stored apart and each has a number of its own."""
    m, n, k = 5, 24, 16
    tile = gemm_tile(3 * m, n, machine)
    shift_and_turn = Epilogue(
        shapes=lambda _: ((3, 1, 1),),
        emit=lambda x, shift: te.compute(
            (n, 3, m), lambda j, b, i: x[b, i, j] + shift[b, 0, 0], name="turned"
        ),
        reference=lambda x, shift: (x + shift).transpose(2, 0, 1),
    )
    case = Case(
        "",
        ((3, m, k), (k, n)),
        lambda machine, x, panels: gemm.emit_packed(x, panels, n, machine),
        np.matmul,
        lambda _: (PLAIN, Panels(tile.columns)),
    )
    check(case, machine, "gemm", epilogue=shift_and_turn)


def _swapped(x: Any) -> Any:
    return lambda *i: x[(*i[:-2], i[-1], i[-2])]


def test_missing_columns_of_a_packed_weight_are_zero() -> None:
    panels = gemm.pack(np.ones((3, 5), "float32"), 4)
    assert panels.shape == (2, 3, 4)
    np.testing.assert_array_equal(panels[1], [[1, 0, 0, 0]] * 3)


def test_rows_of_a_tile_never_exceed_the_registers() -> None:
    for machine in MACHINES.values():
        for vectors in (1, 2, 3, 4):
            rows = gemm.rows_for(1000, vectors * machine.lanes, machine)
            assert rows <= machine.max_rows(vectors)
