from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import run
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
    "RNN with relu": lambda: recurrent("RNN", activations=["Relu"]),
    "RNN both ways": lambda: recurrent("RNN", directions=2, direction="bidirectional"),
    "GRU with reset before the matmul": lambda: recurrent("GRU", linear_before_reset=0),
    "GRU with reset after the matmul": lambda: recurrent("GRU", linear_before_reset=1),
    "GRU without state": lambda: recurrent("GRU", with_state=False),
    "GRU backwards": lambda: recurrent("GRU", direction="reverse"),
    "GRU of ragged sequences": lambda: recurrent("GRU", lengths=(3, 2)),
    "GRU, clipped": lambda: recurrent("GRU", clip=0.5),
    "GRU with softsign": lambda: recurrent("GRU", activations=["Softsign", "Tanh"]),
    "LSTM": lambda: recurrent("LSTM"),
    "LSTM without state": lambda: recurrent("LSTM", with_state=False),
    "LSTM with full lengths": lambda: recurrent("LSTM", lengths=(STEPS,) * BATCH),
    "LSTM with coefficients": lambda: recurrent(
        "LSTM",
        activations=["HardSigmoid", "Relu", "LeakyRelu"],
        activation_alpha=[0.3, 0.2],
        activation_beta=[0.4],
    ),
    "LSTM with peepholes": lambda: recurrent("LSTM", peephole=True),
    "LSTM, clipped": lambda: recurrent("LSTM", clip=0.5),
    "LSTM of coupled gates": lambda: recurrent("LSTM", input_forget=1),
    "LSTM both ways, ragged": lambda: recurrent(
        "LSTM", directions=2, direction="bidirectional", lengths=(2, 3)
    ),
}


def computed(model: Any, *inputs: Any) -> list[Any]:
    """Import a model, compile it by the whole pipeline and run it."""
    return run(import_model(model).module, *inputs)


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_recurrence_agrees_with_onnx_runtime(name):
    from onnxruntime import InferenceSession

    model = CASES[name]()
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, right in zip(computed(model, X), session.run(None, {"x": X}), strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_batch_that_comes_first_is_turned_and_turned_back():
    plain, turned = recurrent("LSTM"), recurrent("LSTM", layout=1)
    for tensor in turned.graph.initializer:
        if tensor.name in ("h", "c"):
            array = numpy_helper.to_array(tensor).transpose(1, 0, 2)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    x = np.ascontiguousarray(X.transpose(1, 0, 2))
    for axis, size in enumerate(x.shape):
        turned.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    y, h, c = computed(turned, x)
    right_y, right_h, right_c = computed(plain, X)
    np.testing.assert_array_equal(y, right_y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(h, right_h.transpose(1, 0, 2))
    np.testing.assert_array_equal(c, right_c.transpose(1, 0, 2))


def test_weights_may_come_from_outside():
    constant, fed = recurrent("GRU", linear_before_reset=1), recurrent("GRU", linear_before_reset=1)
    weights = {t.name: numpy_helper.to_array(t) for t in fed.graph.initializer}
    del fed.graph.initializer[:]
    for name, array in weights.items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        fed.graph.input.append(value)
    found, right = computed(fed, X, *weights.values()), computed(constant, X)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_activation_that_is_not_supported_is_named():
    with pytest.raises(ModelError, match="activation cosine"):
        import_model(recurrent("GRU", activations=["Cosine", "Tanh"]))


def quantised_lstm(batch=1, **attrs):
    """Return a ``DynamicQuantizeLSTM`` whose weights are those of an LSTM, rounded."""
    exact = recurrent("LSTM", **attrs)
    weights = {t.name: numpy_helper.to_array(t) for t in exact.graph.initializer}
    states = {name: np.ascontiguousarray(weights[name][:, :batch]) for name in "hc"}
    constants = {"b": weights["b"], **states}
    for name in ("w", "r"):
        scale = np.abs(weights[name]).max() / 127
        integers = np.rint(weights[name] / scale).astype("i1")
        constants[name] = np.ascontiguousarray(integers.transpose(0, 2, 1))
        constants[f"{name}s"] = np.array([scale], "f4")
        constants[f"{name}z"] = np.array([0], "i1")
    inputs = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=HIDDEN, **attrs
    )
    steps, _, size = X.shape
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, batch, HIDDEN])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.peers
def test_a_quantised_lstm_rounds_sequence_and_state_as_onnx_runtime_does():
    from onnxruntime import InferenceSession

    model, x = quantised_lstm(), np.ascontiguousarray(X[:, :1])
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (right,) = session.run(None, {"x": x})
    np.testing.assert_allclose(computed(model, x)[0], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_tvm_still_lacks_the_operator(operator, run_by_tvm):
    with pytest.raises(tvm.error.OpNotImplemented, match=operator):
        run_by_tvm(recurrent(operator), {"x": X})
