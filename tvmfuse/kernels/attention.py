"""Attention by query tiles: scores, softmax and context of a few rows at a time.

The score matrix never lies in memory. A task owns one head (or a tile of its
queries), packs the head's keys and values once, and keeps the scores of one query
tile in scratch: as many rows as the tile, as many columns as there are keys. Both
products are register tiles as in :mod:`tvmfuse.kernels.gemm`. The division by the
row sums happens once, on the context, as in FlashAttention; PyTorch's CPU kernel
tiles queries in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.gemm import register_tile
from tvmfuse.kernels.rows import Rows, maximum, reduce
from tvmfuse.kernels.steps import vectorize_step
from tvmfuse.kernels.tiling import Machine, ceil_div, gemm_tile, product, round_up

Tensor = Any  # te.Tensor
Expr = Any  # tirx.PrimExpr

_QUERY_ROWS = 48  # rows of one query tile, about: scores of a long row still fit L2
_MINUS_INFINITY = -math.inf


@dataclass(frozen=True)
class Attention:
    """What is attended to, as element access in the order batch, head, row, column.

    Parameters
    ----------
    batch, heads, queries, keys : int
        Extents.
    depth, width : int
        Length of a query and a key, and of a value.
    query, key, value : callable
        Return the element at (batch, head, row, column).
    score : callable
        Turns a product into a score, given its indices: scales it, adds the mask.
    zero_masked_rows : bool
        Whether a row whose every score is minus infinity gives zeros; else NaN.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    query: Callable[..., Expr]
    key: Callable[..., Expr]
    value: Callable[..., Expr]
    score: Callable[..., Expr]
    zero_masked_rows: bool = False


def emit(
    a: Attention, machine: Machine, *, order: tuple[int, ...] = (0, 1, 2, 3), rank: int = 4
) -> Tensor:
    """Emit attention in float32.

    Parameters
    ----------
    a : Attention
        The operands.
    machine : Machine
        The device.
    order : tuple of int
        Axes of the result: which of batch, head, row, column comes where.
    rank : int
        Rank of the result; one of rank 3 has no batch, whose extent is 1.

    Returns
    -------
    te.Tensor
        The context, its axes in ``order``.
    """
    columns = gemm_tile(a.queries, a.width, machine).columns
    key_columns = gemm_tile(a.queries, a.keys, machine).columns
    rows = min(machine.max_rows(max(columns, key_columns) // machine.lanes), a.queries)
    tile = rows * max(1, min(_QUERY_ROWS, a.queries) // rows)
    padded_queries, padded_keys = round_up(a.queries, tile), round_up(a.keys, key_columns)
    sizes = [tile, rows, key_columns, columns]
    powers, total = _softmax(_scores(a, padded_queries, padded_keys, sizes), a, machine)
    panels = te.compute(
        (a.batch, a.heads, ceil_div(a.width, columns), a.keys, columns),
        lambda b, h, p, j, c: a.value(b, h, j, te.min(p * columns + c, a.width - 1)),
        name="values",
        attrs=_attrs("values", sizes),
    )
    j = te.reduce_axis((0, a.keys), "j")
    context = te.compute(
        (a.batch, a.heads, padded_queries, round_up(a.width, columns)),
        lambda b, h, i, e: te.sum(
            powers[b, h, i, j] * panels[b, h, e // columns, j, e % columns], axis=j
        ),
        name="context",
        attrs=_attrs("context", sizes),
    )
    shape = (a.batch, a.heads, a.queries, a.width)

    def result(*index: Any) -> Expr:
        full = (0,) * (len(order) - rank) + index
        b, h, i, e = (full[order.index(axis)] for axis in range(4))
        return context[b, h, i, e] * total[b, h, i, 0]

    stored = tuple(shape[axis] for axis in order)[len(order) - rank :]
    return te.compute(stored, result, name="attention")


def _scores(a: Attention, padded_queries: int, padded_keys: int, sizes: list[int]) -> Tensor:
    columns = sizes[2]
    panels = te.compute(
        (a.batch, a.heads, padded_keys // columns, a.depth, columns),
        lambda b, h, p, d, c: a.key(b, h, te.min(p * columns + c, a.keys - 1), d),
        name="keys",
        attrs=_attrs("keys", sizes),
    )
    d = te.reduce_axis((0, a.depth), "d")
    products = te.compute(
        (a.batch, a.heads, padded_queries, padded_keys),
        lambda b, h, i, j: te.sum(
            a.query(b, h, te.min(i, a.queries - 1), d) * panels[b, h, j // columns, d, j % columns],
            axis=d,
        ),
        name="products",
        attrs=_attrs("products", sizes),
    )

    def score(b: Any, h: Any, i: Any, j: Any) -> Expr:
        at = (b, h, te.min(i, a.queries - 1), te.min(j, a.keys - 1))
        value = a.score(products[b, h, i, j], *at)
        if padded_keys == a.keys:
            return value
        return tirx.Select(j < a.keys, value, tirx.const(_MINUS_INFINITY, "float32"))

    return te.compute(products.shape, score, name="scores", attrs=_attrs("scores", sizes))


def _softmax(scores: Tensor, a: Attention, machine: Machine) -> tuple[Tensor, Tensor]:
    """Return the exponentials of the scores, and one over their sum for each row."""
    rows = Rows(tuple(int(d) for d in scores.shape), (3,))
    peak = reduce(lambda *i: scores[i], rows, maximum(), machine.lanes, name="peak")
    lowest = tirx.const(_MINUS_INFINITY, "float32")
    zero, one = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")

    def shift(b: Any, h: Any, i: Any) -> Expr:
        top = peak[b, h, i, 0]
        return tirx.Select(top > lowest, top, zero) if a.zero_masked_rows else top

    powers = te.compute(
        rows.shape,
        lambda b, h, i, j: approx.exp(scores[b, h, i, j] - shift(b, h, i)),
        name="powers",
        attrs={FAMILY: "attention", ROLE: "row"},
    )
    total = reduce(lambda *i: powers[i], rows, te.sum, machine.lanes, name="total")

    def inverse(*i: Any) -> Expr:
        if a.zero_masked_rows:
            return tirx.Select(total[i] > zero, one / total[i], total[i])
        return one / total[i]

    attrs = {FAMILY: "attention", ROLE: "row"}
    return powers, te.compute(rows.kept, inverse, name="inverse", attrs=attrs)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule attention.

    Raises
    ------
    LoweringError
        The kernel holds more than attention.
    """
    for block in blocks.children(sch):
        is_output = any(blocks.same(sch, block, out) for out in blocks.outputs(sch))
        if not is_output and not blocks.role(sch, block) and not blocks.is_reduction(sch, block):
            sch.compute_inline(block)
    context, products = blocks.find(sch, "context"), blocks.find(sch, "products")
    if context is None or products is None:
        raise LoweringError("attention needs two products")
    tile, rows, key_columns, columns = blocks.tile(sch, context)
    out = blocks.sole_output(sch)
    *heads, i, e = blocks.loops_as_read(sch, out, context)
    n_heads = product(blocks.extents(sch, heads))
    i_task, i_in = blocks.split(sch, i, [None, tile])
    sch.reorder(*heads, i_task, i_in, e)
    below = _tile_product(sch, out, i_in, e, rows=rows, columns=columns, machine=machine)
    sch.compute_at(context, below, preserve_unit_loops=True)
    is_whole = n_heads % machine.cores == 0 or n_heads >= 4 * machine.cores
    if choose("whole_heads", (True, False), default=is_whole):
        pack_at = blocks.parallel(sch, heads, products)
    else:
        pack_at = i_task = blocks.parallel(sch, [*heads, i_task], products)
    scores = blocks.find(sch, "scores")
    steps = [s for s in blocks.children(sch) if _is_row_step(sch, s, out)]
    for step in [*reversed(steps), scores]:
        sch.compute_at(step, i_task, preserve_unit_loops=True)
    *_, s_i, s_j = sch.get_loops(scores)
    below_scores = _tile_product(
        sch, scores, s_i, s_j, rows=rows, columns=key_columns, machine=machine
    )
    sch.compute_at(products, below_scores, preserve_unit_loops=True)
    for name in ("keys", "values"):
        packing = blocks.find(sch, name)
        sch.compute_at(packing, pack_at, preserve_unit_loops=True)
        blocks.vectorize(sch, sch.get_loops(packing)[-1], machine.lanes)
    for step in steps:
        vectorize_step(sch, step, i_task, machine.lanes)
    for anchor, loop in ((context, below), (products, below_scores)):
        role = blocks.role(sch, anchor)
        register_tile(sch, anchor, loop, machine, choose, name=f"unroll_{role}")


def _tile_product(
    sch: Schedule, block: Block, i: Loop, j: Loop, *, rows: int, columns: int, machine: Machine
) -> Loop:
    """Tile the loops of what reads a product; return the loop below which it is computed."""
    i_tile, i_in = blocks.split(sch, i, [None, rows])
    j_tile, j_in = blocks.split(sch, j, [None, columns])
    sch.reorder(j_tile, i_tile, i_in, j_in)
    sch.unroll(i_in)
    blocks.vectorize(sch, j_in, machine.lanes)
    return i_tile


def _is_row_step(sch: Schedule, block: Block, out: Block) -> bool:
    role = blocks.role(sch, block)
    return role not in ("keys", "values", "products", "scores", "context") and not blocks.same(
        sch, block, out
    )


def _attrs(role: str, sizes: list[int]) -> dict[str, Any]:
    return {FAMILY: "attention", ROLE: role, TILE: sizes}
