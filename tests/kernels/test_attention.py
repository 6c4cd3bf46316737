"""The attention kernel: right for any extents, heads, masks and layouts, in little memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, run
from tvmfuse import testing
from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import attention, families
from tvmfuse.kernels.attention_parts import Attention
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

INFINITY = np.inf
MACHINE = MACHINES["8 lanes"]


def kernel(
    machine: Machine,
    extents: tuple[int, ...],
    *,
    zero_masked_rows: bool = False,
    key_heads: int = 0,
    causal: int | None = None,
) -> list[Any]:
    """Return the operands (batch, row, head, column), an additive mask, and the context."""
    batch, heads, queries, keys, depth, width = extents
    shapes = {
        "q": (batch, queries, heads, depth),
        "k": (batch, keys, key_heads or heads, depth),
        "v": (batch, keys, key_heads or heads, width),
        "mask": (batch, 1, queries, keys),
    }
    operands = [te.placeholder(shape, name=name) for name, shape in shapes.items()]
    scale = tirx.const(depth**-0.5, "float32")

    def describe(q: Any, k: Any, v: Any, mask: Any) -> Attention:
        return Attention(
            *extents,
            query=lambda b, h, i, d: q[b, i, h, d],
            key=lambda b, h, j, d: k[b, j, h, d],
            value=lambda b, h, j, e: v[b, j, h, e],
            score=lambda x, b, h, i, j: x * scale + mask[b, 0, i, j],
            key_heads=key_heads,
            causal=causal,
            zero_masked_rows=zero_masked_rows,
        )

    return [*operands, attention.emit(describe, operands, machine, order=(0, 2, 1, 3))]


def reference(q: Any, k: Any, v: Any, mask: Any, *, causal: int | None = None) -> Any:
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    with np.errstate(invalid="ignore"):
        scores = np.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5 + mask
        if causal is not None:
            rows, columns = np.indices(scores.shape[2:])
            scores = np.where(columns <= rows + causal, scores, -INFINITY)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhij,bjhe->bihe", powers / powers.sum(-1, keepdims=True), v)


def operands(tensors: list[Any], *, magnitude: float = 1.0) -> list[Any]:
    shapes = [tuple(int(d) for d in tensor.shape) for tensor in tensors[:-1]]
    arrays = [testing.random_array(s, "float32", seed=i) for i, s in enumerate(shapes)]
    arrays[0] = arrays[0] * np.float32(magnitude)
    return arrays


def check(tensors: list[Any], arrays: list[Any], machine: Machine, **options: Any) -> None:
    found = run(tensors, arrays, machine, family="attention")
    expected = reference(*(a.astype(np.float64) for a in arrays), **options)
    testing.assert_close(found, expected)


EXTENTS = {
    "twelve heads": (1, 12, 24, 24, 16, 16),
    "two batches, ragged everywhere": (2, 3, 50, 77, 10, 13),
    "one query": (1, 4, 1, 33, 8, 8),
    "one of everything": (1, 1, 1, 1, 1, 1),
    "more queries than one tile": (1, 2, 131, 9, 4, 40),
    "several blocks of keys, the last one ragged": (1, 1, 20, 1061, 4, 7),
    "one query, keys of one head split among tasks": (1, 1, 1, 1061, 64, 48),
    "few queries, keys of three heads split among tasks": (1, 3, 5, 515, 20, 13),
    "as many rows as are few": (1, 2, 8, 300, 32, 80),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("extents", EXTENTS.values(), ids=EXTENTS)
def test_the_context_is_right(extents: tuple[int, ...], machine: Machine) -> None:
    tensors = kernel(machine, extents)
    check(tensors, operands(tensors), machine)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("key_heads", "queries"), [(1, 1), (2, 5), (2, 40)])
def test_query_heads_share_key_heads(key_heads: int, queries: int, machine: Machine) -> None:
    tensors = kernel(machine, (2, 6, queries, 45, 8, 11), key_heads=key_heads, causal=45 - queries)
    check(tensors, operands(tensors), machine, causal=45 - queries)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (33, 700), (700, 33), (3, 700), (7, 9)])
def test_a_causal_mask_hides_later_keys(queries: int, keys: int, machine: Machine) -> None:
    offset = max(keys - queries, 0)
    tensors = kernel(machine, (1, 2, queries, keys, 8, 8), causal=offset)
    check(tensors, operands(tensors), machine, causal=offset)


def test_keys_that_nobody_sees_are_never_read() -> None:
    queries = keys = 1100
    tensors = kernel(MACHINE, (1, 1, queries, keys, 4, 4), causal=-600)
    arrays = operands(tensors)
    arrays[1][0, 600:] = np.nan  # key 500 is the last one that the last query sees
    found = run(tensors, arrays, MACHINE, family="attention")
    assert np.isnan(found[0, :600]).all(), "rows that see no key"
    assert not np.isnan(found[0, 600:]).any()


@pytest.mark.parametrize("queries", [1, 40])
def test_a_sum_over_no_keys_is_zero(queries: int) -> None:
    tensors = kernel(MACHINE, (1, 2, queries, 0, 8, 8))
    found = run(tensors, operands(tensors), MACHINE, family="attention")
    np.testing.assert_array_equal(found, np.zeros((1, queries, 2, 8)))


def test_large_scores_do_not_overflow() -> None:
    tensors = kernel(MACHINE, (1, 2, 9, 20, 8, 8))
    check(tensors, operands(tensors, magnitude=300.0), MACHINE)


@pytest.mark.parametrize("hidden", [-INFINITY, -3.4028235e38], ids=["infinite", "finite"])
@pytest.mark.parametrize("keys", [20, 1061])
@pytest.mark.parametrize(("heads", "queries"), [(2, 9), (2, 4), (1, 4)])
def test_a_mask_hides_keys_of_any_block(heads: int, queries: int, keys: int, hidden: float) -> None:
    tensors = kernel(MACHINE, (1, heads, queries, keys, 8, 8))
    arrays = operands(tensors)
    arrays[3][0, 0, 0] = 0
    arrays[3][0, 0, 1, : keys - 1] = hidden  # one row that sees the last key
    arrays[3][0, 0, 2, 1:] = hidden  # one row that sees the first key
    arrays[3][0, 0, 3] = hidden  # one row that sees none
    check(tensors, arrays, MACHINE)


@pytest.mark.parametrize("zero_masked_rows", [True, False])
@pytest.mark.parametrize("extents", [(2, 9, 20), (2, 4, 20), (1, 4, 600)])
def test_a_row_that_is_masked_throughout_is_zero_or_nan_and_harms_no_other(
    extents: tuple[int, ...],
    zero_masked_rows: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    tensors = kernel(MACHINE, (1, *extents, 8, 8), zero_masked_rows=zero_masked_rows)
    arrays = operands(tensors)
    arrays[3][0, 0, 1] = -INFINITY  # one row wholly masked
    arrays[3][0, 0, 2, : extents[2] - 1] = -INFINITY  # one row that sees one key
    found = run(tensors, arrays, MACHINE, family="attention")
    expected = reference(*(a.astype(np.float64) for a in arrays))
    assert np.isnan(expected[0, 1]).all()
    if zero_masked_rows:
        expected = np.nan_to_num(expected)
    testing.assert_close(found, expected)


@pytest.mark.parametrize("value", [np.nan, INFINITY, -INFINITY])
@pytest.mark.parametrize("operand", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize(("heads", "queries"), [(2, 9), (2, 4), (1, 4)])
def test_special_values_spoil_what_they_spoil_in_numpy(
    heads: int, queries: int, operand: int, value: float
) -> None:
    tensors = kernel(MACHINE, (1, heads, queries, 600, 8, 8))
    arrays = operands(tensors)
    arrays[operand][0, 3, heads - 1, 2] = value
    with np.errstate(over="ignore"):
        check(tensors, arrays, MACHINE)


def test_it_is_one_kernel_whose_memory_does_not_grow_with_the_keys() -> None:
    machine = MACHINES["16 lanes"]
    sizes = []
    for length in (4096, 32768):
        tensors = kernel(machine, (1, 12, length, length, 64, 64))
        facts = kernel_facts(families.schedule(te.create_prim_func(tensors), machine).function)
        assert is_one_kernel(facts)
        sizes.append(facts.task_bytes)
    assert sizes[0] == sizes[1] < 2 << 20


def test_keys_of_one_head_are_split_in_one_parallel_region_with_little_memory() -> None:
    machine = MACHINES["16 lanes"]
    tensors = kernel(machine, (1, 1, 1, 4096, 64, 64))
    facts = kernel_facts(families.schedule(te.create_prim_func(tensors), machine).function)
    assert facts.parallel_regions == 1
    assert 0 < facts.scratch_bytes <= 1024
