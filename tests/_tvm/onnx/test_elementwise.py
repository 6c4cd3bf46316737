from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm.relax.frontend.onnx import from_onnx

from tvmfuse._tvm import tvm
from tvmfuse.frontend import import_model


def clip(low, high, dtype="float32"):
    tensor = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    bounds = {"lo": low, "hi": high}
    given = {name: np.array(value, dtype) for name, value in bounds.items() if value is not None}
    inputs = ["x", *(name if name in given else "" for name in bounds)]
    graph = helper.make_graph(
        [helper.make_node("Clip", inputs, ["y"])],
        "g",
        [helper.make_tensor_value_info("x", tensor, [7])],
        [helper.make_tensor_value_info("y", tensor, [7])],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def operators(module):
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    return [b.value.op.name for b in bindings if isinstance(b.value, tvm.ir.Call)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8"])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 6), (None, 2), (-1, None), (None, None), (5, -5)], ids=str
)
def test_clip_bounds_its_operand(low, high, dtype, run):
    x = np.array([-100, -2, -1, 0, 1, 7, 100], dtype)
    right = x
    if low is not None:
        right = np.maximum(right, np.array(low, dtype))
    if high is not None:
        right = np.minimum(right, np.array(high, dtype))
    (found,) = run(clip(low, high, dtype), {"x": x})
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, right)


def test_bound_that_is_no_number_bounds_nothing(run):
    x = np.arange(-3, 4, dtype="float32")
    np.testing.assert_array_equal(run(clip(np.nan, 1), {"x": x})[0], np.minimum(x, 1))


def test_clip_is_one_relax_operator():
    assert operators(import_model(clip(0, 6)).module) == ["relax.clip"]


def test_tvm_still_makes_kernels_of_clip():
    assert "relax.call_tir" in operators(from_onnx(clip(0, 6)))


def pad(**attributes):
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "p", "v"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array([0, 1, 2, 1]), "p"),
            numpy_helper.from_array(np.float32(9), "v"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize(("mode", "options"), [("constant", {"constant_values": 9}), ("edge", {})])
def test_pad_widens_its_operand(mode, options, run):
    x = np.arange(6, dtype="float32").reshape(2, 3)
    right = np.pad(x, [(0, 2), (1, 1)], mode=mode, **options)
    np.testing.assert_array_equal(run(pad(mode=mode), {"x": x})[0], right)


def test_pad_is_one_relax_operator():
    assert operators(import_model(pad()).module) == ["relax.nn.pad"]


def test_tvm_still_makes_a_kernel_of_pad():
    assert "relax.call_tir" in operators(from_onnx(pad()))
