"""Attention by an online softmax: scores, softmax and context of one tile at a time.

No score matrix lies in memory, and what a task holds does not grow with the keys. A task
owns a share of the query rows of one key head. It packs one block of keys and values, and
sweeps its rows over the block in register tiles as in :mod:`tvmfuse.kernels.gemm`; each row
carries its peak, its sum and its context from block to block, which are scaled down where
a higher peak turns up (Milakov and Gimelshein; FlashAttention). The sums stay one per vector
lane, and the division by them happens once, at the end.

Query heads that share one key head are rows of one matrix: nothing is repeated for them,
and a single query of a group of heads fills a register tile.

Blocks that a causal mask hides from every row of a tile are never computed; a mask that is
known only at run time is part of the score. A row that sees no key at all gives NaN as the
softmax in NumPy and ONNX Runtime does, or zeros where the model guards against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.blocks import Choose, Schedule
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine, ceil_div, gemm_tile, round_up

Tensor = Any  # te.Tensor

_FAMILY = "attention"
_BLOCK_KEYS = 512  # of one block: its keys and values, and the scores of a tile, fit L2
_TASK_ROWS = 2048  # whose contexts a task carries; packing anew for every so many is 1 %
_MIN_PARALLEL_STEPS = 200_000  # multiply-adds that are worth waking threads, see blocks.py
_UNROLL = 4
_LOWEST = -3.4028234663852886e38  # a peak to begin with: minus infinity would give inf - inf
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
        Return the element at (batch, head, row, column); keys and values at a key head.
        Scales and casts of the operands belong here: each element is read once per pass.
    score : callable
        Turns a product into a score, given its indices (batch, query head, query, key):
        scales it, adds the mask. Minus infinity hides a key.
    key_heads : int
        Heads of keys and values, a divisor of ``heads``; query head h reads key head
        ``h // (heads / key_heads)``. 0 stands for as many as there are query heads.
    causal : int or None
        Query i sees the keys up to ``i + causal`` only; None where it may see all of them.
        With past keys before the new ones, their number.
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
    key_heads: int = 0
    causal: int | None = None
    zero_masked_rows: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.key_heads if self.key_heads else 1


def emit(
    describe: Callable[..., Attention],
    operands: Sequence[Tensor],
    machine: Machine,
    *,
    order: tuple[int, ...] = (0, 1, 2, 3),
    rank: int = 4,
) -> Tensor:
    """Emit attention in float32.

    Parameters
    ----------
    describe : callable
        ``describe(*buffers)`` returns the attention over the memory of ``operands``.
    operands : Sequence[te.Tensor]
        What it reads.
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
    a = describe(*operands)
    extents = (a.batch, a.heads, a.queries, a.width)
    shape = [extents[axis] for axis in order][len(order) - rank :]

    def body(buffers: Sequence[Buffer], out: Buffer) -> Stmt:
        def result(*at: Expr) -> list[Expr]:
            return [at[axis] for axis in order][len(order) - rank :]

        return _Kernel(describe(*buffers), machine, out, result).tasks()

    return st.kernel(_FAMILY, shape, operands, body)


def schedule(_sch: Schedule, _machine: Machine, _choose: Choose) -> None:
    """Leave attention as it is: its tiles shape the program, so :func:`emit` chose them."""


@dataclass(frozen=True)
class _Tiles:
    """Sizes of the tiles.

    Parameters
    ----------
    rows : int
        Query rows of a register tile.
    key_columns, columns : int
        Columns of a register tile of scores and of contexts.
    keys : int
        Keys of one block, a multiple of ``key_columns``.
    per_head : int
        Register tiles of the rows of one key head.
    splits : int
        Tasks among which they are dealt out in turn.
    """

    rows: int
    key_columns: int
    columns: int
    keys: int
    per_head: int
    splits: int

    @property
    def per_task(self) -> int:
        return ceil_div(self.per_head, self.splits)


def _tiles(a: Attention, machine: Machine) -> _Tiles:
    n_rows = a.group * a.queries
    columns = gemm_tile(n_rows, a.width, machine).columns
    key_columns = gemm_tile(n_rows, a.keys, machine).columns
    limit = machine.max_rows(max(columns, key_columns) // machine.lanes)
    rows = ceil_div(n_rows, ceil_div(n_rows, limit))
    keys = round_up(min(a.keys, _BLOCK_KEYS), key_columns)
    per_head = ceil_div(n_rows, rows)
    heads = a.batch * (a.heads // a.group)
    splits = ceil_div(n_rows, _TASK_ROWS)
    while heads * splits < 4 * machine.cores and (heads * splits) % machine.cores:
        splits += 1
    return _Tiles(rows, key_columns, columns, keys, per_head, min(splits, per_head))


class _Kernel:
    """The statements of one attention."""

    def __init__(
        self,
        a: Attention,
        machine: Machine,
        out: Buffer,
        result: Callable[..., list[Expr]],
    ) -> None:
        self._a, self._lanes, self._out, self._result = a, machine.lanes, out, result
        self._t = t = _tiles(a, machine)
        self._rows = round_up(t.rows, self._lanes)  # of a tile's statistics, whole vectors
        self._keys_packed = st.scratch((t.keys // t.key_columns, a.depth, t.key_columns), "keys")
        panels = ceil_div(a.width, t.columns)
        self._values_packed = st.scratch((panels, t.keys, t.columns), "values")
        self._context = st.scratch((t.per_task, panels, t.rows, t.columns), "context")
        self._peak = st.scratch((t.per_task, self._rows), "peak")
        self._sums = st.scratch((t.per_task, t.rows, self._lanes), "sums")
        self._queries = st.scratch((t.rows, a.depth), "queries")
        self._scores = st.scratch((t.rows, t.keys), "scores")
        self._peaks = st.scratch((self._rows, self._lanes), "peaks")
        self._scale = st.scratch((self._rows,), "scale")

    def _vectors(self, extent: int, body: st.Body) -> Stmt:
        return st.vectors(extent, self._lanes, body)

    def tasks(self) -> Stmt:
        """Return the whole kernel."""
        a, t = self._a, self._t
        key_heads = a.heads // a.group
        steps = a.batch * a.heads * a.queries * a.keys * (a.depth + a.width)
        held = (
            self._keys_packed,
            self._values_packed,
            self._context,
            self._peak,
            self._sums,
            self._queries,
            self._scores,
            self._peaks,
            self._scale,
        )

        def task(i: Expr) -> Stmt:
            head = i // t.splits
            work = self._task(head // key_heads, head % key_heads, i % t.splits)
            return st.holding(held, work, family=_FAMILY)

        count = a.batch * key_heads * t.splits
        return st.tasks(count, task, is_parallel=count > 1 and steps >= _MIN_PARALLEL_STEPS)

    def _task(self, b: Expr, head: Expr, share: Expr) -> Stmt:
        t, a = self._t, self._a
        blocks = ceil_div(a.keys, t.keys)
        tiles = t.per_head // t.splits + tirx.Cast("int32", share < t.per_head % t.splits)

        def block(n: Expr) -> Stmt:
            first = n * t.keys

            def tile(i: Expr) -> Stmt:
                rows = _RowTile(a, b, head, (share + i * t.splits) * t.rows, t.rows)
                return self._tile(rows, i, first)

            pack = st.seq([self._pack_keys(b, head, first), self._pack_values(b, head, first)])
            return st.seq([pack, st.loop(tiles, tile)])

        def finish(i: Expr) -> Stmt:
            rows = _RowTile(a, b, head, (share + i * t.splits) * t.rows, t.rows)
            return self._finish(rows, i)

        return st.seq([self._begin(), st.loop(blocks, block), st.loop(tiles, finish)])

    def _begin(self) -> Stmt:
        t = self._t
        zero = _f(0.0)

        def begin(i: Expr) -> Stmt:
            def empty(row: Expr) -> Stmt:
                clear = lambda v: st.store(self._sums, zero, i, row, v)  # noqa: E731
                return self._vectors(self._lanes, clear)

            def context(p: Expr) -> Stmt:
                return st.loop(
                    t.rows,
                    lambda r: self._vectors(
                        t.columns, lambda v: st.store(self._context, zero, i, p, r, v)
                    ),
                )

            peak = self._vectors(self._rows, lambda r: st.store(self._peak, _f(_LOWEST), i, r))
            panels = int(self._context.shape[1])
            return st.seq([peak, st.loop(t.rows, empty), st.loop(panels, context)])

        return st.loop(t.per_task, begin)

    def _pack_keys(self, b: Expr, head: Expr, first: Expr) -> Stmt:
        a, columns = self._a, self._t.key_columns

        def column(p: Expr, c: Expr) -> Stmt:
            j = _at_most(first + p * columns + c, a.keys, a.keys % columns != 0)
            return st.loop(
                a.depth,
                lambda d: st.store(self._keys_packed, a.key(b, head, j, d), p, d, c),
            )

        panels = self._panels(first)
        return st.loop(panels, lambda p: st.loop(columns, lambda c: column(p, c)))

    def _pack_values(self, b: Expr, head: Expr, first: Expr) -> Stmt:
        a, columns = self._a, self._t.columns
        is_ragged = a.keys % self._t.key_columns != 0

        def element(p: Expr, j: Expr, v: Expr) -> Stmt:
            at = _at_most(first + j, a.keys, is_ragged)
            e = _at_most(p * columns + v, a.width, a.width % columns != 0)
            value = a.value(b, head, at, e)
            if is_ragged:  # what no row weighs must not turn its sum into NaN
                value = tirx.Select(first + j < a.keys, value, _f(0.0))
            return st.store(self._values_packed, value, p, j, v)

        rows = self._panels(first) * self._t.key_columns
        return st.loop(
            int(self._values_packed.shape[0]),
            lambda p: st.loop(rows, lambda j: self._vectors(columns, lambda v: element(p, j, v))),
        )

    def _panels(self, first: Expr) -> Expr:
        """Return how many panels of keys the block from ``first`` on has."""
        t, keys = self._t, self._a.keys
        if keys % t.keys == 0:
            return tirx.const(t.keys // t.key_columns, "int32")
        left = (keys - first + (t.key_columns - 1)) // t.key_columns
        return tirx.Min(tirx.const(t.keys // t.key_columns, "int32"), left)

    def _tile(self, rows: _RowTile, i: Expr, first: Expr) -> Stmt:
        """Return the work of one tile of rows on one block of keys."""
        a, t = self._a, self._t
        panels = self._panels(first)
        plain = panels  # those that need no look at single keys
        if a.keys % t.key_columns:
            plain = tirx.Min(plain, (a.keys - first) // t.key_columns)
        if a.causal is not None:
            seen = rows.last + a.causal + 1 - first
            panels = tirx.Min(panels, (seen + (t.key_columns - 1)) // t.key_columns)
            seen_by_all = tirx.Max(rows.first + a.causal + 1 - first, 0)
            plain = tirx.Min(plain, seen_by_all // t.key_columns)
        is_checked = a.causal is not None or a.keys % t.key_columns != 0
        scores = [st.loop(plain, lambda p: self._products(rows, first, p, is_checked=False))]
        if is_checked:
            scores.append(
                st.loop(
                    panels - plain,
                    lambda p: self._products(rows, first, plain + p, is_checked=True),
                )
            )
        peaks = st.loop(
            self._rows,
            lambda r: self._vectors(
                self._lanes, lambda v: st.store(self._peaks, _f(_LOWEST), r, v)
            ),
        )
        work = [self._pack_queries(rows), peaks, *scores, self._raise_peaks(i)]
        work += [self._powers(i, panels), self._contexts(i, panels)]
        return st.when(panels > 0, st.seq(work))

    def _pack_queries(self, rows: _RowTile) -> Stmt:
        a = self._a

        def row(r: Expr) -> Stmt:
            head, i = rows.place(r)
            return st.loop(
                a.depth,
                lambda d: st.store(self._queries, a.query(rows.b, head, i, d), r, d),
            )

        return st.loop(self._t.rows, row)

    def _products(self, rows: _RowTile, first: Expr, p: Expr, *, is_checked: bool) -> Stmt:
        """Return the scores of one panel of keys."""
        a, t = self._a, self._t
        sums = st.registers(t.rows, t.key_columns, "products")
        unroll = math.gcd(_UNROLL, a.depth)

        def step(d: Expr) -> Stmt:
            return self._multiply_add(
                sums,
                lambda r: self._queries[r, d],
                lambda v: self._keys_packed[p, d, v],
            )

        def keep(r: Expr) -> Stmt:
            head, i = rows.place(r)

            def score(v: Expr) -> Stmt:
                j = first + p * t.key_columns + v
                at = _at_most(j, a.keys, is_checked and a.keys % t.key_columns != 0)
                value = a.score(sums[int(r)][v], rows.b, head, i, at)
                limit = a.keys if a.causal is None else _least(i + a.causal + 1, a.keys)
                if is_checked:
                    value = tirx.Select(j < limit, value, _f(_MINUS_INFINITY))
                return st.store(self._scores, value, r, p * t.key_columns + v)

            def peak(u: Expr) -> Stmt:
                at = p * t.key_columns + u * self._lanes
                return self._vectors(
                    self._lanes,
                    lambda v: st.store(
                        self._peaks,
                        tirx.Max(self._peaks[r, v], self._scores[r, at + v]),
                        r,
                        v,
                    ),
                )

            return st.seq(
                [
                    self._vectors(t.key_columns, score),
                    st.unrolled(t.key_columns // self._lanes, peak),
                ]
            )

        zero = st.unrolled(
            t.rows,
            lambda r: self._vectors(t.key_columns, lambda v: st.store(sums[int(r)], _f(0.0), v)),
        )
        steps = st.loop(
            a.depth // unroll,
            lambda d: st.unrolled(unroll, lambda u: step(d * unroll + u)),
        )
        return st.holding(sums, st.seq([zero, steps, st.unrolled(t.rows, keep)]))

    def _multiply_add(
        self, sums: Sequence[Buffer], left: Callable[[Expr], Expr], right: Callable[[Expr], Expr]
    ) -> Stmt:
        def row(r: Expr) -> Stmt:
            own = sums[int(r)]
            added = lambda v: st.store(own, own[v] + left(r) * right(v), v)  # noqa: E731
            return self._vectors(int(own.shape[0]), added)

        return st.unrolled(len(sums), row)

    def _raise_peaks(self, i: Expr) -> Stmt:
        """Return the new peak of every row, and what scales down what is there."""
        widths = [self._lanes >> n for n in range(1, self._lanes.bit_length())]

        def half(r: Expr, width: int) -> Stmt:
            def larger(v: Expr) -> Stmt:
                both = tirx.Max(self._peaks[r, v], self._peaks[r, v + width])
                return st.store(self._peaks, both, r, v)

            return self._vectors(width, larger)

        def fold(r: Expr) -> Stmt:
            return st.seq([half(r, width) for width in widths])

        def scale(r: Expr) -> Stmt:
            return st.store(self._scale, tirx.Max(self._peak[i, r], self._peaks[r, 0]), r)

        def lower(u: Expr) -> Stmt:
            at = u * self._lanes
            old = self._vectors(
                self._lanes,
                lambda v: st.store(
                    self._peaks, approx.exp(self._peak[i, at + v] - self._scale[at + v]), 0, v
                ),
            )
            new = self._vectors(
                self._lanes, lambda v: st.store(self._peak, self._scale[at + v], i, at + v)
            )
            both = self._vectors(
                self._lanes, lambda v: st.store(self._scale, self._peaks[0, v], at + v)
            )
            return st.seq([old, new, both])

        vectors = self._rows // self._lanes
        return st.seq(
            [
                st.loop(self._rows, lambda r: st.seq([fold(r), scale(r)])),
                st.unrolled(vectors, lower),
            ]
        )

    def _powers(self, i: Expr, panels: Expr) -> Stmt:
        """Return the exponentials of the scores, and their sums."""
        t = self._t
        (sums,) = st.registers(1, t.key_columns, "powers")
        vectors = t.key_columns // self._lanes

        def row(r: Expr) -> Stmt:
            def start(u: Expr) -> Stmt:
                def value(v: Expr) -> Expr:
                    carried = self._sums[i, r, v] * self._scale[r]
                    return carried if int(u) == 0 else _f(0.0)

                return self._vectors(
                    self._lanes, lambda v: st.store(sums, value(v), u * self._lanes + v)
                )

            def power(p: Expr) -> Stmt:
                at = p * t.key_columns
                raised = self._vectors(
                    t.key_columns,
                    lambda v: st.store(
                        self._scores,
                        approx.exp_below(self._scores[r, at + v] - self._peak[i, r]),
                        r,
                        at + v,
                    ),
                )
                added = self._vectors(
                    t.key_columns,
                    lambda v: st.store(sums, sums[v] + self._scores[r, at + v], v),
                )
                return st.seq([raised, added])

            def total(v: Expr) -> Stmt:
                value = sums[v]
                for u in range(1, vectors):
                    value = value + sums[v + u * self._lanes]
                return st.store(self._sums, value, i, r, v)

            body = [st.unrolled(vectors, start), st.loop(panels, power)]
            return st.holding([sums], st.seq([*body, self._vectors(self._lanes, total)]))

        return st.loop(t.rows, row)

    def _contexts(self, i: Expr, panels: Expr) -> Stmt:
        """Return what the values of the block add to the contexts of a tile."""
        t = self._t
        unroll = math.gcd(_UNROLL, t.key_columns)

        def panel(p: Expr) -> Stmt:
            sums = st.registers(t.rows, t.columns, "weighted")

            def carry(r: Expr) -> Stmt:
                return self._vectors(
                    t.columns,
                    lambda v: st.store(sums[int(r)], self._context[i, p, r, v] * self._scale[r], v),
                )

            def step(j: Expr) -> Stmt:
                return self._multiply_add(
                    sums,
                    lambda r: self._scores[r, j],
                    lambda v: self._values_packed[p, j, v],
                )

            def keep(r: Expr) -> Stmt:
                return self._vectors(
                    t.columns, lambda v: st.store(self._context, sums[int(r)][v], i, p, r, v)
                )

            steps = st.loop(
                panels * (t.key_columns // unroll),
                lambda j: st.unrolled(unroll, lambda u: step(j * unroll + u)),
            )
            work = [st.unrolled(t.rows, carry), steps, st.unrolled(t.rows, keep)]
            return st.holding(sums, st.seq(work))

        return st.loop(int(self._context.shape[1]), panel)

    def _finish(self, rows: _RowTile, i: Expr) -> Stmt:
        """Return the division by the sums, and the store of the result."""
        a, t = self._a, self._t
        (total,) = st.registers(1, 1, "total")

        def row(r: Expr) -> Stmt:
            head, query = rows.place(r)
            add = [st.store(total, self._sums[i, r, 0], 0)]
            add += [
                st.store(total, total[0] + self._sums[i, r, v], 0) for v in range(1, self._lanes)
            ]
            inverse = _f(1.0) / total[0]
            if a.zero_masked_rows:
                inverse = tirx.Select(total[0] > _f(0.0), inverse, total[0])

            def element(p: Expr, v: Expr) -> Stmt:
                at = self._result(rows.b, head, query, p * t.columns + v)
                return st.store(self._out, self._context[i, p, r, v] * total[0], *at)

            def chunk(p: Expr, width: int) -> Stmt:
                return self._vectors(width, lambda v: element(p, v))

            panels, rest = divmod(a.width, t.columns)
            stores = [st.loop(panels, lambda p: chunk(p, t.columns))] if panels else []
            if rest:
                stores.append(chunk(tirx.const(panels, "int32"), rest))
            return st.seq([*add, st.store(total, inverse, 0), *stores])

        return st.holding(
            [total], st.loop(t.rows, lambda r: st.when(rows.first_row + r < rows.count, row(r)))
        )


class _RowTile:
    """Neighbouring query rows of one key head: query head by query head, query by query."""

    def __init__(self, a: Attention, b: Expr, key_head: Expr, first_row: Expr, rows: int) -> None:
        self.b, self.first_row, self.count = b, first_row, a.group * a.queries
        self._a, self._key_head, self._rows = a, key_head, rows

    def place(self, r: Expr) -> tuple[Expr, Expr]:
        """Return query head and query of row ``r``; rows too many repeat the last one."""
        row = _at_most(self.first_row + r, self.count, self.count % self._rows != 0)
        if self._a.group == 1:
            return self._key_head, row
        return self._key_head * self._a.group + row // self._a.queries, row % self._a.queries

    @property
    def first(self) -> Expr:
        """The first query of the tile; query 0 where it begins within one head's queries."""
        return self._bounds()[0]

    @property
    def last(self) -> Expr:
        """The last query of the tile."""
        return self._bounds()[1]

    def _bounds(self) -> tuple[Expr, Expr]:
        queries = self._a.queries
        if self._a.group == 1:
            return self.first_row, _least(self.first_row + (self._rows - 1), queries - 1)
        first = self.first_row % queries
        is_whole = first + self._rows <= queries  # all rows are of one head
        zero = tirx.const(0, "int32")
        last = tirx.const(queries - 1, "int32")
        return (
            tirx.Select(is_whole, first, zero),
            tirx.Select(is_whole, first + (self._rows - 1), last),
        )


def _at_most(index: Expr, extent: int, is_needed: bool) -> Expr:  # noqa: FBT001
    return tirx.Min(index, tirx.const(extent - 1, "int32")) if is_needed else index


def _least(a: Expr, b: int) -> Expr:
    return tirx.Min(a, tirx.const(b, "int32"))


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")
