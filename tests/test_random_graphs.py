"""Whatever graph comes, all stages together agree with NumPy, fused and not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import graphs
from tests.kernels.contract import MACHINES
from tests.kernels.test_window import patches
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.kernels.image import Window
from tvmfuse.patterns.references import conv2d, softmax

op = relax.op
Array = np.ndarray[Any, Any]

IMAGE = (1, 12, 6, 5)
MAX_CHANNELS = 48


class Value(NamedTuple):
    """A value of a random graph: in Relax, and in float64."""

    expr: Any
    array: Array


Apply = Callable[[Value, Value, int], Value]


def unary(graph: Callable[[Any], Any], reference: Callable[[Array], Array]) -> Apply:
    return lambda x, _, __: Value(graph(x.expr), reference(x.array))


def binary(graph: Callable[..., Any], reference: Callable[..., Array]) -> Apply:
    def apply(x: Value, y: Value, _seed: int) -> Value:
        try:
            np.broadcast_shapes(x.array.shape, y.array.shape)
        except ValueError:
            y = x
        return Value(graph(x.expr, y.expr), reference(x.array, y.array))

    return apply


def convolution(filters: int, kernel: int, *, is_depthwise: bool = False, stride: int = 1) -> Apply:
    def apply(x: Value, _: Value, seed: int) -> Value:
        channels = x.array.shape[1]
        out = channels if is_depthwise else filters
        shape = (out, 1 if is_depthwise else channels, kernel, kernel)
        weight = testing.random_array(shape, "float32", seed=seed, spread=0.5 / kernel)
        options: dict[str, Any] = {
            "strides": (stride, stride),
            "padding": (kernel // 2,) * 4,
            "groups": channels if is_depthwise else 1,
        }
        return Value(
            op.nn.conv2d(x.expr, relax.const(weight), **options),
            conv2d(x.array, weight.astype(np.float64), **options),
        )

    return apply


def pooling(name: str, reference: Callable[[Array], Array], fill: float) -> Apply:
    window = Window((3, 3), padding=(1, 1, 1, 1))

    def apply(x: Value, _: Value, __: int) -> Value:
        graph = getattr(op.nn, name)(x.expr, (3, 3), padding=1, count_include_pad=True)
        return Value(graph, reference(patches(x.array, window, fill)))

    return apply


def linear(x: Value, _: Value, seed: int) -> Value:
    width = x.array.shape[-1]
    weight = testing.random_array((width, width), "float32", seed=seed, spread=width**-0.5)
    return Value(op.matmul(x.expr, relax.const(weight)), x.array @ weight.astype(np.float64))


def scores(x: Value, _: Value, __: int) -> Value:
    graph = op.matmul(x.expr, op.permute_dims(x.expr, [0, 1, 3, 2]))
    scale = x.array.shape[-1] ** -0.5
    array = x.array @ x.array.swapaxes(2, 3) * scale
    return Value(op.multiply(graph, relax.const(scale, "float32")), array)


def biased(x: Value, _: Value, seed: int) -> Value:
    bias = testing.random_array((x.array.shape[1], 1, 1), "float32", seed=seed)
    return Value(op.add(x.expr, relax.const(bias)), x.array + bias)


def joined(x: Value, y: Value, _: int) -> Value:
    fits = x.array.shape[::2] == y.array.shape[::2] and x.array.shape[3] == y.array.shape[3]
    other = y if fits and x.array.shape[1] + y.array.shape[1] <= MAX_CHANNELS else None
    if other is None:
        return x
    return Value(op.concat([x.expr, other.expr], 1), np.concatenate([x.array, other.array], 1))


def normalised(x: Value, _: Value, __: int) -> Value:
    ones, zeros = (relax.const(np.full(x.array.shape[-1], v, "float32")) for v in (1, 0))
    distance = x.array - x.array.mean(-1, keepdims=True)
    array = distance / np.sqrt((distance**2).mean(-1, keepdims=True) + 0.1)
    return Value(op.nn.layer_norm(x.expr, ones, zeros, [-1], 0.1), array)


def batch_normalised(x: Value, _: Value, seed: int) -> Value:
    channels = x.array.shape[1]
    gamma, beta, mean = (
        testing.random_array((channels,), "float32", seed=seed + i) for i in range(3)
    )
    variance = 0.5 + np.abs(testing.random_array((channels,), "float32", seed=seed + 3))
    constants = [relax.const(v) for v in (gamma, beta, mean, variance)]
    graph = op.nn.batch_norm(x.expr, *constants, axis=1, epsilon=1e-3, training=False)[0]
    wide = [v.astype(np.float64)[:, None, None] for v in (gamma, beta, mean, variance)]
    return Value(graph, (x.array - wide[2]) / np.sqrt(wide[3] + 1e-3) * wide[0] + wide[1])


def flat_rows(x: Value, _: Value, __: int) -> Value:
    shape = (*x.array.shape[:2], 1, x.array.shape[2] * x.array.shape[3])
    return Value(op.reshape(x.expr, shape), x.array.reshape(shape))


OPERATORS: Mapping[str, Apply] = {
    "relu": unary(op.nn.relu, lambda x: np.maximum(x, 0)),
    "tanh": unary(op.tanh, np.tanh),
    "sigmoid": unary(op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "clip": unary(lambda x: op.clip(x, -0.5, 1.0), lambda x: np.clip(x, -0.5, 1)),
    "half": unary(lambda x: op.multiply(x, relax.const(0.5, "float32")), lambda x: x * 0.5),
    "add": binary(op.add, np.add),
    "subtract": binary(op.subtract, np.subtract),
    "multiply": binary(lambda x, y: op.multiply(op.tanh(x), y), lambda x, y: np.tanh(x) * y),
    "maximum": binary(op.maximum, np.maximum),
    "bias": biased,
    "conv 3 x 3": convolution(16, 3),
    "conv 1 x 1": convolution(12, 1),
    "conv, stride 2": convolution(8, 3, stride=2),
    "depthwise": convolution(0, 3, is_depthwise=True),
    "batch norm": batch_normalised,
    "max pool": pooling("max_pool2d", lambda p: p.max(-1), -np.inf),
    "mean pool": pooling("avg_pool2d", lambda p: p.mean(-1), 0.0),
    "mean of the image": unary(
        lambda x: op.mean(x, [2, 3], keepdims=True), lambda x: x.mean((2, 3), keepdims=True)
    ),
    "max of channels": unary(
        lambda x: op.max(x, [1], keepdims=True), lambda x: x.max(1, keepdims=True)
    ),
    "softmax": unary(lambda x: op.nn.softmax(x, -1), softmax),
    "layer norm": normalised,
    "linear": linear,
    "scores": scores,
    "transpose": unary(lambda x: op.permute_dims(x, [0, 1, 3, 2]), lambda x: x.swapaxes(2, 3)),
    "reshape": flat_rows,
    "concat": joined,
}


@dataclass(frozen=True)
class Step:
    """One operator of a random graph; operands count back from the newest value."""

    operator: str
    left: int
    right: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(sorted(OPERATORS)),
        st.sampled_from((0, 0, 0, 1, 2)),
        st.integers(0, 3),
    ),
    min_size=3,
    max_size=12,
)


def built(steps: list[Step], x: Array) -> tuple[Any, list[Array]]:
    """Build the module of a random graph, and what its two results are in float64."""
    param = relax.Var("x", relax.TensorType(x.shape, "float32"))
    builder = relax.BlockBuilder()
    values = [Value(param, x.astype(np.float64))]
    with builder.function("main", [param]):
        with builder.dataflow():
            for seed, step in enumerate(steps):
                left, right = (values[-1 - i % len(values)] for i in (step.left, step.right))
                found = OPERATORS[step.operator](left, right, 10 * seed)
                values.append(Value(builder.emit(found.expr), found.array))
            results = [values[-1], values[len(values) // 2]]
            outputs = [builder.emit_output(result.expr) for result in results]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get(), [result.array for result in results]


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STEPS, st.sampled_from(sorted(MACHINES)))
def test_random_graphs_agree_fused_unfused_and_with_numpy(steps: list[Step], name: str) -> None:
    x = testing.random_array(IMAGE, "float32")
    mod, exact = built(steps, x)
    target = graphs.on(MACHINES[name])
    for options in (None, graphs.UNFUSED):
        compiled = graphs.compiled(mod, target=target, options=options)
        for found, expected in zip(graphs.run(compiled, x), exact, strict=True):
            testing.assert_close(beside_one(found), beside_one(expected))


def beside_one(array: Array) -> Array:
    """Append a one, so that a result that cancels to nothing is measured against it."""
    return np.append(array, array.dtype.type(1))
