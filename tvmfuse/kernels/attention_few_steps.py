"""What one task of an attention of few rows does, in its own memory: see :mod:`.attention_few`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvmfuse._tvm import tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_parts import LOWEST, Attention, FewTiles, RowTile, at_most, least
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import ceil_div, round_up


class FewRows:
    """One task: the rows of a key head over a share of its keys."""

    def __init__(self, a: Attention, tiles: FewTiles, head: Expr, share: Expr) -> None:
        key_heads = a.heads // a.group
        self._a, self._t, self.lanes, self._share = a, tiles, tiles.lanes, share
        self.n_rows = a.group * a.queries
        self.b, self._head = head // key_heads, head % key_heads
        self.rows = RowTile(a, self.b, self._head, st.number(0), self.n_rows)
        self._blocks = ceil_div(ceil_div(a.keys, tiles.keys), tiles.splits)
        n = self.n_rows
        self._queries = st.scratch((n, a.depth), "queries")
        self._scores = st.scratch((n, round_up(tiles.keys, self.lanes)), "scores")
        self._sums = st.scratch((n, self.lanes), "sums")
        self.peak = st.scratch((n,), "peak")
        self._scale = st.scratch((n,), "scale")
        self.context = st.scratch((n, a.width), "context")

    @property
    def memory(self) -> tuple[Buffer, ...]:
        """All that the task holds."""
        carried = (self._sums, self.peak, self._scale, self.context)
        return (self._queries, self._scores, *carried)

    def _vectors(self, extent: int, body: st.Body) -> Stmt:
        return st.vectors(extent, self.lanes, body)

    def _each_row(self, body: st.Body) -> Stmt:
        return st.unrolled(self.n_rows, body)

    def begin(self) -> Stmt:
        """Return what copies the queries and empties the statistics and contexts."""
        a = self._a

        def row(r: Expr) -> Stmt:
            head, i = self.rows.place(r)
            zero = st.f32(0)

            def query(d: Expr) -> Stmt:
                return st.store(self._queries, a.query(self.b, head, i, d), r, d)

            return st.seq(
                [
                    self._vectors(a.depth, query),
                    self._vectors(a.width, lambda v: st.store(self.context, zero, r, v)),
                    self._vectors(self.lanes, lambda v: st.store(self._sums, zero, r, v)),
                    st.store(self.peak, st.f32(LOWEST), r),
                ]
            )

        return self._each_row(row)

    def sweep(self) -> Stmt:
        """Return the work on all keys of the share, block by block."""
        a = self._a
        last = a.keys
        if a.causal is not None:  # what no row sees is never read
            last = tirx.Min(st.number(a.keys), tirx.Max(self.rows.last + a.causal + 1, 0))

        def block(n: Expr) -> Stmt:
            first = (self._share * self._blocks + n) * self._t.keys
            count = tirx.Min(st.number(self._t.keys), last - first)
            steps = [self._products(first, count), self._weights(first, count)]
            return st.when(count > 0, st.seq([*steps, self._contexts(first, count)]))

        return st.loop(self._blocks, block)

    def _products(self, first: Expr, count: Expr) -> Stmt:
        """Return the products of every row and ``count`` keys."""
        a = self._a
        sums = st.registers(self.n_rows, self.lanes, "dots")

        def clear(r: Expr) -> Stmt:
            own = sums[int(r)]
            return self._vectors(self.lanes, lambda v: st.store(own, st.f32(0), v))

        def key(j: Expr) -> Stmt:
            def piece(start: int, width: int) -> Stmt:
                def row(r: Expr) -> Stmt:
                    own = sums[int(r)]

                    def added(v: Expr) -> Stmt:
                        d = v + start
                        term = self._queries[r, d] * a.key(self.b, self._head, first + j, d)
                        return st.store(own, own[v] + term if start else term, v)

                    return self._vectors(width, added)

                return self._each_row(row)

            def keep(r: Expr) -> Stmt:
                own = sums[int(r)]
                return st.seq(
                    [self._fold(own, lambda x, y: x + y), st.store(self._scores, own[0], r, j)]
                )

            pieces = [
                piece(start, min(self.lanes, a.depth - start))
                for start in range(0, a.depth, self.lanes)
            ]
            empty = [self._each_row(clear)] if a.depth < self.lanes else []
            return st.holding(sums, st.seq([*empty, *pieces, self._each_row(keep)]))

        return st.loop(count, key)

    def _fold(self, own: Buffer, combine: Callable[[Expr, Expr], Expr]) -> Stmt:
        """Return what combines all lanes of a vector into its first one."""

        def half(width: int) -> Stmt:
            def both(v: Expr) -> Stmt:
                return st.store(own, combine(own[v], own[v + width]), v)

            return self._vectors(width, both)

        return st.seq([half(self.lanes >> n) for n in range(1, self.lanes.bit_length())])

    def _weights(self, first: Expr, count: Expr) -> Stmt:
        """Return the scores of a block, its peaks, and the exponentials and their sums."""
        lanes = self.lanes
        panels = (count + (lanes - 1)) // lanes

        def row(r: Expr) -> Stmt:
            head, i = self.rows.place(r)
            (peaks,) = st.registers(1, lanes, "peaks")
            (sums,) = st.registers(1, lanes, "powers")
            peak, scale = self.peak[r], self._scale[r]

            def score(p: Expr, *, is_last: bool) -> Stmt:
                def element(v: Expr) -> Stmt:
                    at = p * lanes + v
                    j = at_most(first + at, self._a.keys, is_last)
                    value = self._a.score(self._scores[r, at], self.b, head, i, j)
                    if is_last:
                        value = tirx.Select(at < count, value, st.f32(-math.inf))
                    if self._a.causal is not None:
                        is_seen = first + at < least(i + self._a.causal + 1, self._a.keys)
                        value = tirx.Select(is_seen, value, st.f32(-math.inf))
                    return st.store(self._scores, value, r, at)

                def higher(v: Expr) -> Stmt:
                    return st.store(peaks, tirx.Max(peaks[v], self._scores[r, p * lanes + v]), v)

                return st.seq([self._vectors(lanes, element), self._vectors(lanes, higher)])

            def power(p: Expr) -> Stmt:
                at = p * lanes

                def raised(v: Expr) -> Stmt:
                    weight = approx.exp_below(self._scores[r, at + v] - peak)
                    return st.store(self._scores, weight, r, at + v)

                def added(v: Expr) -> Stmt:
                    return st.store(sums, sums[v] + self._scores[r, at + v], v)

                return st.seq([self._vectors(lanes, raised), self._vectors(lanes, added)])

            whole = count // lanes
            scores = [
                self._vectors(lanes, lambda v: st.store(peaks, st.f32(LOWEST), v)),
                st.loop(whole, lambda p: score(p, is_last=False)),
                st.when(whole < panels, score(whole, is_last=True)),
                self._fold(peaks, tirx.Max),
                st.store(peaks, tirx.Max(peak, peaks[0]), 0),
                st.store(self._scale, approx.exp(peak - peaks[0]), r),
                st.store(self.peak, peaks[0], r),
            ]
            powers = [
                self._vectors(lanes, lambda v: st.store(sums, self._sums[r, v] * scale, v)),
                st.loop(panels, power),
                self._vectors(lanes, lambda v: st.store(self._sums, sums[v], r, v)),
            ]
            return st.holding([peaks, sums], st.seq([*scores, *powers]))

        return self._each_row(row)

    def _contexts(self, first: Expr, count: Expr) -> Stmt:
        """Return what the values of a block add to the contexts, some columns at a time."""
        a = self._a

        def columns(start: Expr, width: int) -> Stmt:
            sums = st.registers(self.n_rows, width, "weighted")

            def carry(r: Expr) -> Stmt:
                def scaled(v: Expr) -> Stmt:
                    value = self.context[r, start + v] * self._scale[r]
                    return st.store(sums[int(r)], value, v)

                return self._vectors(width, scaled)

            def step(j: Expr) -> Stmt:
                def row(r: Expr) -> Stmt:
                    def added(v: Expr) -> Stmt:
                        value = a.value(self.b, self._head, first + j, start + v)
                        return st.store(
                            sums[int(r)], sums[int(r)][v] + self._scores[r, j] * value, v
                        )

                    return self._vectors(width, added)

                return self._each_row(row)

            def keep(r: Expr) -> Stmt:
                return self._vectors(
                    width, lambda v: st.store(self.context, sums[int(r)][v], r, start + v)
                )

            work = [self._each_row(carry), st.loop(count, step), self._each_row(keep)]
            return st.holding(sums, st.seq(work))

        whole, rest = divmod(a.width, self._t.columns)
        parts = [st.loop(whole, lambda c: columns(c * self._t.columns, self._t.columns))]
        if rest:
            parts.append(columns(st.number(whole * self._t.columns), rest))
        return st.seq(parts)

    def total(self, r: Expr, total: Buffer) -> Stmt:
        """Return the sum of a row's weights, in the first lane of ``total``."""
        copy = self._vectors(self.lanes, lambda v: st.store(total, self._sums[r, v], v))
        return st.seq([copy, self._fold(total, lambda x, y: x + y)])
