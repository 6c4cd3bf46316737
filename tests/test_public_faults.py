"""Inputs on which TVM 0.27 or other compilers are publicly known to be wrong are right here.

What was reported: NaN lost in maxima, half precision that overflows in a norm, masked rows
of attention, batch norms folded against their attributes, overlapping matches, integer
types, and Relax modules that are awkward but well formed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import tvmfuse
from tests.passes.canonical import normalised, statistics
from tvmfuse import testing
from tvmfuse._pipeline import pipeline
from tvmfuse._tvm import relax, tvm
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.targets import resolve

NAN = np.nan
HOLES = np.array([[NAN, -1.5, 2.5, NAN], [0.25, NAN, -3.0, 7.0]], "float32")
OTHERS = np.array([[1.0, NAN, NAN, -9.0], [NAN, 2.0, 3.0, NAN]], "float32")
LARGEST = np.finfo("float32").max


def model(text: str, *, opset: int = 20) -> onnx.ModelProto:
    """Return a model from its inputs, outputs and nodes in ONNX's own notation."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> graph {text}')


def run(source: Any, *arrays: Any) -> list[Any]:
    return tvmfuse.Session.of(tvmfuse.compile(source)).run(
        None, dict(zip((item.name for item in source.graph.input), arrays, strict=True))
    )


def reference(source: onnx.ModelProto, *arrays: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source.SerializeToString(), options)
    names = [item.name for item in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = Relu(x)", np.where(np.isnan(HOLES), NAN, np.maximum(HOLES, 0))),
        ("s = Add(x, x) y = Relu(s)", np.where(np.isnan(HOLES), NAN, np.maximum(HOLES, 0) * 2)),
        ("y = Max(x, z)", np.maximum(HOLES, OTHERS)),
        ("y = Min(x, z)", np.minimum(HOLES, OTHERS)),
    ],
)
def test_nan_stays(nodes: str, expected: Any) -> None:
    source = model(f"(float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {{ {nodes} }}")
    np.testing.assert_array_equal(run(source, HOLES, OTHERS)[0], expected.astype("float32"))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_nan_stays_in_an_extreme_of_a_row(operator: str) -> None:
    source = model(
        "(float[2, 4] x) => (float[2] y) <int64[1] axis = {1}> "
        f"{{ y = {operator}<keepdims = 0>(x, axis) }}"
    )
    assert np.isnan(run(source, HOLES)[0]).all()


NORM = "q = Mul(c, c) m = ReduceMean<keepdims = 1>(q, axis) a = Add(m, tiny) s = Sqrt(a)"


@pytest.mark.parametrize("division", ["d = Div(c, s)", "r = Reciprocal(s) d = Mul(c, r)"])
def test_half_precision_norm_of_large_numbers_does_not_overflow(division: str) -> None:
    source = model(
        "(float16[2, 256] x) => (float16[2, 256] y) <int64[1] axis = {-1}, float tiny = {1e-6}> "
        f"{{ c = Cast<to = 1>(x) {NORM} {division} y = Cast<to = 10>(d) }}"
    )
    x = testing.random_array((2, 256), "float16", spread=400.0)
    exact = x.astype(np.float64)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    testing.assert_close(run(source, x)[0], exact)


def scores_of(mask: Any) -> onnx.ModelProto:
    source = model(
        "(float[1, 2, 4, 8] q) => (float[1, 2, 4, 8] y) { k = Transpose<perm = [0, 1, 3, 2]>(q) "
        "s = MatMul(q, k) m = Add(s, mask) p = Softmax<axis = -1>(m) y = MatMul(p, q) }"
    )
    source.graph.initializer.append(onnx.numpy_helper.from_array(mask, "mask"))
    return source


@pytest.mark.parametrize("lowest", [-LARGEST, -np.inf])
def test_rows_masked_throughout_are_those_of_a_softmax(lowest: float) -> None:
    mask = np.zeros((4, 4), "float32")
    mask[2] = lowest
    mask[0, 1] = -np.inf
    q = testing.random_array((1, 2, 4, 8), "float32")
    source = scores_of(mask)
    testing.assert_close(run(source, q)[0], reference(source, q)[0])


def test_rows_masked_throughout_are_zero_in_the_operator_of_onnx() -> None:
    source = model(
        "(float[1, 2, 4, 8] q, float[4, 4] m) => (float[1, 2, 4, 8] y) "
        "{ y = Attention(q, q, q, m) }",
        opset=23,
    )
    source.ir_version = 11
    mask = np.zeros((4, 4), "float32")
    mask[2] = -np.inf
    found = run(source, testing.random_array((1, 2, 4, 8), "float32"), mask)[0]
    assert (found[:, :, 2] == 0).all()
    assert np.isfinite(found).all()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "depthwise": {"groups": 6},
    "variance zero": {"variance": [0, 1e-12, 1, 1e-6, 0, 4]},
    "gain zero and negative": {"gamma": [0, -1.5, 2, -0.0, 1e-20, -3]},
    "channels last": {"is_last": True},
    "training": {"training": True},
    "gain unused": {"scale": False},
    "offset unused": {"center": False},
    "half precision": {"dtype": "float16"},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_batch_norm_is_folded_by_its_attributes(variant: dict[str, Any]) -> None:
    given = {name: variant[name] for name in ("gamma", "variance") if name in variant}
    attrs = {name: variant[name] for name in ("training", "scale", "center") if name in variant}
    groups, is_last = variant.get("groups", 1), variant.get("is_last", False)
    layout, axis = ("NHWC", 3) if is_last else ("NCHW", 1)
    dtype = variant.get("dtype", "float32")
    numbers = statistics(6, dtype, **given)

    def graph(op: Any, x: Any, weight: Any) -> Any:
        y = op.nn.conv2d(x, weight, padding=1, groups=groups, data_layout=layout)
        return normalised(op, y, numbers, **{"axis": axis, **attrs})

    channels = 6 if groups > 1 else 3
    shape = (2, 6, 6, channels) if is_last else (2, channels, 6, 6)
    weight = Operand((6, channels // groups, 3, 3), is_constant=True)
    mod, values = testing.build(Case("", {"x": Operand(shape), "weight": weight}), graph, dtype)
    (expected,) = testing.run(testing.compile_plainly(mod), [values["x"]])
    (found,) = testing.run(compiled(mod), [values["x"]])
    testing.assert_close(found, expected)


MATCHES = {
    "also an output": "c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(c) z = Identity(c)",
    "read by two": "c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) y = Mul(r, c) z = Neg(r)",
    "two convolutions": "c = Conv<pads = [1, 1, 1, 1]>(x, w) d = Conv<pads = [1, 1, 1, 1]>(x, w) "
    "a = Add(c, d) y = Relu(a) z = Neg(a)",
    "added to itself": "c = Conv<pads = [1, 1, 1, 1]>(x, w) a = Add(c, c) y = Relu(a) z = Neg(y)",
    "added to what depends on it": "c = Conv<pads = [1, 1, 1, 1]>(x, w) s = Sigmoid(c) "
    "a = Add(c, s) y = Relu(a) z = Neg(y)",
    "swapped": "c = Conv<pads = [1, 1, 1, 1]>(x, w) s = Abs(c) a = Add(s, c) "
    "y = Relu(a) z = Neg(y)",
}


@pytest.mark.parametrize("nodes", MATCHES.values(), ids=MATCHES)
def test_overlapping_and_adjacent_matches(nodes: str) -> None:
    shapes = "(float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y, float[1, 4, 6, 6] z)"
    source = model(f"{shapes} {{ {nodes} }}")
    weight = testing.random_array((4, 3, 3, 3), "float32", seed=1)
    source.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    x = testing.random_array((1, 3, 6, 6), "float32")
    for found, exact in zip(run(source, x), reference(source, x), strict=True):
        testing.assert_close(found, exact)


INT32 = np.array([7, -7, 7, -7, 2**31 - 1, -5], "int32")
DIVISORS = np.array([2, 2, -2, -2, -1, 3], "int32")
INT8 = np.array([127, -128, 100, -100, 50, 1], "int8")
UINT8 = np.array([0, 1, 255, 128, 7, 200], "uint8")
UINT64 = np.array([0, 2**63, 2**64 - 1, 5, 9, 2**63 - 1], "uint64")
FLOATS = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998], "float32")
INTEGERS: dict[str, tuple[str, list[Any]]] = {
    "division": ("(int32[6] a, int32[6] b) => (int32[6] y) { y = Div(a, b) }", [INT32, DIVISORS]),
    "division by two": ("(int32[6] a) => (int32[6] y) <int32 k = {2}> { y = Div(a, k) }", [INT32]),
    "modulo": ("(int32[6] a, int32[6] b) => (int32[6] y) { y = Mod(a, b) }", [INT32, DIVISORS]),
    "remainder": (
        "(int64[6] a, int64[6] b) => (int64[6] y) { y = Mod<fmod = 1>(a, b) }",
        [INT32.astype("int64"), DIVISORS.astype("int64")],
    ),
    "int8 wraps": ("(int8[6] a) => (int8[6] y) { y = Add(a, a) }", [INT8]),
    "int32 wraps": ("(int32[6] a) => (int32[6] y) { q = Mul(a, a) y = Add(q, a) }", [INT32]),
    "uint8 wraps": (
        "(uint8[6] a) => (uint8[6] y) <uint8[6] z = {0, 0, 0, 0, 0, 0}> { y = Sub(z, a) }",
        [UINT8],
    ),
    "uint64 division": (
        "(uint64[6] a) => (uint64[6] y) <uint64 k = {3}> { y = Div(a, k) }",
        [UINT64],
    ),
    "shift": (
        '(uint8[6] a) => (uint8[6] y) <uint8 k = {3}> { y = BitShift<direction = "RIGHT">(a, k) }',
        [UINT8],
    ),
    "narrowed": (
        "(int32[6] a) => (uint8[6] y) { y = Cast<to = 2>(a) }",
        [np.array([300, -1, 255, 256, 7, -300], "int32")],
    ),
    "truth": (
        "(float[6] a) => (bool[6] y) { y = Cast<to = 9>(a) }",
        [np.array([0.0, -0.0, 0.25, -3, NAN, np.inf], "float32")],
    ),
    "absolute": ("(int8[6] a) => (int8[6] y) { y = Abs(a) }", [INT8]),
    "mean": (
        "(int32[6] a) => (int32 y) { y = ReduceMean<keepdims = 0>(a) }",
        [np.array([-7, 2, 3, 4, 5, -6], "int32")],
    ),
    "power": (
        "(int32[6] a) => (int32[6] y) <int64 k = {3}> { y = Pow(a, k) }",
        [np.array([3, -3, 2, 0, 1, 1000], "int32")],
    ),
    "negated": (
        "(int64[6] a) => (int64[6] y) { y = Neg(a) }",
        [np.array([-(2**63), 1, -1, 0, 5, 6], "int64")],
    ),
    "quantised": (
        "(float[6] a) => (uint8[6] y) <float s = {1}, uint8 z = {128}> "
        "{ y = QuantizeLinear(a, s, z) }",
        [np.array([1e9, -1e9, 2.5, 3.5, 0.49, -0.5], "float32")],
    ),
    "rounded to even": ("(float[6] a) => (float[6] y) { y = Round(a) }", [FLOATS]),
}


@pytest.mark.parametrize(("text", "arrays"), INTEGERS.values(), ids=INTEGERS)
def test_integer_types(text: str, arrays: list[Any]) -> None:
    source = model(text)
    (found,), (exact,) = run(source, *arrays), reference(source, *arrays)
    assert found.dtype == exact.dtype
    np.testing.assert_array_equal(found, exact)


def compiled(mod: Any) -> Any:
    target = resolve("cpu")
    return tvm.compile(mod, target.tvm(), relax_pipeline=pipeline(target))


def function(shapes: list[tuple[int, ...]], body: Any, dtype: str = "float32") -> Any:
    """Return a module whose ``main`` computes ``body(block, *parameters)``."""
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    block = relax.BlockBuilder()
    with block.function("main", params):
        with block.dataflow():
            results = [block.emit_output(item) for item in body(block, *params)]
        block.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return block.get()


def test_a_cast_alias_stays_alive() -> None:
    def body(block: Any, x: Any) -> Any:
        tripled = block.emit(relax.op.multiply(x, relax.const(3.0)))
        alias = block.match_cast(tripled, relax.TensorType((6, 5), "float32"))
        tenfold = block.emit(relax.op.multiply(x, relax.const(10.0)))
        return [relax.op.subtract(alias, relax.op.add(tenfold, tenfold))]

    x = testing.random_array((6, 5), "float32")
    (found,) = testing.run(compiled(function([(6, 5)], body)), [x])
    testing.assert_close(found, 3.0 * x.astype("f8") - 20.0 * x)


def test_a_nested_tuple_is_taken_apart() -> None:
    def body(block: Any, x: Any, z: Any) -> Any:
        total, product = block.emit(relax.op.add(x, z)), block.emit(relax.op.multiply(x, z))
        nested = block.emit(relax.Tuple([total, relax.Tuple([product, x])]))
        inner = block.emit(relax.TupleGetItem(nested, 1))
        return [relax.op.nn.relu(block.emit(relax.TupleGetItem(inner, 0)))]

    x, z = (testing.random_array((4,), "float32", seed=seed) for seed in (0, 1))
    (found,) = testing.run(compiled(function([(4,), (4,)], body)), [x, z])
    testing.assert_close(found, np.maximum(x.astype("f8") * z, 0))


def test_two_views_of_one_tensor_are_not_overwritten() -> None:
    def body(block: Any, x: Any) -> Any:
        y = block.emit(relax.op.add(x, relax.const(1.0)))
        a, b = (block.emit(relax.op.reshape(y, (1, 6))) for _ in range(2))
        return [relax.op.concat([block.emit(relax.op.add(a, b)), b], axis=0)]

    x = np.arange(6, dtype="float32")
    (found,) = testing.run(compiled(function([(6,)], body)), [x])
    testing.assert_close(found, np.stack([2 * (x + 1), x + 1]).astype("f8"))


def test_a_sum_and_what_was_summed_are_results_too() -> None:
    def body(block: Any, x: Any) -> Any:
        powers = block.emit(relax.op.exp(x))
        total = block.emit(relax.op.sum(powers, axis=[1], keepdims=True))
        parts = block.emit(relax.op.divide(powers, total))
        return [powers, total, relax.op.nn.relu(parts)]

    x = testing.random_array((4, 8), "float32")
    exact = np.exp(x.astype("f8"))
    total = exact.sum(1, keepdims=True)
    found = testing.run(compiled(function([(4, 8)], body)), [x])
    for actual, expected in zip(found, (exact, total, exact / total), strict=True):
        testing.assert_close(actual, expected)


def test_an_argument_and_an_alias_are_results() -> None:
    def body(block: Any, x: Any) -> Any:
        doubled = block.emit(relax.op.add(x, x))
        return [x, doubled, relax.op.reshape(doubled, (2, 2))]

    x = testing.random_array((4,), "float32")
    found = testing.run(compiled(function([(4,)], body)), [x])
    for actual, expected in zip(found, (x, 2 * x, (2 * x).reshape(2, 2)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_rows_are_taken_after_a_sum() -> None:
    def body(block: Any, x: Any) -> Any:
        rows = relax.const(np.array([5, 2], "int32"))
        return [relax.op.take(block.emit(relax.op.add(x, relax.const(1.0, "float16"))), rows, 0)]

    x = testing.random_array((7, 3), "float16")
    (found,) = testing.run(compiled(function([(7, 3)], body, "float16")), [x])
    np.testing.assert_array_equal(found, (x + np.float16(1))[[5, 2]])


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_scattering_stands_by_itself_in_a_chain(dtype: str) -> None:
    source = model(
        f"({dtype}[7, 11] x, int64[2, 11] i, {dtype}[2, 11] u) => ({dtype}[7, 11] y) "
        "{ a = Mul(x, x) b = ScatterElements<axis = 0>(a, i, u) y = Relu(b) }"
    )
    kind = {"float": "float32"}.get(dtype, dtype)
    x, u = (testing.random_array(shape, kind, seed=shape[0]) for shape in ((7, 11), (2, 11)))
    i = np.array([np.arange(11) % 7, np.arange(11) % 7 - 6])
    testing.assert_close(run(source, x, i, u)[0], reference(source, x, i, u)[0])


def test_constants_divided_by_zero_are_infinite_or_nan() -> None:
    source = model(
        "(float[3] x) => (float[3] y) <float[3] a = {-1.0, 0.0, 1.0}, float zero = {0.0}> "
        "{ b = Div(a, zero) y = Add(x, b) }"
    )
    (found,) = run(source, np.ones(3, "float32"))
    np.testing.assert_array_equal(found, [-np.inf, NAN, np.inf])


@pytest.mark.parametrize(
    ("pads", "options"),
    [("1, 1, 1, 1", ""), ("1, 0, 1, 0", ""), ("1, 1, 1, 1", ", count_include_pad = 1")],
)
def test_pooling_in_ceil_mode_gives_no_result_of_padding_alone(pads: str, options: str) -> None:
    # A stride of 2 over 9 and 9: ONNX before opset 22 counts 6 results, there are 5.
    about = f"kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1, pads = [{pads}]"
    source = model(
        "(float[1, 3, 9, 9] x) => (float[a, b, c, d] y, float[e, f, g, h] z) "
        f"{{ y = MaxPool<{about}>(x) m = AveragePool<{about}{options}>(x) z = Relu(m) }}",
        opset=17,
    )
    x = testing.random_array((1, 3, 9, 9), "float32")
    for found, expected in zip(run(source, x), reference(source, x), strict=True):
        testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "graph",
    [
        "(float[2,0] x, float[2,1] z) => (float[2,0] y) { y = Max(x, z) }",
        "(float[2,0] x) => (float[2,0] y) { y = Hardmax<axis=1>(x) }",
        "(float[2,0] x) => (float[2,0] y) <int64 a = {1}> { y = CumSum(x, a) }",
        "(float[2,1] x) => (float[2,0] y) <int64[2] s = {2,0}> { y = Expand(x, s) }",
        "(float[0,4,2,2] x) => (float[0,1,4,4] y) { y = DepthToSpace<blocksize=2>(x) }",
        "(float[2,5] x) => (float[2,0] y, int64[2,0] i) <int64[1] k = {0}> { y, i = TopK(x, k) }",
        "(float[2,0] x) => (float[2,4] y) <float[0,4] w = {}> { y = MatMul(x, w) }",
    ],
)
def test_tensors_without_elements_come_out_as_in_onnx_runtime(graph: str) -> None:
    source = model(graph)
    arrays = [
        np.ones([dim.dim_value for dim in item.type.tensor_type.shape.dim], "float32")
        for item in source.graph.input
    ]
    for found, expected in zip(run(source, *arrays), reference(source, *arrays), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)
