"""NaN, infinities and values far from zero come out where NumPy has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES
from tests.kernels.test_window import patches
from tvmfuse import testing
from tvmfuse._pipeline import pipeline
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.targets import resolve

NAN, INF = np.nan, np.inf

op = relax.op

X = np.array([[NAN, -1.5, 2.5, NAN], [0.25, NAN, -3.0, 7.0]], "float32")
Z = np.array([[1.0, NAN, NAN, -9.0], [NAN, 2.0, 3.0, NAN]], "float32")
INFINITE = np.array([[INF, -INF, NAN, 0.0], [-0.0, 3e38, -3e38, 1e-42]], "float32")

# Longer than any vector, so that lanes, tail and the last step each meet a NaN.
ROWS = testing.random_array((6, 77), "float32")
for row, column in enumerate((0, 31, 64, 76, 5)):
    ROWS[row, column] = NAN  # the last row has none
INFINITE_ROWS = testing.random_array((4, 77), "float32")
INFINITE_ROWS[0, 3], INFINITE_ROWS[1, 70], INFINITE_ROWS[2] = INF, -INF, -INF

IMAGE = testing.random_array((1, 16, 6, 7), "float32")
IMAGE[0, 3, 0, 0], IMAGE[0, 9, 3, 4], IMAGE[0, 5, 5, 6] = NAN, NAN, -INF
IMAGE[0, 7] = -INF


@dataclass(frozen=True)
class Case:
    """An operator or chain, the operands and the result in NumPy."""

    name: str
    graph: Callable[..., Any]
    reference: Callable[..., Any]
    operands: tuple[Any, ...]


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x: Any) -> Any:
    distance = x - x.mean(-1, keepdims=True)
    return distance / np.sqrt((distance**2).mean(-1, keepdims=True) + 1e-5)


def gelu(x: Any) -> Any:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def max_pool(x: Any) -> Any:
    return patches(x, Window((3, 3), (2, 2), (1, 1, 1, 1)), -INF).max(-1)


def normalised(x: Any) -> Any:
    ones, zeros = (relax.const(np.full(77, v, "float32")) for v in (1, 0))
    return op.nn.layer_norm(x, ones, zeros, [-1], 1e-5)


def pooled(x: Any) -> Any:
    """A pooling that works on blocks, after a convolution that changes nothing."""
    ones = relax.const(np.ones((16, 1, 1, 1), "float32"))
    return op.nn.max_pool2d(op.nn.conv2d(x, ones, groups=16), (3, 3), (2, 2), (1, 1))


CASES = [
    *(
        Case(f"{name}, {kind}", graph, reference, (x,))
        for kind, x in {"NaN": X, "infinite": INFINITE}.items()
        for name, graph, reference in [
            ("relu", op.nn.relu, lambda x: np.maximum(x, 0)),
            ("clip", lambda x: op.clip(x, -1.0, 1.0), lambda x: np.clip(x, -1, 1)),
            ("leaky relu", lambda x: op.nn.leakyrelu(x, 0.5), lambda x: np.where(x < 0, x / 2, x)),
            ("exp", op.exp, np.exp),
            ("sigmoid", op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
            ("tanh", op.tanh, np.tanh),
        ]
    ),
    Case("add, relu", lambda x: op.nn.relu(op.add(x, x)), lambda x: np.maximum(2 * x, 0), (X,)),
    Case("maximum", op.maximum, np.maximum, (X, Z)),
    Case("minimum", op.minimum, np.minimum, (X, Z)),
    *(
        Case(f"{name} of rows, {kind}", graph, reference, (x,))
        for kind, x in {"NaN": ROWS, "infinite": INFINITE_ROWS}.items()
        for name, graph, reference in [
            ("max", lambda x: op.max(x, [1]), lambda x: x.max(1)),
            ("min", lambda x: op.min(x, [1]), lambda x: x.min(1)),
            ("sum", lambda x: op.sum(x, [1]), lambda x: x.sum(1)),
            ("max of columns", lambda x: op.max(x, [0]), lambda x: x.max(0)),
            ("softmax", lambda x: op.nn.softmax(x, -1), softmax),
            ("log softmax", lambda x: op.nn.log_softmax(x, -1), lambda x: np.log(softmax(x))),
            ("layer norm", normalised, layer_norm),
        ]
    ),
    Case("max pool", lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), max_pool, (IMAGE,)),
    Case("max pool over blocks", pooled, max_pool, (IMAGE,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_special_values_are_where_numpy_has_them(case: Case) -> None:
    (found,) = graphs.run(graphs.module(case.graph, *case.operands), *case.operands)
    with np.errstate(all="ignore"):
        expected = case.reference(*(x.astype(np.float64) for x in case.operands))
    testing.assert_close(found, expected)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("length", [1, 15, 100, 768])
@pytest.mark.parametrize("offset", [3e5, -3e5])
def test_layer_norm_keeps_its_digits_far_from_zero(
    offset: float, length: int, machine: Machine
) -> None:
    x = (offset + testing.random_array((8, length), "float32", spread=2.0)).astype("float32")
    ones, zeros = np.ones(length, "float32"), np.zeros(length, "float32")
    mod = graphs.module(lambda *x: op.nn.layer_norm(*x, [-1], 1e-5), x, ones, zeros)
    (found,) = graphs.run(mod, x, ones, zeros, target=graphs.on(machine))
    # Neighbouring floats are 1/32 apart there, which is what the mean is rounded to.
    deviation = x.astype(np.float64).std(-1, keepdims=True)
    limit = (1 / 64) / np.sqrt(deviation**2 + 1e-5)
    assert (np.abs(found - layer_norm(x.astype(np.float64))) <= limit + 1e-5).all()


@pytest.mark.parametrize(
    ("graph", "reference", "offset"),
    [
        (lambda x: op.mean(x, [1]), lambda x: x.mean(1), 200),
        (lambda x: op.mean(x, [0, 1]), lambda x: x.mean(), 200),
        (lambda x: op.max(x, [1]), lambda x: x.max(1), 200),
        (lambda x: op.nn.softmax(x, 1), softmax, 200),
        (lambda x: op.matmul(x, op.permute_dims(x)), lambda x: x @ x.T, 0),
        (op.nn.gelu, gelu, 0),
    ],
    ids=["mean", "mean of all", "max", "softmax", "matmul", "gelu"],
)
def test_half_precision_is_computed_in_float32(graph: Any, reference: Any, offset: int) -> None:
    # The sum of 1,000 numbers around 200 is beyond the largest half-precision number.
    x = (offset + testing.random_array((4, 1000), "float32")).astype("float16")
    (found,) = graphs.run(graphs.module(graph, x), x)
    assert found.dtype == np.float16
    exact = np.asarray(reference(x.astype(np.float64)))
    # Rounded once, at the end.
    unit = np.finfo("float16").eps
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=unit, atol=unit * 1e-3)


CHOICES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (lambda x, y: op.nn.relu(x), lambda x, y: np.maximum(x, 0)),
    "leaky relu": (
        lambda x, y: op.nn.leakyrelu(x, 0.5),
        lambda x, y: np.where(x < 0, x / 2, x),
    ),
    "clip": (lambda x, y: op.clip(x, -1.0, 1.0), lambda x, y: np.clip(x, -1, 1)),
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
    "max of rows": (lambda x, y: op.max(x, [1]), lambda x, y: x.max(1)),
    "min of columns": (
        lambda x, y: op.min(x, [0], keepdims=True),
        lambda x, y: x.min(0, keepdims=True),
    ),
    "max of all": (lambda x, y: op.max(x), lambda x, y: x.max()),
}


def test_choices_keep_nan_in_float64(subtests: pytest.Subtests) -> None:
    x, y = X.astype("float64"), Z.astype("float64")
    x[0, 2] += 1e-12  # lost in float32
    mod = graphs.module(lambda x, y: [graph(x, y) for graph, _ in CHOICES.values()], x, y)
    with np.errstate(all="ignore"):
        for name, found in zip(CHOICES, graphs.run(mod, x, y), strict=True):
            with subtests.test(name):
                assert found.dtype == np.float64
                np.testing.assert_array_equal(found, CHOICES[name][1](x, y))
    image = np.concatenate([x, y])[None]
    mod = graphs.module(lambda x: op.nn.max_pool1d(x, 2, 2), image)
    (found,) = graphs.run(mod, image)
    np.testing.assert_array_equal(found, np.maximum(image[..., ::2], image[..., 1::2]))


def test_choices_keep_nan_with_symbolic_extents(subtests: pytest.Subtests) -> None:
    builder, kind = relax.BlockBuilder(), relax.TensorType((tirx.Var("n", "int64"), 4), "float32")
    params = [relax.Var(name, kind) for name in "xy"]
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(graph(*params)) for graph, _ in CHOICES.values()]
        builder.emit_func_output(relax.Tuple(results))
    built = tvm.compile(builder.get(), resolve("cpu").tvm(), relax_pipeline=pipeline())
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    outputs = [found.numpy() for found in main(tvm.runtime.tensor(X), tvm.runtime.tensor(Z))]
    with np.errstate(all="ignore"):
        for name, found in zip(CHOICES, outputs, strict=True):
            with subtests.test(name):
                testing.assert_close(found, CHOICES[name][1](X, Z).astype(np.float64))
