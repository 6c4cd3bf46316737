"""RNN, GRU and LSTM: one kernel that runs a layer over its whole sequence, in all directions.

Each step multiplies the state by the recurrent weights, which for a small batch is bound by
how fast these come from the cache; so a weight of bytes stays bytes. They are packed by vectors
of hidden units, (D, H / v, H, G, v): a task computes all gates of its units in registers,
applies the activations there, and writes the units' new state. The tasks of a step are
parallel. The threads are started once for all steps and meet between them, as in the
persistent kernels of Diamos et al. ("Persistent RNNs", 2016); the directions of a layer share
the steps of one loop.

States lie in two planes in turn: a step reads all of one and writes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse._tvm.recurrence import DEFAULT_ACTIVATIONS, Activation, Recurrence
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.blocks import Choose, Schedule
from tvmfuse.kernels.recurrent_cells import Memory, Phase, Place, Row, Sizes, Sum, phases
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine

Tensor = Any  # te.Tensor
Task = Callable[[Expr, Expr, int], Stmt]

_FAMILY = "recurrent"
_PACKED_RANK = 5
_CHAINS = 8  # sums that keep one core busy: two units with a latency of four cycles
_MIN_STEP = 40_000  # multiply-adds of a step that are worth a meeting of the threads
_MIN_PARALLEL_STEPS = 200_000  # multiply-adds that are worth waking threads, see blocks.py


def fits(call: Any) -> bool:
    """Whether there is a kernel for a recurrent layer: float32 of static shape, not empty.

    The weight may be bytes.

    Parameters
    ----------
    call : relax.Call
        Of an operator of :mod:`tvmfuse._tvm.recurrence`.
    """
    x, weight, *_ = call.args
    extents = [*x.ty.shape.values, *weight.ty.shape.values]
    is_static = all(isinstance(extent, int | tirx.IntImm) for extent in extents)
    return is_static and 0 not in map(int, extents[1:]) and str(x.ty.dtype) == "float32"


def emit(recurrence: Recurrence, operands: Sequence[Tensor], machine: Machine) -> list[Tensor]:
    """Emit a layer in float32.

    Parameters
    ----------
    recurrence : Recurrence
        What it computes.
    operands : Sequence[te.Tensor]
        In the operator's order; the weight may be packed, (D, H / lanes, H, G, lanes).
    machine : Machine
        The device.

    Returns
    -------
    list of te.Tensor
        The states of all steps, the last state, and an LSTM's last cell.
    """
    x, _, state, *_ = operands
    directions, batch, hidden = (int(d) for d in state.shape)
    order = tuple(range(recurrence.gates))
    sizes = Sizes(x.shape[0], batch, directions, hidden, order, machine.lanes)
    last = (directions, batch, hidden)
    results: list[tuple[str, Sequence[Expr]]] = [("every", (x.shape[0], *last)), ("last", last)]
    results += [("last_cell", last)] * (recurrence.states - 1)

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        memory = Memory(recurrence, sizes, recurrence.named(ins), [Place(out) for out in outs])
        return _Layer(memory, machine).statement()

    return st.kernels(results, operands, body)


def emit_cell(
    terms: Sequence[Tensor],
    operands: Sequence[Tensor],
    machine: Machine,
    *,
    order: tuple[int, ...],
) -> list[Tensor]:
    """Emit one step of an LSTM in float32, whose tensors have neither steps nor directions.

    Parameters
    ----------
    terms : Sequence[te.Tensor]
        What is added to the product, (batch, 4 * hidden) or any shape that stretches to it.
    operands : Sequence[te.Tensor]
        The weight as in :func:`emit`, the state and the cell, (batch, hidden).
    machine : Machine
        The device.
    order : tuple of int
        Which quarter of the columns is the input, output, forget and cell gate. The packed
        weight has them in this order already.

    Returns
    -------
    list of te.Tensor
        The new state and the new cell.
    """
    batch, hidden = (int(d) for d in operands[1].shape)
    activations = tuple(Activation(name) for name in DEFAULT_ACTIVATIONS["lstm"])
    recurrence = Recurrence("lstm", (False,), (activations,))
    sizes = Sizes(1, batch, 1, hidden, order, machine.lanes)

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        added, (weight, state, cell) = ins[: len(terms)], ins[len(terms) :]
        named = {
            "x": Sum(added),
            "weight": weight,
            "state": Place(state, lacking=1),
            "cell": Place(cell, lacking=1),
        }
        results = [None, *(Place(out, lacking=1) for out in outs)]
        return _Layer(Memory(recurrence, sizes, named, results), machine).statement()

    shape = (batch, hidden)
    return st.kernels([("state", shape), ("cell", shape)], [*terms, *operands], body)


def schedule(_sch: Schedule, _machine: Machine, _choose: Choose) -> None:
    """Leave the loop as it is: its tiles shape the program, so :func:`emit` chose them."""


class _Layer:
    """The loop over the steps of one layer."""

    def __init__(self, memory: Memory, machine: Machine) -> None:
        s = memory.sizes
        self._m, self._s, self._machine = memory, s, machine
        self._packed = self._weight = memory.operands["weight"]
        if len(self._weight.shape) != _PACKED_RANK:
            shape = (s.directions, s.blocks, s.hidden, s.gates, s.lanes)
            self._packed = st.scratch(shape, "packed")
        work = s.batch * s.directions * s.hidden * s.hidden * s.gates
        self._is_parallel = (
            machine.cores > 1
            and s.directions * s.blocks > 1
            and work >= _MIN_STEP
            and work * s.known_steps >= _MIN_PARALLEL_STEPS
        )
        # One loop starts its threads by itself; several share them.
        is_one_loop = memory.is_single and self._packed is self._weight
        self._is_shared = self._is_parallel and not is_one_loop

    def statement(self) -> Stmt:
        """Return the whole kernel."""
        if self._m.is_single:
            buffers, parts = [], [self._step(st.number(0))]
        else:
            steps = st.loop(self._s.count, self._step)
            buffers = [self._m.planes]
            parts = [self._tasks(self._m.begin), steps, self._tasks(self._m.end)]
        if self._packed is not self._weight:
            buffers.append(self._packed)
            parts.insert(0, self._tasks(self._pack))
        whole = st.seq(parts)
        whole = st.together(whole) if self._is_shared else whole
        return st.holding(buffers, whole, family=_FAMILY)

    def _step(self, step: Expr) -> Stmt:
        def task(phase: Phase) -> Task:
            return lambda d, j, width: self._tiles(phase, Row(self._m, step, d, j, width))

        return st.seq([self._tasks(task(phase)) for phase in phases(self._m.recurrence)])

    def _tasks(self, task: Task) -> Stmt:
        """Return ``task(direction, block, units)`` of all blocks; the threads meet behind it."""
        s = self._s
        rest = s.hidden % s.lanes

        def of(i: Expr) -> Stmt:
            d, j = (i // s.blocks, i % s.blocks) if s.directions > 1 else (st.number(0), i)
            if not rest or s.blocks == 1:
                return task(d, j, rest or s.lanes)
            return tirx.IfThenElse(j < s.blocks - 1, task(d, j, s.lanes), task(d, j, rest))

        loop = st.tasks(s.directions * s.blocks, of, is_parallel=self._is_parallel)
        return st.before_others(loop) if self._is_shared else loop

    def _tiles(self, phase: Phase, row: Row) -> Stmt:
        """Return a phase of one block of units, by register tiles of the batch."""
        rows = min(self._s.batch, self._machine.max_rows(len(phase.gates)))
        whole, rest = divmod(self._s.batch, rows)
        parts = [st.loop(whole, lambda i: self._tile(phase, row, i * rows, rows))]
        if rest:
            parts.append(self._tile(phase, row, st.number(whole * rows), rest))
        return st.seq(parts)

    def _tile(self, phase: Phase, row: Row, first: Expr, rows: int) -> Stmt:
        return _Tile(phase, row, first, rows, self._packed, self._machine).statement()

    def _pack(self, d: Expr, j: Expr, width: int) -> Stmt:
        """Return the copy of the weights of one block of units."""
        s = self._s

        def gate(k: Expr, g: int) -> Stmt:
            at = g * s.hidden + j * s.lanes
            copy = lambda v: st.store(  # noqa: E731
                self._packed, tirx.Cast("float32", self._weight[d, k, at + v]), d, j, k, g, v
            )
            parts = [st.vectors(width, s.lanes, copy)]
            parts += [
                st.store(self._packed, st.f32(0.0), d, j, k, g, v) for v in range(width, s.lanes)
            ]
            return st.seq(parts)

        return st.loop(s.hidden, lambda k: st.seq([gate(k, g) for g in range(s.gates)]))


class _Tile:
    """A phase of some rows of the batch, for one vector of units, in registers."""

    def __init__(
        self, phase: Phase, row: Row, first: Expr, rows: int, packed: Buffer, machine: Machine
    ) -> None:
        self._phase, self._row, self._first, self._packed = phase, row, first, packed
        self._s, n = row.memory.sizes, len(phase.gates)
        # Few rows have few sums: each is split into several, that do not wait for one another.
        chains = 1
        while 2 * rows * n * chains <= machine.accumulators and rows * n * chains < _CHAINS:
            chains *= 2
        self._chains = min(chains, self._s.hidden)
        self._sums = [
            [st.registers(self._chains, self._s.lanes, "sum") for _ in range(n)]
            for _ in range(rows)
        ]

    def statement(self) -> Stmt:
        """Return the sums over all units of the state, and what becomes of them."""
        chains = self._chains
        steps, rest = divmod(self._s.hidden, chains)
        all_sums = [b for row in self._sums for gate in row for b in gate]
        parts = [st.seq([self._set(b, lambda _: st.f32(0.0)) for b in all_sums])]
        parts.append(
            st.loop(steps, lambda k: st.seq([self._add(k * chains + u, u) for u in range(chains)]))
        )
        parts += [self._add(st.number(steps * chains + u), u) for u in range(rest)]
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
