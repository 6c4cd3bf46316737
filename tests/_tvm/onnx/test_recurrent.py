from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmfuse._tvm import tvm
from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

STEPS, BATCH, SIZE, HIDDEN = 3, 2, 4, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
X = np.random.default_rng(1).standard_normal((STEPS, BATCH, SIZE)).astype("f4")


def recurrent(
    operator: str,
    *,
    directions: int = 1,
    with_state: bool = True,
    lengths: tuple[int, ...] | None = None,
    peephole: bool = False,
    **attributes: Any,
) -> Any:
    generator = np.random.default_rng(0)
    rows = GATES[operator] * HIDDEN
    constants = {
        "w": generator.standard_normal((directions, rows, SIZE)) * 0.5,
        "r": generator.standard_normal((directions, rows, HIDDEN)) * 0.5,
        "b": generator.standard_normal((directions, 2 * rows)),
    }
    if lengths is not None:
        constants["n"] = np.array(lengths, "i4")
    if with_state:
        constants["h"] = generator.standard_normal((directions, BATCH, HIDDEN))
        if operator == "LSTM":
            constants["c"] = generator.standard_normal((directions, BATCH, HIDDEN))
    if peephole:
        constants["p"] = generator.standard_normal((directions, 3 * HIDDEN))
    order = ["x", "w", "r", "b", "n", "h", "c", "p"]
    inputs = [name if name == "x" or name in constants else "" for name in order]
    outputs = ["y", "last", "cell"][: 3 if operator == "LSTM" else 2]
    graph = helper.make_graph(
        [
            helper.make_node(
                operator, inputs[: 8 if peephole else 7 if "c" in constants else 6], outputs,
                hidden_size=HIDDEN, **attributes,
            )
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(a if a.dtype == "i4" else a.astype("f4"), name)
            for name, a in constants.items()
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES: Mapping[str, Any] = {
    "RNN": lambda: recurrent("RNN"),
    "RNN with relu": lambda: recurrent("RNN", activations=["Relu"]),
    "RNN both ways": lambda: recurrent("RNN", directions=2, direction="bidirectional"),
    "GRU": lambda: recurrent("GRU"),
    "GRU with reset before the matmul": lambda: recurrent("GRU", linear_before_reset=0),
    "GRU with reset after the matmul": lambda: recurrent("GRU", linear_before_reset=1),
    "GRU without state": lambda: recurrent("GRU", with_state=False),
    "GRU backwards": lambda: recurrent("GRU", direction="reverse"),
    "LSTM": lambda: recurrent("LSTM"),
    "LSTM without state": lambda: recurrent("LSTM", with_state=False),
    "LSTM with full lengths": lambda: recurrent("LSTM", lengths=(STEPS,) * BATCH),
    "LSTM with other activations": lambda: recurrent(
        "LSTM", activations=["Sigmoid", "Relu", "Tanh"]
    ),
    "LSTM backwards": lambda: recurrent("LSTM", direction="reverse"),
    "LSTM both ways": lambda: recurrent("LSTM", directions=2, direction="bidirectional"),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_recurrence_agrees_with_onnx_runtime(name, run):
    from onnxruntime import InferenceSession

    model = CASES[name]()
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, right in zip(run(model, {"x": X}), session.run(None, {"x": X}), strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: recurrent("LSTM", peephole=True), "peepholes"),
        (lambda: recurrent("LSTM", lengths=(3, 2)), "sequence_lens"),
        (lambda: recurrent("GRU", clip=0.5), "clip"),
        (lambda: recurrent("GRU", activations=["Softsign", "Tanh"]), "activation softsign"),
    ],
    ids=["peepholes", "ragged", "clip", "activation"],
)
def test_variant_that_is_not_supported_is_named(model, words):
    with pytest.raises(ModelError, match=words):
        import_model(model())


def test_quantised_lstm_computes_with_its_weights_dequantised(run):
    exact = recurrent("LSTM")
    weights = {t.name: numpy_helper.to_array(t) for t in exact.graph.initializer}
    scaled = {name: np.abs(weights[name]).max() / 127 for name in ("w", "r")}
    constants = {"b": weights["b"], "h": weights["h"], "c": weights["c"]}
    for name, scale in scaled.items():
        integers = np.rint(weights[name] / scale).astype("i1")
        constants[name] = np.ascontiguousarray(integers.transpose(0, 2, 1))
        constants[f"{name}s"] = np.array([scale], "f4")
        constants[f"{name}z"] = np.array([0], "i1")
        tensor = next(t for t in exact.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(integers * np.float32(scale), name))

    inputs = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=HIDDEN
    )
    graph = helper.make_graph(
        [node],
        "g",
        list(exact.graph.input),
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, BATCH, HIDDEN])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    quantised = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    found, right = run(quantised, {"x": X})[0], run(exact, {"x": X})[0]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_tvm_still_lacks_the_operator(operator, run_by_tvm):
    with pytest.raises(tvm.error.OpNotImplemented, match=operator):
        run_by_tvm(recurrent(operator), {"x": X})
