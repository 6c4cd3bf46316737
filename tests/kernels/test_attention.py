"""The attention kernel: right for any extents, masks and layouts, and without a score matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, run
from tvmfuse import testing
from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import attention, families
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.verify import kernel_facts

INFINITY = np.inf


def kernel(machine: Machine, extents: tuple[int, ...], *, zero_masked_rows: bool) -> list[Any]:
    """Return the operands (batch, row, head, column), an additive mask, and the context."""
    batch, heads, queries, keys, depth, width = extents
    shapes = {
        "q": (batch, queries, heads, depth),
        "k": (batch, keys, heads, depth),
        "v": (batch, keys, heads, width),
        "mask": (batch, 1, queries, keys),
    }
    q, k, v, mask = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    scale = tirx.const(depth**-0.5, "float32")
    spec = attention.Attention(
        *extents,
        query=lambda b, h, i, d: q[b, i, h, d],
        key=lambda b, h, j, d: k[b, j, h, d],
        value=lambda b, h, j, e: v[b, j, h, e],
        score=lambda x, b, h, i, j: x * scale + mask[b, 0, i, j],
        zero_masked_rows=zero_masked_rows,
    )
    return [q, k, v, mask, attention.emit(spec, machine, order=(0, 2, 1, 3))]


def reference(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = np.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5 + mask
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhij,bjhe->bihe", powers / powers.sum(-1, keepdims=True), v)


def operands(tensors: list[Any], *, magnitude: float = 1.0) -> list[Any]:
    shapes = [tuple(int(d) for d in tensor.shape) for tensor in tensors[:-1]]
    arrays = [testing.random_array(s, "float32", seed=i) for i, s in enumerate(shapes)]
    arrays[0] = arrays[0] * np.float32(magnitude)
    return arrays


EXTENTS = {
    "twelve heads": (1, 12, 24, 24, 16, 16),
    "two batches, ragged everywhere": (2, 3, 50, 77, 10, 13),
    "one query": (1, 4, 1, 33, 8, 8),
    "one of everything": (1, 1, 1, 1, 1, 1),
    "more queries than one tile": (1, 2, 131, 9, 4, 40),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
def test_the_context_is_right(extents: tuple[int, ...], machine: Machine) -> None:
    tensors = kernel(machine, extents, zero_masked_rows=False)
    arrays = operands(tensors)
    found = run(tensors, arrays, machine, family="attention")
    testing.assert_close(found, reference(*(a.astype(np.float64) for a in arrays)))


def test_large_scores_do_not_overflow() -> None:
    machine = MACHINES["8 lanes"]
    tensors = kernel(machine, (1, 2, 9, 20, 8, 8), zero_masked_rows=False)
    arrays = operands(tensors, magnitude=300.0)
    found = run(tensors, arrays, machine, family="attention")
    testing.assert_close(found, reference(*(a.astype(np.float64) for a in arrays)))


@pytest.mark.parametrize("zero_masked_rows", [True, False])
def test_a_row_that_is_masked_throughout_is_zero_or_nan_and_harms_no_other(
    zero_masked_rows: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    machine = MACHINES["8 lanes"]
    tensors = kernel(machine, (1, 2, 9, 20, 8, 8), zero_masked_rows=zero_masked_rows)
    arrays = operands(tensors)
    arrays[3][0, 0, 1] = -INFINITY  # one row wholly masked
    arrays[3][0, 0, 2, :19] = -INFINITY  # one row that sees one key
    found = run(tensors, arrays, machine, family="attention")
    expected = reference(*(a.astype(np.float64) for a in arrays))
    assert np.isnan(expected[0, 1]).all()
    if zero_masked_rows:
        expected = np.nan_to_num(expected)
    testing.assert_close(found, expected)


def test_no_score_matrix_lies_in_memory() -> None:
    machine = MACHINES["16 lanes"]
    queries = keys = 1024
    tensors = kernel(machine, (1, 2, queries, keys, 64, 64), zero_masked_rows=False)
    scheduled = families.schedule(te.create_prim_func(tensors), machine)
    facts = kernel_facts(scheduled.function)
    assert facts.parallel_regions == 1
    assert facts.scratch_bytes < 4 * queries * keys / 2


def test_a_long_sequence_needs_little_more_memory_than_its_operands() -> None:
    machine = MACHINES["16 lanes"]
    length = 32768
    tensors = kernel(machine, (1, 12, length, length, 64, 64), zero_masked_rows=False)
    scheduled = families.schedule(te.create_prim_func(tensors), machine)
    scratch = kernel_facts(scheduled.function).scratch_bytes
    assert scratch * machine.cores < 64 << 20
