"""A weight of bytes stays one where a few rows meet it, however it was scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax, tvm_ffi
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.dataflow import Dataflow

op = relax.op
K, N = 40, 24
RANDOM = np.random.default_rng(0)
SIGNED = RANDOM.integers(-127, 128, (K, N)).astype("int8")
UNSIGNED = RANDOM.integers(0, 256, (K, N)).astype("uint8")
SCALE = (RANDOM.random(N) * 0.01 + 0.001).astype("float32")


def const(array: Any) -> Any:
    return relax.const(np.asarray(array), str(np.asarray(array).dtype))


def dequantised() -> Any:
    return op.dequantize(const(SIGNED), const(SCALE), const(np.zeros(N, "int8")), axis=1)


def turned() -> Any:
    stored = const(np.ascontiguousarray(SIGNED.T))
    return op.permute_dims(op.dequantize(stored, const(SCALE), const(np.zeros(N, "int8")), axis=0))


def converted() -> Any:
    return op.multiply(op.astype(const(SIGNED), "float32"), const(SCALE))


def shifted() -> Any:
    wide = op.subtract(op.astype(const(UNSIGNED), "float32"), const(np.float32(128)))
    return op.multiply(wide, const(np.float32(0.01)))


WEIGHTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dequantised": (dequantised, SIGNED * SCALE.astype("f8")),
    "dequantised, then turned": (turned, SIGNED * SCALE.astype("f8")),
    "converted and scaled": (converted, SIGNED * SCALE.astype("f8")),
    "unsigned, less its zero point": (shifted, (UNSIGNED.astype("f8") - 128) * np.float64(0.01)),
}


def weight_dtype(mod: Any) -> str:
    flow = Dataflow.of("main", canonicalise(mod)["main"])
    (at,) = [i for i, name in enumerate(flow.operators) if name == "relax.matmul"]
    return str(flow.value(at).args[1].ty.dtype)


@pytest.mark.parametrize(("weight", "exact"), WEIGHTS.values(), ids=WEIGHTS)
def test_it_is_read_as_bytes_and_is_right(weight: Callable[[], Any], exact: Any) -> None:
    def graph(x: Any) -> Any:
        return op.nn.relu(op.matmul(x, weight()))

    x = testing.random_array((2, 3, K), "float32")
    mod = graphs.module(graph, x)
    assert weight_dtype(mod) == "int8"
    assert tvm_ffi.structural_equal(canonicalise(canonicalise(mod)), canonicalise(mod))
    compiled = graphs.compiled(mod)
    assert [kernel.family for kernel in compiled.kernels] == ["gemm"]
    (found,) = graphs.run(compiled, x)
    testing.assert_close(found, np.maximum(x.astype("f8") @ exact, 0))


def test_many_rows_meet_a_float_weight() -> None:
    x = testing.random_array((17, K), "float32")
    assert weight_dtype(graphs.module(lambda x: op.matmul(x, converted()), x)) == "float32"


def test_a_scale_for_each_term_of_the_sums_makes_a_float_weight() -> None:
    scales = const(np.linspace(0.01, 0.02, K).astype("float32")[:, None])

    def graph(x: Any) -> Any:
        return op.matmul(x, op.multiply(op.astype(const(SIGNED), "float32"), scales))

    x = testing.random_array((1, K), "float32")
    assert weight_dtype(graphs.module(graph, x)) == "float32"


@pytest.mark.parametrize(("rows", "dtype"), [(4, "int8"), (64, "float32")])
def test_an_imported_weight_is_widened_only_for_many_rows(rows: int, dtype: str) -> None:
    nodes = [
        helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    # Beyond the size up to which every constant expression is folded.
    stored = np.random.default_rng(3).integers(-127, 128, (512, 256)).astype("int8")
    graph = helper.make_graph(
        nodes,
        "weight_only",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 256])],
        [
            numpy_helper.from_array(stored, "q"),
            numpy_helper.from_array(np.full((1, 256), 0.01, "float32"), "s"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    mod = import_model(made).module
    flow = Dataflow.of("main", canonicalise(mod)["main"])
    assert set(flow.operators) <= {"relax.matmul", "relax.multiply"}
    assert weight_dtype(mod) == dtype
