"""What one task of an attention does on one block of keys, in its own memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvmfuse._tvm import tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_parts import LOWEST, Attention, RowTile, Tiles, at_most, least
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import ceil_div, round_up

_MINUS_INFINITY = -math.inf


class Steps:
    """The steps of one tile of rows, and the memory in which they hand on what they made."""

    def __init__(self, a: Attention, t: Tiles, lanes: int) -> None:
        self._a, self._t, self._lanes = a, t, lanes
        self._rows = round_up(t.rows, lanes)  # of a tile's statistics, whole vectors
        panels = ceil_div(a.width, t.columns)
        self._keys_packed = st.scratch((t.keys // t.key_columns, a.depth, t.key_columns), "keys")
        self._values_packed = st.scratch((panels, t.keys, t.columns), "values")
        self.context = st.scratch((t.per_task, panels, t.rows, t.columns), "context")
        self._peak = st.scratch((t.per_task, self._rows), "peak")
        self.sums = st.scratch((t.per_task, t.rows, lanes), "sums")
        self._queries = st.scratch((t.rows, a.depth), "queries")
        self._scores = st.scratch((t.rows, t.keys), "scores")
        self._peaks = st.scratch((self._rows, lanes), "peaks")
        self._scale = st.scratch((self._rows,), "scale")

    @property
    def memory(self) -> tuple[Buffer, ...]:
        """All that a task holds."""
        packed = (self._keys_packed, self._values_packed, self._queries)
        carried = (self.context, self._peak, self.sums)
        return (*packed, *carried, self._scores, self._peaks, self._scale)

    def _vectors(self, extent: int, body: st.Body) -> Stmt:
        return st.vectors(extent, self._lanes, body)

    def begin(self) -> Stmt:
        """Return what empties the statistics and contexts of a task."""
        t = self._t
        zero = _f(0.0)

        def begin(i: Expr) -> Stmt:
            def empty(row: Expr) -> Stmt:
                clear = lambda v: st.store(self.sums, zero, i, row, v)  # noqa: E731
                return self._vectors(self._lanes, clear)

            def context(p: Expr) -> Stmt:
                return st.loop(
                    t.rows,
                    lambda r: self._vectors(
                        t.columns, lambda v: st.store(self.context, zero, i, p, r, v)
                    ),
                )

            peak = self._vectors(self._rows, lambda r: st.store(self._peak, _f(LOWEST), i, r))
            panels = int(self.context.shape[1])
            return st.seq([peak, st.loop(t.rows, empty), st.loop(panels, context)])

        return st.loop(t.per_task, begin)

    def pack_keys(self, b: Expr, head: Expr, first: Expr) -> Stmt:
        """Return the copy of a block of keys, their columns beside each other."""
        a, columns = self._a, self._t.key_columns

        def column(p: Expr, c: Expr) -> Stmt:
            j = at_most(first + p * columns + c, a.keys, a.keys % columns != 0)
            return st.loop(
                a.depth,
                lambda d: st.store(self._keys_packed, a.key(b, head, j, d), p, d, c),
            )

        panels = self._panels(first)
        return st.loop(panels, lambda p: st.loop(columns, lambda c: column(p, c)))

    def pack_values(self, b: Expr, head: Expr, first: Expr) -> Stmt:
        """Return the copy of a block of values in panels of columns."""
        a, columns = self._a, self._t.columns
        is_ragged = a.keys % self._t.key_columns != 0

        def element(p: Expr, j: Expr, v: Expr) -> Stmt:
            at = at_most(first + j, a.keys, is_ragged)
            e = at_most(p * columns + v, a.width, a.width % columns != 0)
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

    def tile(self, rows: RowTile, i: Expr, first: Expr) -> Stmt:
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
            lambda r: self._vectors(self._lanes, lambda v: st.store(self._peaks, _f(LOWEST), r, v)),
        )
        work = [self._pack_queries(rows), peaks, *scores, self._raise_peaks(i)]
        work += [self._powers(i, panels), self._contexts(i, panels)]
        return st.when(panels > 0, st.seq(work))

    def _pack_queries(self, rows: RowTile) -> Stmt:
        a = self._a

        def row(r: Expr) -> Stmt:
            head, i = rows.place(r)
            return st.loop(
                a.depth,
                lambda d: st.store(self._queries, a.query(rows.b, head, i, d), r, d),
            )

        return st.loop(self._t.rows, row)

    def _products(self, rows: RowTile, first: Expr, p: Expr, *, is_checked: bool) -> Stmt:
        """Return the scores of one panel of keys."""
        a, t = self._a, self._t
        sums = st.registers(t.rows, t.key_columns, "products")
        unroll = math.gcd(self._t.unroll, a.depth)

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
                at = at_most(j, a.keys, is_checked and a.keys % t.key_columns != 0)
                value = a.score(sums[int(r)][v], rows.b, head, i, at)
                limit = a.keys if a.causal is None else least(i + a.causal + 1, a.keys)
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
                    carried = self.sums[i, r, v] * self._scale[r]
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
                return st.store(self.sums, value, i, r, v)

            body = [st.unrolled(vectors, start), st.loop(panels, power)]
            return st.holding([sums], st.seq([*body, self._vectors(self._lanes, total)]))

        return st.loop(t.rows, row)

    def _contexts(self, i: Expr, panels: Expr) -> Stmt:
        """Return what the values of the block add to the contexts of a tile."""
        t = self._t
        unroll = math.gcd(t.unroll, t.key_columns)

        def panel(p: Expr) -> Stmt:
            sums = st.registers(t.rows, t.columns, "weighted")

            def carry(r: Expr) -> Stmt:
                return self._vectors(
                    t.columns,
                    lambda v: st.store(sums[int(r)], self.context[i, p, r, v] * self._scale[r], v),
                )

            def step(j: Expr) -> Stmt:
                return self._multiply_add(
                    sums,
                    lambda r: self._scores[r, j],
                    lambda v: self._values_packed[p, j, v],
                )

            def keep(r: Expr) -> Stmt:
                return self._vectors(
                    t.columns, lambda v: st.store(self.context, sums[int(r)][v], i, p, r, v)
                )

            steps = st.loop(
                panels * (t.key_columns // unroll),
                lambda j: st.unrolled(unroll, lambda u: step(j * unroll + u)),
            )
            work = [st.unrolled(t.rows, carry), steps, st.unrolled(t.rows, keep)]
            return st.holding(sums, st.seq(work))

        return st.loop(int(self.context.shape[1]), panel)


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")
