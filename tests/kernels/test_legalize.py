"""Operators become kernels of our families where these fit, and TVM's own where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests import graphs
from tests.kernels.contract import MACHINES
from tests.kernels.test_window import patches
from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.kernels import legalize
from tvmfuse.kernels.image import Window
from tvmfuse.patterns.references import layer_norm, rms_norm

op = relax.op


@dataclass(frozen=True)
class Case:
    """An operator, its operands, the result in NumPy, and the families of its kernels."""

    name: str
    graph: Callable[..., Any]
    reference: Callable[..., Any]
    operands: tuple[Any, ...]
    families: tuple[str, ...] = ("elementwise",)


def floats(*shape: int, seed: int = 0) -> Any:
    return testing.random_array(shape, "float32", seed=seed)


def affine(x: Any, gamma: Any, beta: Any, **options: bool) -> Any:
    return op.nn.layer_norm(x, gamma, beta, [-1], 1e-5, **options)


def over_two_axes(x: Any, gamma: Any, beta: Any) -> Any:
    flat = layer_norm(x.reshape(3, -1), gamma.ravel(), beta.ravel())
    return flat.reshape(x.shape)


X, GAMMA, BETA = floats(4, 33), floats(33, seed=1), floats(33, seed=2)
ROWS = ("reduction",)

CASES = [
    Case("gelu", op.nn.gelu, lambda x: x * special.ndtr(x), (X,)),
    Case(
        "gelu by tanh",
        op.nn.gelu_tanh,
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        (X,),
    ),
    Case("silu", op.nn.silu, lambda x: x * special.expit(x), (X,)),
    Case("erf", op.erf, special.erf, (X,)),
    Case("clip", lambda x: op.clip(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), (X,)),
    Case("leaky relu", lambda x: op.nn.leakyrelu(x, 0.1), lambda x: np.maximum(x, x / 10), (X,)),
    Case("maximum stretches", op.maximum, np.maximum, (floats(3, 1, 9), floats(5, 1, seed=1))),
    Case("minimum with a number", op.minimum, np.minimum, (X, floats(seed=3))),
    Case("layer norm", affine, layer_norm, (X, GAMMA, BETA), ROWS),
    Case(
        "layer norm without scale",
        lambda *x: affine(*x, scale=False),
        lambda x, g, b: layer_norm(x, 1, b),
        (X, GAMMA, BETA),
        ROWS,
    ),
    Case(
        "layer norm without shift",
        lambda *x: affine(*x, center=False),
        lambda x, g, b: layer_norm(x, g, 0),
        (X, GAMMA, BETA),
        ROWS,
    ),
    Case(
        "layer norm over two axes",
        lambda *x: op.nn.layer_norm(*x, [-2, -1], 1e-5),
        over_two_axes,
        (floats(3, 5, 7), floats(5, 7, seed=1), floats(5, 7, seed=2)),
        ROWS,
    ),
    Case("rms norm", lambda *x: op.nn.rms_norm(*x, [-1], 1e-5), rms_norm, (X, GAMMA), ROWS),
    Case("matmul", op.matmul, np.matmul, (floats(3, 7, 16), floats(16, 9)), ("gemm",)),
    Case("vector by matrix", op.matmul, np.matmul, (floats(16), floats(16, 9)), ("generic",)),
    Case("matrix by vector", op.matmul, np.matmul, (floats(7, 16), floats(16)), ("generic",)),
    Case("sums of nothing", op.matmul, np.matmul, (floats(3, 0), floats(0, 4)), ()),
    Case("sum of all", op.sum, np.sum, (X,), ("reduction",)),
    Case(
        "sum of integers",
        lambda x: op.sum(x, [1]),
        lambda x: x.sum(1),
        (testing.random_array((4, 33), "int32"),),
        ("generic",),
    ),
    Case("relu of integers", op.nn.relu, lambda x: np.maximum(x, 0), (X.astype("int32"),)),
    Case(
        "mixed element types",
        lambda a, b: op.matmul(a, b, "float32"),
        np.matmul,
        (X.astype("float16"), floats(33, 5).astype("float16")),
        ("gemm",),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_equals_numpy_by_its_family(case: Case) -> None:
    compiled = graphs.compiled(graphs.module(case.graph, *case.operands))
    (found,) = graphs.run(compiled, *case.operands)
    exact = case.reference(*(x.astype(np.float64) for x in case.operands))
    testing.assert_close(found, np.asarray(exact))
    assert tuple(kernel.family for kernel in compiled.kernels) == case.families


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 2))])
def test_max_pooling_of_plain_images_with_every_option(
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, ...],
    *,
    ceil_mode: bool,
) -> None:
    def graph(x: Any) -> Any:
        return op.nn.max_pool2d(x, (3, 2), strides, padding, dilation, ceil_mode)

    x = floats(2, 3, 9, 10)
    (found,) = graphs.run(graphs.module(graph, x), x)
    # Rounding up is more padding at the end.
    window = Window((3, 2), strides, padding, dilation)
    height, width = window.span(*found.shape[2:])
    bottom, right = (
        max(padding[2], height - 9 - padding[0]),
        max(padding[3], width - 10 - padding[1]),
    )
    grown = Window((3, 2), strides, (*padding[:2], bottom, right), dilation)
    exact = patches(x.astype(np.float64), grown, -np.inf).max(-1)
    testing.assert_close(found, exact[:, :, : found.shape[2], : found.shape[3]])


@pytest.mark.parametrize(
    ("function", "shape"), [(op.nn.max_pool1d, (2, 3, 11)), (op.nn.max_pool3d, (1, 2, 5, 6, 7))]
)
def test_max_pooling_along_one_and_three_axes(function: Any, shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    rank = len(shape) - 2
    (found,) = graphs.run(graphs.module(lambda x: function(x, [2] * rank, [2] * rank), x), x)
    exact = x.astype(np.float64)
    for axis in range(2, len(shape)):
        size = shape[axis] // 2 * 2
        pairs = np.take(exact, range(size), axis)
        first, second = (np.take(pairs, range(i, size, 2), axis) for i in (0, 1))
        exact = np.maximum(first, second)
    testing.assert_close(found, exact)


def test_symbolic_extents_fall_back_to_tvms_own_rule() -> None:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 33), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.nn.softmax(x, -1)))
    rules = legalize.rules(MACHINES["8 lanes"])
    lowered = relax.transform.LegalizeOps(dict(rules))(builder.get())
    target = tvm.target.Target("llvm")
    machine = relax.VirtualMachine(
        tvm.compile(lowered, target, relax_pipeline=relax.get_default_pipeline(target)), tvm.cpu()
    )
    for rows in (1, 5):
        values = floats(rows, 33)
        found = machine["main"](tvm.runtime.tensor(values)).numpy()
        testing.assert_close(found, special.softmax(values.astype(np.float64), -1))


def test_every_rule_names_an_operator_of_relax() -> None:
    for name in legalize.rules(MACHINES["8 lanes"]):
        assert tvm.ir.Op.get(name).name == name
