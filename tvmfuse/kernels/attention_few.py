"""Attention of few query rows: keys and values are read once, as they lie.

A language model that adds one token reads its whole cache of keys and values for it, and
memory is the limit: packing them would write and read again what is needed just once. A
score is a dot product along the lanes of one key, and a context adds up whole rows of
values. Where there are fewer heads than cores, a head's keys are split among tasks, each of
which keeps a peak, a sum and a context of its own; these are merged at the end (the split
is that of Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import tirx, tvm
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_few_steps import FewRows
from tvmfuse.kernels.attention_parts import Attention, FewTiles, Result, RowTile, inverse_of
from tvmfuse.kernels.blocks import Choose
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine, ceil_div

_BLOCK_KEYS = 128  # whose scores a row holds at once
_BLOCKS = (64, 128, 256, 512)
_MIN_SPLIT_KEYS = 128
_HEADS = (1, 2, 4)  # beside each other in memory, as a cache of keys lies
_MIN_PARALLEL_STEPS = 100_000  # half of that in blocks.py: these steps wait for memory


def fits(a: Attention, machine: Machine) -> bool:
    """Whether rows are few, and keys and values lie in rows that vectors can read.

    Every row takes a register for its sums; from half of all registers on, packed keys are
    faster (measured on Zen 5).
    """
    index = [tirx.Var(name, "int32") for name in "bhij"]
    rows = a.group * a.queries
    return rows <= machine.registers // 2 and all(
        isinstance(element, tvm.ir.TensorLoad) and element.indices[-1].same_as(index[-1])
        for element in (a.key(*index), a.value(*index))
    )


def tiles(a: Attention, machine: Machine, choose: Choose) -> FewTiles:
    """Choose the tiles: scores in the nearest cache, contexts in registers, all cores at work."""
    heads = a.batch * (a.heads // a.group)
    keys = int(choose("keys", _BLOCKS, default=_BLOCK_KEYS))
    # A tile of contexts stays in registers, which leaves some for values and weights.
    limit = max(1, (3 * machine.registers // 4) // (a.group * a.queries))
    vectors = ceil_div(a.width, machine.lanes)
    most = ceil_div(vectors, ceil_div(vectors, limit))
    columns = int(choose("columns", tuple(sorted({1, ceil_div(most, 2), most})), default=most))
    default = _splits(a, heads, machine)
    parts = {1, default, *(n * machine.cores for n in (1, 2))}
    options = tuple(sorted(n for n in parts if n in (1, default) or n <= ceil_div(a.keys, keys)))
    splits = int(choose("splits", options, default=default))
    together = tuple(n for n in _HEADS if heads % n == 0) if splits == 1 else (1,)
    per_task = int(choose("heads", together, default=1))
    can_share = heads // per_task * splits > 1
    steps = heads * a.group * a.queries * a.keys * (a.depth + a.width)
    options_shared = (False, True) if can_share else (False,)
    default_shared = can_share and steps >= _MIN_PARALLEL_STEPS
    is_parallel = bool(choose("is_parallel", options_shared, default=default_shared))
    return FewTiles(machine.lanes, keys, columns * machine.lanes, splits, per_task, is_parallel)


def _splits(a: Attention, heads: int, machine: Machine) -> int:
    """Return into how many parts the keys of a head are split so that all cores have work."""
    splits, limit = 1, max(1, a.keys // _MIN_SPLIT_KEYS)
    while splits < limit and heads * splits < 4 * machine.cores and heads * splits % machine.cores:
        splits += 1
    return splits


class Kernel:
    """The tasks of one attention of few rows."""

    def __init__(self, a: Attention, made: st.Made, result: Result, tiles: FewTiles) -> None:
        self._a, self._made, self._result, self._t = a, made, result, tiles
        self._heads = a.batch * (a.heads // a.group)
        (self._out,) = made.results

    def tasks(self, kept: Stmt | None = None) -> Stmt:
        """Return the whole kernel; what is to be ``kept`` stands before all else."""
        before = [] if kept is None else [kept]
        if self._t.splits == 1:
            return self._whole_heads(before)
        partial = _Partial(self._a, self._t, self._heads)
        splits = self._t.splits

        def task(i: Expr) -> Stmt:
            work = FewRows(self._a, self._t, i // splits, i % splits)
            body = st.seq([work.begin(), work.sweep(), partial.keep(work, i)])
            return st.holding(work.memory, body)

        each = st.tasks(self._heads * splits, task, is_parallel=self._t.is_parallel)
        merged = st.loop(self._heads, lambda head: partial.merge(head, self._out, self._result))
        return st.holding(partial.memory, st.seq([*before, each, merged]), made=self._made)

    def _whole_heads(self, before: list[Stmt]) -> Stmt:
        per_task = self._t.heads

        def task(i: Expr) -> Stmt:
            def head(n: Expr) -> Stmt:
                work = FewRows(self._a, self._t, i * per_task + n, st.number(0))
                body = st.seq([work.begin(), work.sweep(), self._finish(work)])
                return st.holding(work.memory, body)

            heads = st.loop(per_task, head)
            return st.holding([], st.seq([*before, heads]), made=self._made)

        return st.tasks(self._heads // per_task, task, is_parallel=self._t.is_parallel)

    def _finish(self, work: FewRows) -> Stmt:
        """Return the division by the sums, and the store of the result."""
        (total,) = st.registers(1, work.lanes, "total")

        def row(r: Expr) -> Stmt:
            head, i = work.rows.place(r)

            def element(v: Expr) -> Stmt:
                place = self._result(work.b, head, i, v)
                return st.store(self._out, work.context[r, v] * total[0], *place)

            inverse = st.store(total, inverse_of(total[0], self._a), 0)
            store = st.vectors(self._a.width, work.lanes, element)
            return st.seq([work.total(r, total), inverse, store])

        return st.holding([total], st.unrolled(work.n_rows, row))


class _Partial:
    """What tasks that share a head's keys hand to the merge."""

    def __init__(self, a: Attention, tiles: FewTiles, heads: int) -> None:
        self._a, self._lanes, self._splits = a, tiles.lanes, tiles.splits
        shape = (heads * tiles.splits, a.group * a.queries)
        self._peaks = st.scratch(shape, "peaks")
        self._sums = st.scratch(shape, "sums")
        self._context = st.scratch((*shape, a.width), "contexts")

    @property
    def memory(self) -> tuple[Buffer, ...]:
        """All of it."""
        return (self._peaks, self._sums, self._context)

    def keep(self, work: FewRows, task: Expr) -> Stmt:
        """Return the store of what a task found."""
        (total,) = st.registers(1, self._lanes, "total")

        def row(r: Expr) -> Stmt:
            def element(v: Expr) -> Stmt:
                return st.store(self._context, work.context[r, v], task, r, v)

            return st.seq(
                [
                    work.total(r, total),
                    st.store(self._sums, total[0], task, r),
                    st.store(self._peaks, work.peak[r], task, r),
                    st.vectors(self._a.width, self._lanes, element),
                ]
            )

        return st.holding([total], st.unrolled(work.n_rows, row))

    def merge(self, head: Expr, out: Buffer, result: Result) -> Stmt:
        """Return the context of the rows of one head: the mean of its parts by their weights."""
        a, first = self._a, head * self._splits
        key_heads = a.heads // a.group
        b = head // key_heads
        rows = RowTile(a, b, head % key_heads, st.number(0), a.group * a.queries)
        parts = range(self._splits)
        (weights,) = st.registers(1, self._splits, "shares")
        (total,) = st.registers(1, 1, "total")

        def row(r: Expr) -> Stmt:
            query_head, i = rows.place(r)
            peak: Any = self._peaks[first, r]
            for s in parts[1:]:
                peak = tirx.Max(peak, self._peaks[first + s, r])
            share = [
                st.store(weights, approx.exp(self._peaks[first + s, r] - total[0]), s)
                for s in parts
            ]
            whole: Any = self._sums[first, r] * weights[0]
            for s in parts[1:]:
                whole = whole + self._sums[first + s, r] * weights[s]

            def element(v: Expr) -> Stmt:
                value: Any = self._context[first, r, v] * weights[0]
                for s in parts[1:]:
                    value = value + self._context[first + s, r, v] * weights[s]
                return st.store(out, value * total[0], *result(b, query_head, i, v))

            inverse = [st.store(total, whole, 0), st.store(total, inverse_of(total[0], a), 0)]
            store = st.vectors(a.width, self._lanes, element)
            return st.seq([st.store(total, peak, 0), *share, *inverse, store])

        return st.holding([weights, total], st.unrolled(a.group * a.queries, row))
