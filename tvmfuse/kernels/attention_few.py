"""Attention of few query rows: keys and values are read once, as they lie.

A language model that adds one token reads its whole cache of keys and values for it, and
memory is the limit: packing them would write and read again what is needed just once. A
score is a dot product along the lanes of one key, and a context adds up whole rows of
values. Where there are fewer heads than cores, a head's keys are split among tasks, each of
which keeps a peak, a sum and a context of its own; these are merged at the end (the split
is that of Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfuse._tvm import tirx, tvm
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_few_steps import FewRows
from tvmfuse.kernels.attention_parts import Attention, RowTile, inverse_of
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine

Result = Callable[..., list[Expr]]

_MIN_SPLIT_KEYS = 128
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


def splits_for(a: Attention, machine: Machine) -> int:
    """Return the tasks among which the keys of each head are split."""
    heads = a.batch * (a.heads // a.group)
    splits, limit = 1, max(1, a.keys // _MIN_SPLIT_KEYS)
    while splits < limit and heads * splits < 4 * machine.cores and heads * splits % machine.cores:
        splits += 1
    return splits


def tasks(a: Attention, machine: Machine, family: str, out: Buffer, result: Result) -> Stmt:
    """Return the whole kernel; see :func:`attention.emit`."""
    heads, splits = a.batch * (a.heads // a.group), splits_for(a, machine)
    steps = a.batch * a.heads * a.queries * a.keys * (a.depth + a.width)
    is_parallel = heads * splits > 1 and steps >= _MIN_PARALLEL_STEPS
    partial = _Partial(a, machine.lanes, heads, splits)

    def task(i: Expr) -> Stmt:
        work = FewRows(a, machine, i // splits, i % splits, splits)
        finish = partial.keep(work, i) if splits > 1 else _finish(work, a, out, result)
        body = st.seq([work.begin(), work.sweep(), finish])
        return st.holding(work.memory, body, made=st.Made(family))

    each = st.tasks(heads * splits, task, is_parallel=is_parallel)
    if splits == 1:
        return each
    merged = st.loop(heads, lambda head: partial.merge(head, out, result))
    return st.holding(partial.memory, st.seq([each, merged]), made=st.Made(family))


def _finish(work: FewRows, a: Attention, out: Buffer, result: Result) -> Stmt:
    """Return the division by the sums, and the store of the result."""
    (total,) = st.registers(1, work.lanes, "total")

    def row(r: Expr) -> Stmt:
        head, i = work.rows.place(r)

        def element(v: Expr) -> Stmt:
            return st.store(out, work.context[r, v] * total[0], *result(work.b, head, i, v))

        inverse = st.store(total, inverse_of(total[0], a), 0)
        return st.seq([work.total(r, total), inverse, st.vectors(a.width, work.lanes, element)])

    return st.holding([total], st.unrolled(work.n_rows, row))


class _Partial:
    """What tasks that share a head's keys hand to the merge."""

    def __init__(self, a: Attention, lanes: int, heads: int, splits: int) -> None:
        self._a, self._lanes, self._splits = a, lanes, splits
        shape = (heads * splits, a.group * a.queries)
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
