"""RNN, GRU and LSTM, which TVM 0.27's ONNX importer lacks, unrolled over time.

The product of the whole sequence with the input weights is one matmul before
the loop; only the product with the state is left in it. The number of steps
has to be known, and what ONNX calls ``layout=1``, ``clip``, ``input_forget``,
peepholes and ragged sequences is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents

Array = np.ndarray[Any, Any]
State = tuple[relax.Expr, ...]

_ACTIVATIONS = {"sigmoid": relax.op.sigmoid, "tanh": relax.op.tanh, "relu": relax.op.nn.relu}


@dataclass(frozen=True)
class Weights:
    """The weights of every direction, gates side by side as ONNX orders them.

    Parameters
    ----------
    x, h : ndarray of shape (directions, input or hidden size, gates * hidden size)
        Factors of the input and of the state.
    bias_x, bias_h : ndarray of shape (directions, gates * hidden size)
        What is added to either product.
    """

    x: Array
    h: Array
    bias_x: Array
    bias_h: Array

    @classmethod
    def of(cls, node: Node, x: Array, h: Array) -> Weights:
        """Read the bias of ``node``, or take zeros, and join it with ``x`` and ``h``."""
        shape = (x.shape[0], 2 * x.shape[2])
        bias = node.array(3) if node.input(3) is not None else np.zeros(shape, x.dtype)
        bias_x, bias_h = np.split(bias, 2, axis=1)
        return cls(x, h, bias_x, bias_h)

    @classmethod
    def transposed(cls, node: Node) -> Weights:
        """Read the weights of ``node``, which ONNX keeps with the gates first."""
        x, h = (np.ascontiguousarray(node.array(i).transpose(0, 2, 1)) for i in (1, 2))
        return cls.of(node, x, h)


@dataclass(frozen=True)
class Cell:
    """One time step of one direction.

    Parameters
    ----------
    step : callable
        ``(x, state) -> state``; ``x`` has shape (1, batch, gates * hidden size).
    bias : ndarray of shape (gates * hidden size,)
        What can be added to the input's product before the loop.
    """

    step: Callable[[relax.Expr, State], State]
    bias: Array


def convert_lstm(node: Node) -> relax.Expr:
    """Convert ``LSTM`` of ``ai.onnx``."""
    return _lstm(node, Weights.transposed(node))


def convert_dynamic_quantize_lstm(node: Node) -> relax.Expr:
    """Convert ``DynamicQuantizeLSTM`` of ``com.microsoft``.

    Only its weights are int8. They are dequantised here, and the activations,
    which ONNX Runtime would quantise on the way, stay in float32.
    """
    x = _dequantise(node.array(1), node.array(8), node.array(9))
    h = _dequantise(node.array(2), node.array(10), node.array(11))
    return _lstm(node, Weights.of(node, x, h))


def convert_gru(node: Node) -> relax.Expr:
    """Convert ``GRU``."""
    weights = Weights.transposed(node)
    cells = [_gru_cell(node, weights, k) for k in range(weights.x.shape[0])]
    return node.results(*_unroll(node, weights, cells, n_states=1))


def convert_rnn(node: Node) -> relax.Expr:
    """Convert ``RNN``."""
    weights = Weights.transposed(node)
    cells = [_rnn_cell(node, weights, k) for k in range(weights.x.shape[0])]
    return node.results(*_unroll(node, weights, cells, n_states=1))


def _lstm(node: Node, weights: Weights) -> relax.Expr:
    if node.input(7) is not None or node.attrs.get("input_forget", 0):
        raise NotImplementedError("peepholes and input_forget are not supported")
    cells = [_lstm_cell(node, weights, k) for k in range(weights.x.shape[0])]
    return node.results(*_unroll(node, weights, cells, n_states=2))


def _lstm_cell(node: Node, weights: Weights, direction: int) -> Cell:
    gate, candidate, output = _activations(node, direction, ("sigmoid", "tanh", "tanh"))
    recurrent = relax.const(weights.h[direction])

    def step(x: relax.Expr, state: State) -> State:
        h, c = state
        z = node.emit(relax.op.add(x, relax.op.matmul(h, recurrent)))
        i, o, f, g = _gates(z, 4)
        c = node.emit(gate(f) * c + gate(i) * candidate(g))
        return node.emit(gate(o) * output(c)), c

    return Cell(step, weights.bias_x[direction] + weights.bias_h[direction])


def _gru_cell(node: Node, weights: Weights, direction: int) -> Cell:
    gate, candidate = _activations(node, direction, ("sigmoid", "tanh"))
    bias_x, bias_h = weights.bias_x[direction], weights.bias_h[direction]
    size = weights.h.shape[1]
    gates_h, new_h = (
        relax.const(np.ascontiguousarray(part))
        for part in np.split(weights.h[direction], [2 * size], axis=1)
    )
    # The candidate's state bias is inside the product with the reset gate when
    # the reset comes after the matmul; all other biases can go before the loop.
    reset_after = bool(node.attrs.get("linear_before_reset", 0))
    early = bias_h.copy()
    if reset_after:
        early[2 * size :] = 0
    late = relax.const(bias_h[2 * size :])

    def step(x: relax.Expr, state: State) -> State:
        (h,) = state
        x_z, x_r, x_n = _gates(x, 3)
        h_z, h_r = _gates(node.emit(relax.op.matmul(h, gates_h)), 2)
        r = node.emit(gate(x_r + h_r))
        if reset_after:
            carried = r * (relax.op.matmul(h, new_h) + late)
        else:
            carried = relax.op.matmul(node.emit(r * h), new_h)
        n = node.emit(candidate(x_n + carried))
        z = node.emit(gate(x_z + h_z))
        return (node.emit(n + z * (h - n)),)

    return Cell(step, bias_x + early)


def _rnn_cell(node: Node, weights: Weights, direction: int) -> Cell:
    (activation,) = _activations(node, direction, ("tanh",))
    recurrent = relax.const(weights.h[direction])

    def step(x: relax.Expr, state: State) -> State:
        return (node.emit(activation(x + relax.op.matmul(state[0], recurrent))),)

    return Cell(step, weights.bias_x[direction] + weights.bias_h[direction])


def _unroll(node: Node, weights: Weights, cells: Sequence[Cell], *, n_states: int) -> State:
    """Run every direction's cell over the sequence.

    Returns
    -------
    tuple of relax.Expr
        Y of shape (steps, directions, batch, hidden size), then every final
        state, of shape (directions, batch, hidden size).
    """
    steps, batch, _ = _static_shape(node)
    _refuse_variants(node, steps)
    outputs, finals = [], []
    for direction, cell in enumerate(cells):
        product = relax.op.matmul(node.inputs[0], relax.const(weights.x[direction]))
        projected = node.emit(relax.op.add(product, relax.const(cell.bias)))
        state = tuple(
            _initial(node, 5 + k, direction, (1, batch, weights.h.shape[1]))
            for k in range(n_states)
        )
        is_reverse = direction == 1 or node.text("direction", "forward") == "reverse"
        order = range(steps - 1, -1, -1) if is_reverse else range(steps)
        hidden = {}
        for t in order:
            state = cell.step(node.emit(_row(projected, t)), state)
            hidden[t] = state[0]
        outputs.append(relax.op.concat([hidden[t] for t in range(steps)], axis=0))
        finals.append(state)
    return (
        node.emit(relax.op.stack(outputs, axis=1)),
        *(_joined(node, [final[k] for final in finals]) for k in range(n_states)),
    )


def _static_shape(node: Node) -> tuple[int, ...]:
    shape = extents(node.inputs[0])
    if shape is None:
        raise NotImplementedError("the length of the sequence must be known when compiling")
    return shape


def _refuse_variants(node: Node, steps: int) -> None:
    for name in ("layout", "clip"):
        if node.attrs.get(name, 0):
            raise NotImplementedError(f"the attribute {name} is not supported")
    if node.input(4) is not None and not (node.array(4) == steps).all():
        raise NotImplementedError("sequence_lens shorter than the sequence is not supported")


def _activations(node: Node, direction: int, defaults: Sequence[str]) -> list[Any]:
    names = [text.decode().lower() for text in node.attrs.get("activations", ())]
    names = names[direction * len(defaults) :][: len(defaults)] or list(defaults)
    unknown = sorted(set(names) - set(_ACTIVATIONS))
    if unknown:
        raise NotImplementedError(f"the activation {unknown[0]} is not supported")
    return [_ACTIVATIONS[name] for name in names]


def _initial(node: Node, index: int, direction: int, shape: tuple[int, ...]) -> relax.Expr:
    given = node.input(index)
    if given is None:
        return relax.const(np.zeros(shape, dtype_of(node.inputs[0])))
    return node.emit(_row(given, direction))


def _row(tensor: relax.Expr, index: int) -> relax.Expr:
    return relax.op.strided_slice(tensor, axes=[0], begin=[index], end=[index + 1])


def _gates(tensor: relax.Expr, n: int) -> list[relax.Expr]:
    size = int(tensor.ty.shape[2]) // n
    return [
        relax.op.strided_slice(tensor, axes=[2], begin=[k * size], end=[(k + 1) * size])
        for k in range(n)
    ]


def _joined(node: Node, states: Sequence[relax.Expr]) -> relax.Expr:
    return states[0] if len(states) == 1 else node.emit(relax.op.concat(states, axis=0))


def _dequantise(quantised: Array, scale: Array, zero_point: Array) -> Array:
    """Return float32 weights from int8 ones with one scale per tensor or per column."""
    directions = quantised.shape[0]
    scale, zero_point = (
        a.reshape(directions, 1, -1).astype("float32") for a in (scale, zero_point)
    )
    weights: Array = (quantised.astype("float32") - zero_point) * scale
    return weights
