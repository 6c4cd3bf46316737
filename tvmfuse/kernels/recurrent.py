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
from tvmfuse.kernels.blocks import Choose, Schedule, default_choice
from tvmfuse.kernels.recurrent_cells import Memory, Phase, Place, Row, Sizes, Sum, phases
from tvmfuse.kernels.recurrent_rounding import Rounding
from tvmfuse.kernels.recurrent_tile import Inner, Tile
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine

Tensor = Any  # te.Tensor
Task = Callable[[Expr, Expr, int], Stmt]

_FAMILY = "recurrent"
_PACKED_RANK = 5
_CELL, _ORDER = "cell", "order"
_SUMS = 8  # sums that keep one core busy: two units with a latency of four cycles
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
    last = tuple(int(d) for d in state.shape)
    results: list[tuple[str, Sequence[Expr]]] = [("every", (x.shape[0], *last)), ("last", last)]
    results += [("last_cell", last)] * (recurrence.states - 1)

    about = {_CELL: recurrence.cell, **recurrence.attributes}

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return _written(st.Made(_FAMILY, ins, outs, about), machine, default_choice)

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
    shape = tuple(int(d) for d in operands[1].shape)
    activations = tuple(Activation(name) for name in DEFAULT_ACTIVATIONS["lstm"])
    recurrence = Recurrence("lstm", (False,), (activations,))
    about = {_CELL: "lstm", **recurrence.attributes, _ORDER: list(order)}

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return _written(st.Made(_FAMILY, ins, outs, about), machine, default_choice)

    return st.kernels([("state", shape), ("cell", shape)], [*terms, *operands], body)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Write the kernel with the decisions taken."""
    made = st.made(sch, _FAMILY)
    if made is not None:  # else as :func:`emit` wrote it
        st.replace(sch, _written(made, machine, choose))


def _written(made: st.Made, machine: Machine, choose: Choose) -> Stmt:
    """Return the whole kernel."""
    recurrence = Recurrence.of_attributes(str(made.about[_CELL]), made.about)
    memory = (_cell if _ORDER in made.about else _layer)(recurrence, made, machine)
    return _Layer(memory, made, machine, choose).statement()


def _layer(recurrence: Recurrence, made: st.Made, machine: Machine) -> Memory:
    """Return the memory of a layer, see :func:`emit`."""
    named = recurrence.named(made.operands)
    directions, batch, hidden = (int(d) for d in named["state"].shape)
    order = tuple(range(recurrence.gates))
    sizes = Sizes(named["x"].shape[0], batch, directions, hidden, order, machine.lanes)
    return Memory(recurrence, sizes, named, [Place(out) for out in made.results])


def _cell(recurrence: Recurrence, made: st.Made, machine: Machine) -> Memory:
    """Return the memory of a single step, see :func:`emit_cell`."""
    *terms, weight, state, cell = made.operands
    batch, hidden = (int(d) for d in state.shape)
    order = tuple(int(gate) for gate in made.about[_ORDER])
    named = {
        "x": Sum(terms),
        "weight": weight,
        "state": Place(state, lacking=1),
        "cell": Place(cell, lacking=1),
    }
    results = [None, *(Place(out, lacking=1) for out in made.results)]
    return Memory(recurrence, Sizes(1, batch, 1, hidden, order, machine.lanes), named, results)


class _Layer:
    """The loop over the steps of one layer."""

    def __init__(self, memory: Memory, made: st.Made, machine: Machine, choose: Choose) -> None:
        s = memory.sizes
        self._m, self._s, self._made, self._machine = memory, s, made, machine
        self._packed = self._weight = memory.operands["weight"]
        if len(self._weight.shape) != _PACKED_RANK:
            shape = (s.directions, s.blocks, s.hidden, s.gates, s.lanes)
            self._packed = st.scratch(shape, "packed")
        work = s.batch * s.directions * s.hidden * s.hidden * s.gates
        can_share = machine.cores > 1 and s.directions * s.blocks > 1
        is_large = work >= _MIN_STEP and work * s.known_steps >= _MIN_PARALLEL_STEPS
        options = (False, True) if can_share else (False,)
        self._is_parallel = choose("is_parallel", options, default=can_share and is_large)
        fewest = min(len(phase.gates) for phase in phases(memory.recurrence))
        most = min(s.batch, machine.max_rows(fewest))
        rows = tuple(n for n in (1, 2, 4, 6, 8, 12, 16) if n < most)
        self._rows = choose("rows", (*rows, most), default=most)
        self._inner = Inner(
            choose("sums", (_SUMS // 2, _SUMS, 2 * _SUMS), default=_SUMS),
            choose("unroll", (1, 2, 4), default=1),
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
        return st.holding(buffers, whole, made=self._made)

    def _step(self, step: Expr) -> Stmt:
        def task(phase: Phase) -> Task:
            return lambda d, j, width: self._tiles(phase, Row(self._m, step, d, j, width))

        products = [self._tasks(task(phase)) for phase in phases(self._m.recurrence)]
        if not self._m.recurrence.rounds_state:
            return st.seq(products)
        rounding = Rounding(self._m, step)
        return st.seq([self._shared(self._s.directions, rounding.task), *products])

    def _tasks(self, task: Task) -> Stmt:
        """Return ``task(direction, block, units)`` of all blocks; the threads meet behind it."""
        s = self._s
        rest = s.hidden % s.lanes

        def of(i: Expr) -> Stmt:
            d, j = (i // s.blocks, i % s.blocks) if s.directions > 1 else (st.number(0), i)
            if not rest or s.blocks == 1:
                return task(d, j, rest or s.lanes)
            return tirx.IfThenElse(j < s.blocks - 1, task(d, j, s.lanes), task(d, j, rest))

        return self._shared(s.directions * s.blocks, of)

    def _shared(self, count: int, task: Callable[[Expr], Stmt]) -> Stmt:
        """Return ``task(i)`` of all ``i`` below ``count``; the threads meet behind it."""
        loop = st.tasks(count, task, is_parallel=self._is_parallel)
        return st.before_others(loop) if self._is_shared else loop

    def _tiles(self, phase: Phase, row: Row) -> Stmt:
        """Return a phase of one block of units, by register tiles of the batch."""
        rows = min(self._rows, self._machine.max_rows(len(phase.gates)))
        whole, rest = divmod(self._s.batch, rows)
        parts = [st.loop(whole, lambda i: self._tile(phase, row, i * rows, rows))]
        if rest:
            parts.append(self._tile(phase, row, st.number(whole * rows), rest))
        return st.seq(parts)

    def _tile(self, phase: Phase, row: Row, first: Expr, rows: int) -> Stmt:
        tile = Tile(phase, row, first, rows, self._packed, self._machine, self._inner)
        return tile.statement()

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
