"""Recurrent layers as operators of Relax, which TVM 0.27 lacks: it unrolls them.

``tvmfuse.rnn``, ``tvmfuse.gru`` and ``tvmfuse.lstm`` run a cell over a sequence, in one
direction or in both. What they read of the sequence has been multiplied by the input
weights before, for all steps at once; only the product with the state is in them. Gates
stand in ONNX's order: input, output, forget and cell for an LSTM; update, reset and hidden
for a GRU.

With T steps, batch B, D directions, G gates and hidden size H they take, in this order:

=========== ================ ============================================================
operand     shape            what it is
=========== ================ ============================================================
x           (T, B, D * G * H) products of the sequence with the input weights, with bias
weight      (D, H, G * H)    what the state is multiplied by
state       (D, B, H)        the state before the first step
cell        (D, B, H)        the same of the cell; LSTM only
bias        (D, H)           of the hidden gate, within its reset; where a GRU needs one
scale       (D, G * H)       factors of the columns of a weight of bytes, int8
peephole    (D, 3 * H)       weights of the cell in the input, output and forget gate
lengths     (B,)             integers: steps of each sequence, at most T
=========== ================ ============================================================

The last four are optional. They return the states of all steps (T, D, B, H), zeros behind
the end of a sequence, the last state (D, B, H), and an LSTM its last cell as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax, tvm

GATES: Mapping[str, int] = {"rnn": 1, "gru": 3, "lstm": 4}
DEFAULT_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "rnn": ("tanh",),
    "gru": ("sigmoid", "tanh"),
    "lstm": ("sigmoid", "tanh", "tanh"),
}
_PREFIX = "tvmfuse."
_OPTIONAL = ("bias", "scale", "peephole", "lengths")


@dataclass(frozen=True)
class Activation:
    """What a gate applies to its sum, by ONNX's name in lower case, with its coefficients."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer without its operands.

    Parameters
    ----------
    cell : str
        ``rnn``, ``gru`` or ``lstm``.
    backwards : tuple of bool
        For each direction, whether it runs from the last step to the first.
    activations : tuple of tuple of Activation
        For each direction, those of the gates, the candidate and the output.
    optional : tuple of str
        Which of the optional operands there are.
    reset_after : bool
        Whether a GRU's reset gate is applied behind the product with the state.
    input_forget : bool
        Whether an LSTM's forget gate is one minus its input gate.
    clip : float
        Bound of the magnitude of what the activations of the gates read; 0 for none. That of
        an LSTM's output reads the cell as it is, as in ONNX Runtime.
    rounds_state : bool
        Whether an LSTM's products read the state in 8 bits, by the range that it has in that
        step over the whole batch. (ONNX Runtime takes the rows that one thread has.)
    """

    cell: str
    backwards: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    optional: tuple[str, ...] = ()
    reset_after: bool = False
    input_forget: bool = False
    clip: float = 0.0
    rounds_state: bool = False

    @property
    def gates(self) -> int:
        """Number of gates, each with weights of its own."""
        return GATES[self.cell]

    @property
    def states(self) -> int:
        """How many tensors are carried from step to step."""
        return 2 if self.cell == "lstm" else 1

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands, in their order."""
        states = ("state", "cell")[: self.states]
        return ("x", "weight", *states, *(name for name in _OPTIONAL if name in self.optional))

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return operands by their names."""
        return dict(zip(self.operands, operands, strict=True))

    def call(self, operands: Mapping[str, Any]) -> relax.Call:
        """Return a call of the operator; ``operands`` by name, see the module."""
        attrs = tvm.ir.make_node("ir.DictAttrs", **self.attributes)
        operator = tvm.ir.Op.get(_PREFIX + self.cell)
        return relax.Call(operator, [operands[name] for name in self.operands], attrs)

    @property
    def attributes(self) -> dict[str, Any]:
        """All but the cell, as TVM keeps it: numbers, texts, and lists of them."""
        return {
            "backwards": [int(backward) for backward in self.backwards],
            "activations": [[a.name for a in each] for each in self.activations],
            "alpha": [[float(a.alpha) for a in each] for each in self.activations],
            "beta": [[float(a.beta) for a in each] for each in self.activations],
            "optional": list(self.optional),
            "reset_after": int(self.reset_after),
            "input_forget": int(self.input_forget),
            "clip": float(self.clip),
            # Named only where it is: records of before, which do not know it, stay valid.
            **({"rounds_state": 1} if self.rounds_state else {}),
        }

    @classmethod
    def of(cls, call: relax.Call) -> Recurrence:
        """Read what a call of the operator computes."""
        return cls.of_attributes(str(call.op.name).removeprefix(_PREFIX), call.attrs)

    @classmethod
    def of_attributes(cls, cell: str, attrs: Mapping[str, Any]) -> Recurrence:
        """Read what :attr:`attributes` returned."""
        activations = tuple(
            tuple(Activation(str(n), float(a), float(b)) for n, a, b in zip(*each, strict=True))
            for each in zip(attrs["activations"], attrs["alpha"], attrs["beta"], strict=True)
        )
        return cls(
            cell=cell,
            backwards=tuple(bool(backward) for backward in attrs["backwards"]),
            activations=activations,
            optional=tuple(str(name) for name in attrs["optional"]),
            reset_after=bool(attrs["reset_after"]),
            input_forget=bool(attrs["input_forget"]),
            clip=float(attrs["clip"]),
            rounds_state="rounds_state" in attrs,
        )


OPERATORS = tuple(_PREFIX + cell for cell in GATES)


def flops(call: relax.Call) -> int:
    """Return the floating-point operations of a call: its products, a multiply-add as two."""
    steps, batch, _ = (_extent(d) for d in call.args[0].ty.shape)
    directions, hidden, columns = (_extent(d) for d in call.args[1].ty.shape)
    return 2 * steps * batch * directions * hidden * columns


def _extent(value: Any) -> int:
    return int(value) if isinstance(value, int | tvm.tirx.IntImm) else 1


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> Any:
    """Return the type of a call's results."""
    recurrence = Recurrence.of(call)
    operands = recurrence.named(call.args)
    x, weight = operands["x"].ty, operands["weight"].ty
    if not isinstance(x.shape, relax.ShapeExpr) or not isinstance(weight.shape, relax.ShapeExpr):
        raise ValueError(f"{call.op.name}: the shapes of x and weight must be known")
    steps, batch, _ = x.shape.values
    directions, hidden, _ = weight.shape.values
    last = relax.TensorType([directions, batch, hidden], x.dtype)
    every = relax.TensorType([steps, directions, batch, hidden], x.dtype)
    return relax.TupleType([every, *[last] * recurrence.states])


def register() -> None:
    """Make the operators known to TVM."""
    for name in OPERATORS:
        tvm.ir.register_op_attr(name, "FInferType", _infer_type)
        tvm.ir.register_op_attr(name, "FPurity", value=True)
