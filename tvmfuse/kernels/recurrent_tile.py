"""A register tile of a recurrent layer: products with the state, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvmfuse._tvm import tirx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.recurrent_cells import Phase, Row
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine


@dataclass(frozen=True)
class Inner:
    """The innermost loop of a tile: how many sums it aims at, and turns of it in one."""

    sums: int
    unroll: int


class Tile:
    """A phase of some rows of the batch, for one vector of units, in registers."""

    def __init__(
        self,
        phase: Phase,
        row: Row,
        first: Expr,
        rows: int,
        packed: Buffer,
        machine: Machine,
        inner: Inner,
    ) -> None:
        self._phase, self._row, self._first, self._packed = phase, row, first, packed
        self._unroll = inner.unroll
        self._s, n = row.memory.sizes, len(phase.gates)
        # Few rows have few sums: each is split into several, that do not wait for one another.
        chains = 1
        while 2 * rows * n * chains <= machine.accumulators and rows * n * chains < inner.sums:
            chains *= 2
        self._chains = min(chains, self._s.hidden)
        self._sums = [
            [st.registers(self._chains, self._s.lanes, "sum") for _ in range(n)]
            for _ in range(rows)
        ]

    def statement(self) -> Stmt:
        """Return the sums over all units of the state, and what becomes of them."""
        chains = self._chains
        turn = chains * self._unroll
        steps, rest = divmod(self._s.hidden, turn)
        all_sums = [b for row in self._sums for gate in row for b in gate]
        parts = [st.seq([self._set(b, lambda _: st.f32(0.0)) for b in all_sums])]
        parts.append(
            st.loop(
                steps,
                lambda k: st.seq([self._add(k * turn + u, u % chains) for u in range(turn)]),
            )
        )
        parts += [self._add(st.number(steps * turn + u), u % chains) for u in range(rest)]
        for r, row in enumerate(self._sums):
            totals = [self._total(gate) for gate in row]
            if "scale" in self._row.memory.operands:
                totals += [self._scaled(g, gate[0]) for g, gate in enumerate(row)]
            finish = self._phase.finish(self._row, self._first + r, [gate[0] for gate in row])
            parts += [*totals, finish]
        return st.holding(all_sums, st.seq(parts))

    def _add(self, k: Expr, chain: int) -> Stmt:
        """Return the products with unit ``k`` of the state."""
        row = self._row

        def gate(r: int, g: int) -> Stmt:
            factor = self._phase.source(row, self._first + r, k)
            own, which = self._sums[r][g][chain], self._phase.gates[g]

            def added(v: Expr) -> Expr:
                weight = self._packed[row.d, row.j, k, which, v]
                return own[v] + factor * tirx.Cast("float32", weight)

            return self._set(own, added)

        n = len(self._phase.gates)
        return st.seq([gate(r, g) for r in range(len(self._sums)) for g in range(n)])

    def _total(self, chains: Sequence[Buffer]) -> Stmt:
        """Return the sum of the parts of a sum, in place of the first."""
        first, *others = chains
        return st.seq([self._onto(first, other) for other in others])

    def _scaled(self, g: int, total: Buffer) -> Stmt:
        """Return the product of a sum of bytes with the scale of their columns."""
        row, which = self._row, self._phase.gates[g]
        return row.vectors(lambda v: st.store(total, total[v] * row.weight("scale", which, v), v))

    def _onto(self, total: Buffer, part: Buffer) -> Stmt:
        return self._set(total, lambda v: total[v] + part[v])

    def _set(self, buffer: Buffer, value: Callable[[Expr], Expr]) -> Stmt:
        lanes = self._s.lanes
        return st.vectors(lanes, lanes, lambda v: st.store(buffer, value(v), v))
