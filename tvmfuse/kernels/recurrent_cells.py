"""What the cells of recurrent layers do with their sums, unit by unit, see :mod:`recurrent`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse._tvm.recurrence import Activation, Recurrence
from tvmfuse.kernels import approx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import ceil_div

# Planes of memory: states before and after a step in turn, and what a GRU whose reset comes
# before the product keeps between its two, or the state as rounded products read it.
_UPDATE, _RESET = 2, 3
ROUNDED = 2
_OUTPUT = 2  # the activation of an LSTM's output, behind those of gates and candidate


@dataclass(frozen=True)
class Sizes:
    """Extents of a layer, see :mod:`tvmfuse._tvm.recurrence`; ``steps`` may be symbolic.

    ``order`` says which part of the columns of ``x`` is which gate.
    """

    steps: Any
    batch: int
    directions: int
    hidden: int
    order: tuple[int, ...]
    lanes: int

    @property
    def gates(self) -> int:
        """Number of gates."""
        return len(self.order)

    @property
    def blocks(self) -> int:
        """Vectors of hidden units, the last of which may not be full."""
        return ceil_div(self.hidden, self.lanes)

    @property
    def known_steps(self) -> int:
        """The steps where they are known when compiling, else one."""
        return int(self.steps) if isinstance(self.steps, int | tirx.IntImm) else 1

    def steps_are(self, count: int) -> bool:
        """Whether there are known to be that many steps."""
        return isinstance(self.steps, int | tirx.IntImm) and int(self.steps) == count

    @property
    def count(self) -> Expr:
        """The steps as a 32-bit number."""
        if isinstance(self.steps, int | tirx.IntImm):
            return st.number(int(self.steps))
        return tirx.Cast("int32", self.steps)


@dataclass(frozen=True)
class Place:
    """A buffer without the leading axes of what stands for it in a layer.

    Parameters
    ----------
    buffer : Buffer
        What is read and written.
    lacking : int
        How many leading indices, all 0, it does not have.
    """

    buffer: Buffer
    lacking: int = 0

    def __getitem__(self, index: tuple[Expr, ...]) -> Expr:
        return self.buffer[index[self.lacking :]]

    def store(self, value: Expr, *index: Expr) -> Stmt:
        """Return the assignment of ``value`` to an element."""
        return st.store(self.buffer, value, *index[self.lacking :])


@dataclass(frozen=True)
class Sum:
    """What is added to the product of a single step: the sum of tensors that stretch."""

    terms: Sequence[Buffer]

    def __getitem__(self, index: tuple[Expr, ...]) -> Expr:
        parts = [term[_stretched(term, index)] for term in self.terms]
        total = parts[0] if parts else st.f32(0.0)
        for part in parts[1:]:
            total = total + part
        return total


def _stretched(term: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    own = index[len(index) - len(term.shape) :]
    return tuple(st.number(0) if int(d) == 1 else i for d, i in zip(term.shape, own, strict=True))


class Memory:
    """Where a layer reads and writes; results that nobody asks for are None."""

    def __init__(
        self,
        recurrence: Recurrence,
        sizes: Sizes,
        operands: Mapping[str, Any],
        results: Sequence[Place | None],
    ) -> None:
        self.recurrence, self.sizes, self.operands = recurrence, sizes, operands
        self.every, self.last, *cells = results
        self.cells = [cell for cell in cells if cell is not None]
        has_reset = recurrence.cell == "gru" and not recurrence.reset_after
        # A single step reads what it is given, and writes what it returns.
        self.is_single = sizes.steps_are(1) and not has_reset and not recurrence.rounds_state
        width = sizes.blocks * sizes.lanes
        shape = (
            4 if has_reset else 2 + recurrence.rounds_state,
            sizes.directions,
            sizes.batch,
            width,
        )
        self.planes = st.scratch(shape, "planes")

    def begin(self, d: Expr, j: Expr, width: int) -> Stmt:
        """Return the copy of the first state of a block of units."""

        def row(b: Expr, v: Expr) -> Stmt:
            at = j * self.sizes.lanes + v
            copies = [st.store(self.planes, self.operands["state"][d, b, at], 0, d, b, at)]
            for cell in self.cells:
                copies.append(cell.store(self.operands["cell"][d, b, at], d, b, at))
            return st.seq(copies)

        return self._rows(width, row)

    def end(self, d: Expr, j: Expr, width: int) -> Stmt:
        """Return the copy of the last state of a block of units."""

        def row(b: Expr, v: Expr) -> Stmt:
            at = j * self.sizes.lanes + v
            assert self.last is not None
            return self.last.store(self.planes[self.sizes.count % 2, d, b, at], d, b, at)

        return self._rows(width, row)

    def _rows(self, width: int, row: Callable[[Expr, Expr], Stmt]) -> Stmt:
        lanes = self.sizes.lanes
        return st.loop(self.sizes.batch, lambda b: st.vectors(width, lanes, lambda v: row(b, v)))


@dataclass(frozen=True)
class Row:
    """A vector of units of one direction in one step, for any row of the batch."""

    memory: Memory
    step: Expr
    d: Expr
    j: Expr
    width: int

    def x(self, b: Expr, gate: int, v: Expr) -> Expr:
        """Return the product of the sequence with the input weights."""
        s = self.memory.sizes
        column = (self.d * s.gates + s.order[gate]) * s.hidden + self.unit(v)
        return self.memory.operands["x"][self.time(b), b, column]

    def plane(self, which: Expr, b: Expr, at: Expr) -> Expr:
        """Return an element of a plane of memory."""
        return self.memory.planes[which, self.d, b, at]

    def state(self, b: Expr, at: Expr) -> Expr:
        """Return the state before the step."""
        if self.memory.is_single:
            return self.memory.operands["state"][self.d, b, at]
        return self.plane(self.step % 2, b, at)

    def rounded(self, b: Expr, at: Expr) -> Expr:
        """Return the state before the step in 8 bits, see :mod:`.recurrent_rounding`."""
        return self.plane(st.number(ROUNDED), b, at)

    def cell(self, b: Expr, v: Expr) -> Expr:
        """Return the cell before the step."""
        if self.memory.is_single:
            return self.memory.operands["cell"][self.d, b, self.unit(v)]
        return self.memory.cells[0][self.d, b, self.unit(v)]

    def weight(self, name: str, part: int, v: Expr) -> Expr:
        """Return an element of the bias, or of what scales or looks into a gate."""
        at = part * self.memory.sizes.hidden + self.unit(v)
        return self.memory.operands[name][self.d, at]

    def unit(self, v: Expr) -> Expr:
        """Return the hidden unit of a lane."""
        return self.j * self.memory.sizes.lanes + v

    def time(self, b: Expr) -> Expr:
        """Return the place in the sequence that the step stands for."""
        backwards = self.memory.recurrence.backwards
        if not any(backwards):
            return self.step
        last, length = self.memory.sizes.count, self._length(b)
        turned = last - 1 - self.step
        if length is not None:  # behind its end the places are as they were
            turned = tirx.Select(self.step < length, length - 1 - self.step, self.step)
        if all(backwards):
            return turned
        first = backwards.index(True)  # directions are forward, or forward and backward
        return tirx.Select(self.d == first, turned, self.step)

    def _length(self, b: Expr) -> Expr | None:
        lengths = self.memory.operands.get("lengths")
        return None if lengths is None else tirx.Cast("int32", lengths[b])

    def vectors(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return ``body(lane)`` for every unit."""
        return st.vectors(self.width, self.memory.sizes.lanes, body)

    def keep(self, which: int, b: Expr, value: Callable[[Expr], Expr]) -> Stmt:
        """Return the store of values into a plane of memory."""
        planes = self.memory.planes
        return self.vectors(lambda v: st.store(planes, value(v), which, self.d, b, self.unit(v)))

    def put(self, b: Expr, state: Buffer, cell: Buffer | None = None) -> Stmt:
        """Return the store of the new state, unless the row's sequence has ended."""
        m, length = self.memory, self._length(b)

        def shown(new: Expr, old: Expr) -> Expr:
            return new if length is None else tirx.Select(self.step < length, new, old)

        def lane(v: Expr) -> Stmt:
            unit = self.unit(v)
            kept = shown(state[v], self.state(b, unit))
            every = shown(state[v], st.f32(0.0))
            if m.is_single:
                assert m.last is not None
                stores = [m.last.store(kept, self.d, b, unit)]
            else:
                stores = [st.store(m.planes, kept, 1 - self.step % 2, self.d, b, unit)]
            if m.every is not None:
                stores.append(m.every.store(every, self.time(b), self.d, b, unit))
            if cell is not None:
                kept = shown(cell[v], self.cell(b, v))
                stores.append(m.cells[0].store(kept, self.d, b, unit))
            return st.seq(stores)

        return self.vectors(lane)


@dataclass(frozen=True)
class Phase:
    """A product with some gates' weights, and what becomes of its sums.

    Parameters
    ----------
    gates : tuple of int
        The gates.
    source : callable
        ``source(row, b, k)`` is what multiplies the weights of unit ``k``.
    finish : callable
        ``finish(row, b, sums)`` returns the statement; ``sums`` has a vector for each gate.
    """

    gates: tuple[int, ...]
    source: Callable[[Row, Expr, Expr], Expr]
    finish: Callable[[Row, Expr, Sequence[Buffer]], Stmt]


def phases(recurrence: Recurrence) -> Sequence[Phase]:
    """Return what a step consists of; the threads meet behind each phase."""
    cells = _Cells(recurrence)
    if recurrence.cell == "lstm":
        return [
            Phase((0, 1, 2, 3), Row.rounded if recurrence.rounds_state else Row.state, cells.lstm)
        ]
    if recurrence.cell == "rnn":
        return [Phase((0,), Row.state, cells.rnn)]
    if recurrence.reset_after:
        return [Phase((0, 1, 2), Row.state, cells.gru_reset_after)]
    return [
        Phase((0, 1), Row.state, cells.gru_gates),
        Phase((2,), lambda row, b, k: row.plane(_RESET, b, k), cells.gru_hidden),
    ]


class _Cells:
    """What each cell does with its sums."""

    def __init__(self, recurrence: Recurrence) -> None:
        self._r = recurrence

    def rnn(self, row: Row, b: Expr, sums: Sequence[Buffer]) -> Stmt:
        """Return the new state of an RNN."""
        (s,) = sums
        return st.seq([self._gate(row, s, 0, lambda v: row.x(b, 0, v) + s[v]), row.put(b, s)])

    def lstm(self, row: Row, b: Expr, sums: Sequence[Buffer]) -> Stmt:
        """Return the new state and cell of an LSTM; gates: input, output, forget, cell."""
        i, o, f, g = sums

        def summed(gate: int, cell: Callable[[Expr], Expr], part: int) -> Callable[[Expr], Expr]:
            def value(v: Expr) -> Expr:
                plain = row.x(b, gate, v) + sums[gate][v]
                if "peephole" not in self._r.optional:
                    return plain
                return plain + row.weight("peephole", part, v) * cell(v)

            return value

        before = lambda v: row.cell(b, v)  # noqa: E731
        parts = [self._gate(row, i, 0, summed(0, before, 0))]
        if self._r.input_forget:
            parts.append(row.vectors(lambda v: st.store(f, st.f32(1.0) - i[v], v)))
        else:
            parts.append(self._gate(row, f, 0, summed(2, before, 2)))
        parts.append(self._gate(row, g, 1, lambda v: row.x(b, 3, v) + g[v]))
        parts.append(row.vectors(lambda v: st.store(f, f[v] * row.cell(b, v) + i[v] * g[v], v)))
        parts.append(self._gate(row, o, 0, summed(1, lambda v: f[v], 1)))
        parts.append(self._gate(row, g, 2, lambda v: f[v]))
        parts.append(row.vectors(lambda v: st.store(o, o[v] * g[v], v)))
        return st.seq([*parts, row.put(b, o, f)])

    def gru_reset_after(self, row: Row, b: Expr, sums: Sequence[Buffer]) -> Stmt:
        """Return the new state of a GRU; gates: update, reset, hidden."""
        z, r, n = sums

        def hidden(v: Expr) -> Expr:
            inner = n[v] + row.weight("bias", 0, v) if "bias" in self._r.optional else n[v]
            return row.x(b, 2, v) + r[v] * inner

        parts = [
            self._gate(row, z, 0, lambda v: row.x(b, 0, v) + z[v]),
            self._gate(row, r, 0, lambda v: row.x(b, 1, v) + r[v]),
            self._gate(row, n, 1, hidden),
        ]
        return st.seq([*parts, self._mixed(row, b, n, lambda v: z[v])])

    def gru_gates(self, row: Row, b: Expr, sums: Sequence[Buffer]) -> Stmt:
        """Return the update gate of a GRU, and its state behind the reset gate."""
        z, r = sums
        return st.seq(
            [
                self._gate(row, z, 0, lambda v: row.x(b, 0, v) + z[v]),
                self._gate(row, r, 0, lambda v: row.x(b, 1, v) + r[v]),
                row.keep(_UPDATE, b, lambda v: z[v]),
                row.keep(_RESET, b, lambda v: r[v] * row.state(b, row.unit(v))),
            ]
        )

    def gru_hidden(self, row: Row, b: Expr, sums: Sequence[Buffer]) -> Stmt:
        """Return the new state of a GRU whose reset came before the product."""
        (n,) = sums
        update = lambda v: row.plane(_UPDATE, b, row.unit(v))  # noqa: E731
        hidden = self._gate(row, n, 1, lambda v: row.x(b, 2, v) + n[v])
        return st.seq([hidden, self._mixed(row, b, n, update)])

    def _mixed(self, row: Row, b: Expr, n: Buffer, update: Callable[[Expr], Expr]) -> Stmt:
        def value(v: Expr) -> Expr:
            return n[v] + update(v) * (row.state(b, row.unit(v)) - n[v])

        return st.seq([row.vectors(lambda v: st.store(n, value(v), v)), row.put(b, n)])

    def _gate(self, row: Row, out: Buffer, which: int, value: Callable[[Expr], Expr]) -> Stmt:
        """Return the store of an activated gate; directions may differ in activations."""
        clip = self._r.clip if which < _OUTPUT else 0.0

        def applied(activation: Activation) -> Stmt:
            def lane(v: Expr) -> Stmt:
                x = approx.clip(value(v), -clip, clip) if clip else value(v)
                return st.store(out, approx.bind(x, lambda x: activate(activation, x)), v)

            return row.vectors(lane)

        every = [each[which] for each in self._r.activations]
        if len(set(every)) == 1:
            return applied(every[0])
        return tirx.IfThenElse(row.d == 0, applied(every[0]), applied(every[1]))


def activate(activation: Activation, x: Expr) -> Expr:
    """Return an activation of a float32 number that has a name."""
    a, b = st.f32(activation.alpha), st.f32(activation.beta)
    zero, one = st.f32(0.0), st.f32(1.0)
    forms: dict[str, Callable[[], Expr]] = {
        "sigmoid": lambda: approx.sigmoid(x),
        "tanh": lambda: approx.tanh(x),
        "relu": lambda: approx.relu(x),
        "affine": lambda: a * x + b,
        "leakyrelu": lambda: tirx.Select(x < zero, a * x, x),
        "thresholdedrelu": lambda: tirx.Select(x > a, x, zero),
        "scaledtanh": lambda: a * approx.tanh(b * x),
        "hardsigmoid": lambda: approx.clip(a * x + b, 0.0, 1.0),
        "elu": lambda: tirx.Select(x < zero, a * (approx.exp(x) - one), x),
        "softsign": lambda: x / (one + tirx.abs(x)),
        "softplus": lambda: tirx.log(one + approx.exp(x)),
    }
    return forms[activation.name]()
