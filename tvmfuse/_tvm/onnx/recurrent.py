"""RNN, GRU and LSTM, which TVM 0.27's ONNX importer lacks.

The product of the whole sequence with the input weights of all directions is one matmul;
what is left is an operator of ours, see :mod:`tvmfuse._tvm.recurrence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant
from tvmfuse._tvm.recurrence import DEFAULT_ACTIVATIONS, GATES, Activation, Recurrence
from tvmfuse._tvm.rounding import rounded

Array = np.ndarray[Any, Any]
Expr = Any  # relax.Expr

op = relax.op

# Coefficients that ONNX Runtime takes where a model gives none; None for a function without.
_COEFFICIENTS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (1.0, None),
}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def convert_lstm(node: Node) -> Expr:
    """Convert ``LSTM`` of ``ai.onnx``."""
    return _converted(node, "lstm", *_turned_weights(node), peephole=node.input(7))


def convert_dynamic_quantize_lstm(node: Node) -> Expr:
    """Convert ``DynamicQuantizeLSTM`` of ``com.microsoft``.

    The sequence and, in each step, the state are rounded to 8 bits by their own range, as ONNX
    Runtime does: a model may be as far from its float self as from another model. The input's
    weights are read once and become float32 here; the state's are read in each step, so they
    stay bytes where their zero points allow it.
    """
    x = _dequantise(node.array(1), node.array(8), node.array(9))
    whole, scale = _centred(node.array(2), node.array(10), node.array(11))
    if whole.min(initial=0) < -128 or whole.max(initial=0) > 127:
        h, scales = relax.const((whole * scale[:, None]).astype("float32")), None
    else:
        h, scales = relax.const(whole.astype("int8")), relax.const(scale)
    peephole = node.input(7)
    return _converted(node, "lstm", relax.const(x), h, peephole=peephole, scale=scales, rounds=True)


def convert_gru(node: Node) -> Expr:
    """Convert ``GRU``."""
    return _converted(node, "gru", *_turned_weights(node))


def convert_rnn(node: Node) -> Expr:
    """Convert ``RNN``."""
    return _converted(node, "rnn", *_turned_weights(node))


def _converted(
    node: Node,
    cell: str,
    x_weight: Expr,
    h_weight: Expr,
    *,
    peephole: Expr | None = None,
    scale: Expr | None = None,
    rounds: bool = False,
) -> Expr:
    """Return the results of a layer.

    Parameters
    ----------
    x_weight, h_weight : relax.Expr
        What the input and the state are multiplied by, (D, I, G * H) and (D, H, G * H).
    peephole : relax.Expr, optional
        (D, 3 * H).
    scale : relax.Expr, optional
        (D, G * H), of a weight of the state that is int8.
    rounds : bool
        Whether the products read the sequence and the state in 8 bits.
    """
    backwards = _DIRECTIONS[node.text("direction", "forward")]
    batch_first = bool(node.attrs.get("layout", 0))
    x = op.permute_dims(node.inputs[0], [1, 0, 2]) if batch_first else node.inputs[0]
    x = node.emit(x) if batch_first else x
    dtype, hidden = dtype_of(x), int(h_weight.ty.shape.values[1])
    early, late = _biases(node, cell, hidden, dtype)
    operands: dict[str, Expr] = {
        "x": _projected(node, rounded(x, node.emit) if rounds else x, x_weight, early),
        "weight": h_weight,
        "state": _initial(node, 5, len(backwards), hidden, x, batch_first=batch_first),
    }
    if cell == "lstm":
        operands["cell"] = _initial(node, 6, len(backwards), hidden, x, batch_first=batch_first)
    optional = {
        "bias": late,
        "scale": scale,
        "peephole": peephole,
        "lengths": _lengths(node, x),
    }
    operands |= {name: value for name, value in optional.items() if value is not None}
    recurrence = Recurrence(
        cell,
        backwards,
        _activations(node, cell, len(backwards)),
        optional=tuple(name for name in optional if name in operands),
        reset_after=bool(node.attrs.get("linear_before_reset", 0)),
        input_forget=bool(node.attrs.get("input_forget", 0)),
        clip=float(node.attrs.get("clip", 0.0)),
        rounds_state=rounds,
    )
    result = node.emit(recurrence.call(operands))
    order = [[2, 0, 1, 3], [1, 0, 2]] if batch_first else [None, None]
    values = []
    for k in range(min(node.n_outputs, 1 + recurrence.states)):
        value, axes = node.emit(relax.TupleGetItem(result, k)), order[min(k, 1)]
        values.append(node.emit(op.permute_dims(value, axes)) if axes else value)
    return node.results(*values)


def _projected(node: Node, x: Expr, weight: Expr, bias: Expr | None) -> Expr:
    """Return the products of all steps with the input weights of all directions."""
    directions, size, columns = (int(d) for d in weight.ty.shape.values)
    beside = _computed(
        node,
        weight,
        lambda w: w.transpose(1, 0, 2).reshape(size, -1),
        lambda w: op.reshape(op.permute_dims(w, [1, 0, 2]), (size, directions * columns)),
    )
    product = node.emit(op.matmul(x, beside))
    return product if bias is None else node.emit(op.add(product, bias))


def _turned_weights(node: Node) -> tuple[Expr, Expr]:
    """Return the weights of the input and the state, which ONNX keeps with the gates first."""

    def turned(value: Expr) -> Expr:
        return _computed(
            node,
            value,
            lambda w: np.ascontiguousarray(w.transpose(0, 2, 1)),
            lambda w: op.permute_dims(w, [0, 2, 1]),
        )

    return turned(node.inputs[1]), turned(node.inputs[2])


def _biases(node: Node, cell: str, hidden: int, dtype: str) -> tuple[Expr | None, Expr | None]:
    """Return the bias that can be added before the loop, (D * G * H,), and what cannot.

    The hidden gate's bias of the state is inside its reset where that comes behind the
    product; the reset gate does not reach any other.
    """
    bias = node.input(3)
    if bias is None:
        return None, None
    directions, columns = int(bias.ty.shape.values[0]), GATES[cell] * hidden
    is_late = cell == "gru" and bool(node.attrs.get("linear_before_reset", 0))
    first = np.arange(columns) < (2 * hidden if is_late else columns)

    def early(b: Array) -> Array:
        return (b[:, :columns] + b[:, columns:] * first.astype(dtype)).reshape(-1)

    def early_expr(b: Expr) -> Expr:
        x, h = (
            op.strided_slice(b, axes=[1], begin=[k * columns], end=[(k + 1) * columns])
            for k in range(2)
        )
        return op.reshape(
            op.add(x, op.multiply(h, relax.const(first.astype(dtype)))), (directions * columns,)
        )

    def late_expr(b: Expr) -> Expr:
        return op.strided_slice(b, axes=[1], begin=[columns + 2 * hidden], end=[2 * columns])

    late = _computed(node, bias, lambda b: b[:, columns + 2 * hidden :], late_expr)
    return _computed(node, bias, early, early_expr), late if is_late else None


def _computed(node: Node, value: Expr, of_array: Any, of_expr: Any) -> Expr:
    """Compute with a weight now where it is known, else in the graph."""
    if is_constant(value):
        return relax.const(np.ascontiguousarray(of_array(value.value.numpy())), dtype_of(value))
    return node.emit(of_expr(value))


def _initial(
    node: Node, index: int, directions: int, hidden: int, x: Expr, *, batch_first: bool
) -> Expr:
    given = node.input(index)
    if given is not None:
        return node.emit(op.permute_dims(given, [1, 0, 2])) if batch_first else given
    shape = extents(x)
    if shape is None:
        raise NotImplementedError("the size of the batch must be known when compiling")
    return relax.const(np.zeros((directions, shape[1], hidden)), dtype_of(x))


def _lengths(node: Node, x: Expr) -> Expr | None:
    """Return the lengths of the sequences, unless all are known to be whole."""
    lengths, shape = node.input(4), extents(x)
    is_whole = shape is not None and is_constant(lengths) and (node.array(4) == shape[0]).all()
    return None if is_whole else lengths


def _activations(node: Node, cell: str, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of every direction, with their coefficients."""
    defaults = DEFAULT_ACTIVATIONS[cell]
    names = [text.decode().lower() for text in node.attrs.get("activations", ())]
    names = names or list(defaults) * directions
    unknown = sorted(set(names) - set(_COEFFICIENTS))
    if unknown:
        raise NotImplementedError(f"the activation {unknown[0]} is not supported")
    if len(names) != len(defaults) * directions:
        raise NotImplementedError(
            f"{len(defaults) * directions} activations are required, but {len(names)} are given"
        )
    given = [iter(node.attrs.get(f"activation_{which}", ())) for which in ("alpha", "beta")]

    def taken(name: str) -> Activation:
        values = [
            0.0 if default is None else float(next(values, default))
            for default, values in zip(_COEFFICIENTS[name], given, strict=True)
        ]
        return Activation(name, *values)

    every = [taken(name) for name in names]
    return tuple(_chunks(every, len(defaults)))


def _chunks(items: Sequence[Activation], size: int) -> list[tuple[Activation, ...]]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]


def _dequantise(quantised: Array, scale: Array, zero_point: Array) -> Array:
    """Return float32 weights from int8 ones with one scale per tensor or per column."""
    whole, scales = _centred(quantised, scale, zero_point)
    return (whole * scales[:, None]).astype("float32")


def _centred(quantised: Array, scale: Array, zero_point: Array) -> tuple[Array, Array]:
    """Return whole numbers around zero, and the scale of each of their columns."""
    directions, _, columns = quantised.shape
    scale, zero_point = (a.reshape(directions, -1) for a in (scale, zero_point))
    whole = quantised.astype("int32") - zero_point.astype("int32")[:, None]
    scales = np.broadcast_to(scale.astype("float32"), (directions, columns))
    return whole, np.ascontiguousarray(scales)
