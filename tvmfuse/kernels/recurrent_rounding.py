"""The state of a recurrent layer in 8 bits by its own range, see :mod:`tvmfuse._tvm.rounding`.

All products of a step wait for the range, so one task of each direction finds it and writes the
rounded state into a plane of its own, which the products read.
"""

from __future__ import annotations

from collections.abc import Callable

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.recurrent_cells import ROUNDED, Memory
from tvmfuse.kernels.statements import Buffer, Expr, Stmt

_STEPS = 255.0


class Rounding:
    """Rounds the state before a step."""

    def __init__(self, memory: Memory, step: Expr) -> None:
        self._m, self._s, self._before = memory, memory.sizes, step % 2

    def task(self, d: Expr) -> Stmt:
        """Return the rounding of the state of one direction."""
        low, high, scale, middle = st.registers(4, self._s.lanes, "range")
        zero = st.number(0)
        every = [st.store(b, st.f32(0.0), v) for b in (low, high) for v in range(self._s.lanes)]

        def seen(b: Expr, at: Expr, v: Expr) -> Stmt:
            x = self._m.planes[self._before, d, b, at]
            return st.seq(
                [
                    st.store(low, tirx.Min(x, low[v]), v),
                    st.store(high, tirx.Max(x, high[v]), v),
                ]
            )

        def put(b: Expr, at: Expr, _: Expr) -> Stmt:
            x = self._m.planes[self._before, d, b, at]
            whole = _limited(te.nearbyint(x / scale[zero]) + middle[zero])
            return st.store(self._m.planes, (whole - middle[zero]) * scale[zero], ROUNDED, d, b, at)

        width = high[zero] - low[zero]
        parts = [
            *every,
            self._units(seen),
            self._folded(low, tirx.Min),
            self._folded(high, tirx.Max),
            st.store(scale, tirx.Select(width > 0.0, width / st.f32(_STEPS), st.f32(1.0)), zero),
            st.store(middle, _limited(te.nearbyint(-low[zero] / scale[zero])), zero),
            self._units(put),
        ]
        return st.holding([low, high, scale, middle], st.seq(parts))

    def _folded(self, values: Buffer, of: Callable[[Expr, Expr], Expr]) -> Stmt:
        """Return the reduction of a vector into its first lane."""
        rest = range(1, self._s.lanes)
        return st.seq([st.store(values, of(values[v], values[0]), 0) for v in rest])

    def _units(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """Return ``body(row, unit, lane)`` for every unit of every row."""
        s = self._s
        whole, rest = divmod(s.hidden, s.lanes)

        def some(b: Expr, j: Expr, width: int) -> Stmt:
            return st.vectors(width, s.lanes, lambda v: body(b, j * s.lanes + v, v))

        def row(b: Expr) -> Stmt:
            parts = [st.loop(whole, lambda j: some(b, j, s.lanes))]
            return st.seq([*parts, *([some(b, st.number(whole), rest)] if rest else [])])

        return st.loop(s.batch, row)


def _limited(x: Expr) -> Expr:
    return tirx.Min(tirx.Max(x, st.f32(0.0)), st.f32(_STEPS))
