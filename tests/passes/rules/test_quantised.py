"""Every form of a quantised product becomes one of 8-bit integers, as ONNX Runtime computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import graphs
from tvmfuse import _pipeline
from tvmfuse._tvm import relax, tvm_ffi
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.targets import resolve

M, K, N = 9, 35, 21
RANDOM = np.random.default_rng(0)
SIGNED = RANDOM.integers(-127, 128, (K, N)).astype("int8")
UNSIGNED = RANDOM.integers(0, 256, (K, N)).astype("uint8")
PER_COLUMN = (RANDOM.random(N) * 0.01 + 0.001).astype("float32")
BIAS = RANDOM.standard_normal(N).astype("float32")
QUANTUM = np.float32(0.05)


@dataclass(frozen=True)
class Flow:
    """Nodes from ``x`` to ``y`` in text (inputs, operator, outputs) and their constants."""

    nodes: tuple[str, ...]
    constants: dict[str, Any]


ROWS = {"sx": np.float32(0.03), "zx": np.uint8(120)}
QUANTISED = ("x sx zx > QuantizeLinear > q", "q sx zx > DequantizeLinear > d")
REQUANTISED = ("r sy zy > QuantizeLinear > qy", "qy sy zy > DequantizeLinear > y")
RESULT = {"sy": QUANTUM, "zy": np.uint8(3)}
FLOWS = {
    "dequantised, a scale for each column": Flow(
        (
            *QUANTISED,
            "w sw zw > DequantizeLinear axis=1 > dw",
            "d dw > MatMul > m",
            "m b > Add > a",
            "a > Relu > r",
            *REQUANTISED,
        ),
        {
            **ROWS,
            **RESULT,
            "w": SIGNED,
            "sw": PER_COLUMN,
            "zw": np.zeros(N, "int8"),
            "b": BIAS,
        },
    ),
    "linear layer, signed rows": Flow(
        (*QUANTISED, "w sw zw > DequantizeLinear axis=0 > dw", "d dw b > Gemm transB=1 > y"),
        {
            "sx": np.float32(0.03),
            "zx": np.int8(-5),
            "w": np.ascontiguousarray(SIGNED.T),
            "sw": PER_COLUMN,
            "zw": np.zeros(N, "int8"),
            "b": BIAS,
        },
    ),
    "dynamic, a weight far from its zero point": Flow(
        (
            "x > DynamicQuantizeLinear > q s z",
            "q w z zw > MatMulInteger > m",
            "m > Cast to=1 > f",
            "s sw > Mul > scale",
            "f scale > Mul > a",
            "a b > Add > y",
        ),
        {"w": UNSIGNED, "zw": np.uint8(17), "sw": np.float32(0.004), "b": BIAS},
    ),
    "QLinearMatMul": Flow(
        (
            "x sx zx > QuantizeLinear > q",
            "q sx zx w sw zw sy zy > QLinearMatMul > qy",
            *REQUANTISED[1:],
        ),
        {**ROWS, **RESULT, "w": SIGNED, "sw": np.float32(0.005), "zw": np.int8(0)},
    ),
}


def model(
    flow: Flow,
    x_shape: tuple[int, ...] = (M, K),
    y_shape: tuple[int, ...] = (M, N),
    **attributes_of_conv: Any,
) -> Any:
    nodes = []
    for line in flow.nodes:
        inputs, operator, outputs = (part.split() for part in line.split(">"))
        attributes: dict[str, Any] = {
            key: int(value) for key, value in (a.split("=") for a in operator[1:])
        }
        if operator[0] == "Conv":
            attributes |= attributes_of_conv
        nodes.append(helper.make_node(operator[0], inputs, outputs, **attributes))
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y_shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in flow.constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def products(mod: Any) -> list[Any]:
    flow = Dataflow.of("main", mod["main"])
    found = [i for i, name in enumerate(flow.operators) if name == "relax.matmul"]
    return [flow.value(i) for i in found]


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_it_becomes_a_product_of_bytes_and_is_right(flow: Flow) -> None:
    made = model(flow)
    imported = import_model(made)
    canonical = canonicalise(imported.module)
    (product,) = products(canonical)
    rows, weight = (str(arg.ty.dtype) for arg in product.args)
    assert rows in ("uint8", "int8")
    assert weight in ("int8", "int16")
    assert str(product.ty.dtype) == "int32"
    assert tvm_ffi.structural_equal(canonicalise(canonical), canonical)
    compiled = _pipeline.build(imported, resolve("cpu"))
    assert [k.family for k in compiled.kernels].count("gemm") == 1
    assert_same_steps(compiled, made, (M, K))


def assert_same_steps(compiled: Any, made: Any, shape: tuple[int, ...]) -> None:
    x = (2 * np.random.default_rng(1).standard_normal(shape)).astype("float32")
    (found,) = graphs.run(compiled, x)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    steps = np.abs(found - expected) / QUANTUM
    assert steps.max() <= 1.001  # a float32 sum may fall on the edge between two
    assert (steps > 0.01).mean() < 0.01


def test_a_scale_for_each_term_of_the_sums_stays_in_float32() -> None:
    flow = FLOWS["dequantised, a scale for each column"]
    scales = {"sw": np.full(K, 0.01, "float32"), "zw": np.zeros(K, "int8")}
    nodes = tuple(line.replace("axis=1", "axis=0") for line in flow.nodes)
    imported = import_model(model(Flow(nodes, {**flow.constants, **scales})))
    (product,) = products(canonicalise(imported.module))
    assert {str(arg.ty.dtype) for arg in product.args} == {"float32"}


def test_wide_integers_are_left_alone() -> None:
    x = relax.Var("x", relax.TensorType((4, 8), "int8"))
    block = relax.BlockBuilder()
    weight = relax.const(np.full((8, 3), 300, "int32"), "int32")
    with block.function("main", [x]):
        with block.dataflow():
            wide = block.emit(relax.op.astype(x, "int32"))
            result = block.emit_output(relax.op.matmul(wide, weight))
        block.emit_func_output(result)
    (product,) = products(canonicalise(block.get()))
    assert {str(arg.ty.dtype) for arg in product.args} == {"int32"}


CONVOLUTIONS = {
    "zero is 0": {"sx": np.float32(0.02), "zx": np.uint8(0)},
    "zero is not 0": {"sx": np.float32(0.02), "zx": np.uint8(131)},
    "signed": {"sx": np.float32(0.03), "zx": np.int8(7)},
}


@pytest.mark.parametrize("rows", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("channels", [3, 20])
def test_a_convolution_becomes_one_of_bytes_and_is_right(channels: int, rows: Any) -> None:
    assert_convolved_as_bytes((1, channels, 9, 10), (24, channels, 3, 3), rows, "conv")


GROUPED = {
    "groups": ((1, 20, 9, 10), (24, 5, 3, 3), 4, "conv"),
    "depthwise": ((1, 24, 9, 10), (24, 1, 3, 3), 24, "planes"),
    "rows": ((1, 20, 19), (24, 20, 3), 1, "conv"),
    "depthwise rows": ((1, 24, 19), (24, 1, 3), 24, "window"),
}


@pytest.mark.parametrize("rows", list(CONVOLUTIONS.values())[1:], ids=list(CONVOLUTIONS)[1:])
@pytest.mark.parametrize("geometry", GROUPED.values(), ids=GROUPED)
def test_groups_and_rows_are_convolved_as_bytes(geometry: Any, rows: Any) -> None:
    image, filters, count, family = geometry
    assert_convolved_as_bytes(image, filters, rows, family, count)


def assert_convolved_as_bytes(
    image: tuple[int, ...], filters: tuple[int, ...], rows: Any, family: str, count: int = 1
) -> None:
    random = np.random.default_rng(image[1])
    n_filters = filters[0]
    flow = Flow(
        (
            *QUANTISED,
            "w sw zw > DequantizeLinear axis=0 > dw",
            "d dw b > Conv > c",
            "c > Relu > r",
            *REQUANTISED,
        ),
        {
            **rows,
            **RESULT,
            "w": random.integers(-127, 128, filters).astype("int8"),
            "sw": (random.random(n_filters) * 0.004 + 0.001).astype("float32"),
            "zw": np.zeros(n_filters, "int8"),
            "b": random.standard_normal(n_filters).astype("float32"),
        },
    )
    around = [1] * (2 * len(image) - 4)
    made = model(flow, image, (1, n_filters, *image[2:]), pads=around, group=count)
    imported = import_model(made)
    canonical = canonicalise(imported.module)
    found = Dataflow.of("main", canonical["main"])
    at = found.operators.index(f"relax.nn.conv{len(image) - 2}d")
    assert str(found.value(at).ty.dtype) == "int32"
    assert tvm_ffi.structural_equal(canonicalise(canonical), canonical)
    compiled = _pipeline.build(imported, resolve("cpu"))
    assert [k.family for k in compiled.kernels].count(family) == 1
    assert_same_steps(compiled, made, image)
