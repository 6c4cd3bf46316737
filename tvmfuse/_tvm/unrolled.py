"""Recurrent layers as the steps that they consist of, for targets without a kernel for them.

:func:`unroll` writes out what :mod:`tvmfuse._tvm.recurrence` describes, step after step, so
the number of steps has to be known. It is the legalisation of these operators, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.recurrence import OPERATORS, Activation, Recurrence
from tvmfuse._tvm.rounding import rounded

Expr = Any  # relax.Expr
Emit = Callable[[Expr], Expr]
State = tuple[Expr, ...]

op = relax.op


def unroll(mod: Any, *, but: Callable[[relax.Call], bool]) -> Any:
    """Return ``mod`` with recurrent layers written out in steps, except those ``but`` keeps."""
    functions = {
        var: _Unroll(mod, but).visit_expr(function)
        if isinstance(function, relax.Function)
        else function
        for var, function in mod.functions.items()
    }
    return relax.transform.Normalize()(tvm.IRModule(functions, attrs=mod.attrs))


@relax.expr_functor.mutator
class _Unroll(relax.PyExprMutator):
    def __init__(self, mod: Any, keeps: Callable[[relax.Call], bool]) -> None:
        super().__init__(mod)
        self._keeps = keeps

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        is_layer = isinstance(call.op, tvm.ir.Op) and str(call.op.name) in OPERATORS
        return steps_of(self.builder_, call) if is_layer and not self._keeps(call) else call


def steps_of(builder: relax.BlockBuilder, call: relax.Call) -> relax.Tuple:
    """Return the results of a recurrent layer, computed by steps that ``builder`` emits.

    Raises
    ------
    NotImplementedError
        The number of steps is not known when compiling.
    """
    recurrence = Recurrence.of(call)
    shape = list(call.args[0].ty.shape.values)
    if not all(isinstance(extent, int | tvm.tirx.IntImm) for extent in shape):
        raise NotImplementedError(
            f"{call.op.name}: the length of the sequence must be known when compiling for this "
            "target"
        )
    layer = _Layer(recurrence, recurrence.named(call.args), builder.emit)
    runs = [layer.run(direction) for direction in range(len(recurrence.backwards))]
    every = builder.emit(op.stack([hidden for hidden, _ in runs], axis=1))
    lasts = [
        builder.emit(op.stack([state[k] for _, state in runs], axis=0))
        for k in range(recurrence.states)
    ]
    return relax.Tuple([every, *lasts])


class _Layer:
    """One recurrent layer on its way into steps."""

    def __init__(self, recurrence: Recurrence, operands: dict[str, Expr], emit: Emit) -> None:
        if "scale" in operands:
            wide = op.astype(operands["weight"], "float32")
            scaled = op.multiply(wide, op.expand_dims(operands["scale"], 1))
            operands = {**operands, "weight": emit(scaled)}
        self._r, self._operands, self._emit = recurrence, operands, emit
        self._steps, self._batch, _ = (int(d) for d in operands["x"].ty.shape.values)
        self._hidden = int(operands["weight"].ty.shape.values[1])
        self._dtype = str(operands["x"].ty.dtype)

    def run(self, direction: int) -> tuple[Expr, State]:
        """Return the states of all steps of one direction, (T, B, H), and the last ones."""
        r, gated = self._r, self._r.gates * self._hidden
        x = self._columns(self._operands["x"], direction * gated, gated)
        turn = self._turned if r.backwards[direction] else lambda value: value
        x = turn(x)
        names = ("state", "cell")[: r.states]
        state = tuple(self._at(self._operands[name], direction) for name in names)
        cell = {"rnn": self._rnn, "gru": self._gru, "lstm": self._lstm}[r.cell]
        every = []
        for step in range(self._steps):
            after = cell(self._at(x, step), state, direction)
            shown, state = self._masked(step, after, state)
            every.append(shown)
        if not every:
            return self._zeros((0, self._batch, self._hidden)), state
        return turn(self._emit(op.stack(every, axis=0))), state

    def _rnn(self, x: Expr, state: State, direction: int) -> State:
        (f,) = self._functions(direction)
        product = op.matmul(state[0], self._at(self._operands["weight"], direction))
        return (self._emit(f(op.add(x, product))),)

    def _gru(self, x: Expr, state: State, direction: int) -> State:
        f, g = self._functions(direction)
        (h,), size = state, self._hidden
        weight = self._at(self._operands["weight"], direction)
        z, r = self._split(
            op.add(self._columns(x, 0, 2 * size), op.matmul(h, self._columns(weight, 0, 2 * size))),
            2,
        )
        z, r = self._emit(f(z)), self._emit(f(r))
        product = op.matmul(
            h if self._r.reset_after else op.multiply(r, h), self._columns(weight, 2 * size, size)
        )
        if "bias" in self._operands:
            product = op.add(product, self._at(self._operands["bias"], direction))
        if self._r.reset_after:
            product = op.multiply(r, product)
        n = self._emit(g(op.add(self._columns(x, 2 * size, size), product)))
        return (self._emit(op.add(n, op.multiply(z, op.subtract(h, n)))),)

    def _lstm(self, x: Expr, state: State, direction: int) -> State:
        f, g, output = self._functions(direction)
        h, c = state
        weight = self._at(self._operands["weight"], direction)
        seen_state = rounded(h, self._emit) if self._r.rounds_state else h
        i, o, forget, candidate = self._split(op.add(x, op.matmul(seen_state, weight)), 4)
        peephole = self._operands.get("peephole")
        weights = None if peephole is None else self._at(peephole, direction)

        def seen(gate: Expr, cell: Expr, k: int) -> Expr:
            if weights is None:
                return gate
            return op.add(
                gate, op.multiply(self._columns(weights, k * self._hidden, self._hidden), cell)
            )

        i = self._emit(f(seen(i, c, 0)))
        forget = (
            op.subtract(self._number(1.0), i) if self._r.input_forget else f(seen(forget, c, 2))
        )
        c = self._emit(op.add(op.multiply(forget, c), op.multiply(i, g(candidate))))
        return self._emit(op.multiply(f(seen(o, c, 1)), output(c))), c

    def _masked(self, step: int, after: State, before: State) -> tuple[Expr, State]:
        """Return what the step shows and carries, given the lengths of the sequences."""
        lengths = self._operands.get("lengths")
        if lengths is None:
            return after[0], after
        is_on = op.less(relax.const(step, str(lengths.ty.dtype)), lengths)
        is_on = self._emit(op.expand_dims(is_on, 1))
        zero = self._zeros((self._batch, self._hidden))
        state = tuple(
            self._emit(op.where(is_on, new, old)) for new, old in zip(after, before, strict=True)
        )
        return self._emit(op.where(is_on, after[0], zero)), state

    def _turned(self, value: Expr) -> Expr:
        """Return a sequence (T, B, n) from its end to its beginning; padding stays behind."""
        lengths = self._operands.get("lengths")
        if lengths is None:
            return self._emit(op.flip(value, 0))
        shape = [int(d) for d in value.ty.shape.values]
        steps = relax.const(np.arange(self._steps)[:, None], "int64")
        n = op.expand_dims(op.astype(lengths, "int64"), 0)
        turned = op.subtract(op.subtract(n, relax.const(1, "int64")), steps)
        index = op.where(op.less(steps, n), turned, steps)
        index = op.broadcast_to(op.expand_dims(index, 2), shape)
        return self._emit(op.gather_elements(value, self._emit(index), axis=0))

    def _functions(self, direction: int) -> list[Callable[[Expr], Expr]]:
        """Return the activations of gates and candidate, which are clipped, and the output's."""
        f, *others = self._r.activations[direction]
        gates, output = [f, *others[:1]], others[1:]
        return [*map(self._clipped, gates), *(partial(apply, a) for a in output)]

    def _clipped(self, activation: Activation) -> Callable[[Expr], Expr]:
        clip = self._r.clip
        if not clip:
            return partial(apply, activation)
        return lambda x: apply(activation, op.clip(x, -clip, clip))

    def _at(self, tensor: Expr, index: int) -> Expr:
        row = op.strided_slice(tensor, axes=[0], begin=[index], end=[index + 1])
        return self._emit(op.squeeze(row, axis=[0]))

    def _columns(self, tensor: Expr, first: int, count: int) -> Expr:
        axis = len(tensor.ty.shape.values) - 1
        return self._emit(op.strided_slice(tensor, axes=[axis], begin=[first], end=[first + count]))

    def _split(self, tensor: Expr, parts: int) -> list[Expr]:
        tensor = self._emit(tensor)
        return [self._columns(tensor, k * self._hidden, self._hidden) for k in range(parts)]

    def _zeros(self, shape: Sequence[int]) -> Expr:
        return relax.const(np.zeros(shape), self._dtype)

    def _number(self, value: float) -> Expr:
        return relax.const(value, self._dtype)


def apply(activation: Activation, x: Expr) -> Expr:
    """Return ``activation`` of a tensor."""
    dtype = str(x.ty.dtype) if x.ty is not None and hasattr(x.ty, "dtype") else "float32"
    a, b = activation.alpha, activation.beta

    def number(value: float) -> Expr:
        return relax.const(value, dtype)

    forms: dict[str, Callable[[], Expr]] = {
        "sigmoid": lambda: op.sigmoid(x),
        "tanh": lambda: op.tanh(x),
        "relu": lambda: op.nn.relu(x),
        "affine": lambda: op.add(op.multiply(x, number(a)), number(b)),
        "leakyrelu": lambda: op.where(op.less(x, number(0.0)), op.multiply(x, number(a)), x),
        "thresholdedrelu": lambda: op.where(op.greater(x, number(a)), x, number(0.0)),
        "scaledtanh": lambda: op.multiply(number(a), op.tanh(op.multiply(x, number(b)))),
        "hardsigmoid": lambda: op.clip(op.add(op.multiply(x, number(a)), number(b)), 0, 1),
        "elu": lambda: op.where(
            op.less(x, number(0.0)),
            op.multiply(number(a), op.subtract(op.exp(x), number(1.0))),
            x,
        ),
        "softsign": lambda: op.divide(x, op.add(number(1.0), op.abs(x))),
        "softplus": lambda: op.nn.softplus(x),
    }
    return forms[activation.name]()


def register() -> None:
    """Make steps the legalisation of the operators, for whoever has no kernel for them."""
    for name in OPERATORS:
        tvm.ir.register_op_attr(name, "FLegalize", steps_of)
