"""Operators of ordinary models, one at a time, through all stages against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tvmfuse
from tvmfuse.errors import ModelError


def model(op: str, operands: dict[str, Any], **attrs: Any) -> ModelProto:
    """Return a model of one operator; a tuple is the shape of an input, an array is constant."""
    names = [name if value is not None else "" for name, value in operands.items()]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, value)
        for name, value in operands.items()
        if isinstance(value, tuple)
    ]
    constants = [
        numpy_helper.from_array(value, name)
        for name, value in operands.items()
        if isinstance(value, np.ndarray)
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attrs)], op, inputs, [y], constants
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    return made


def resized(width: int) -> dict[str, Any]:
    return {"x": (1, 3, 8, 8), "roi": None, "scales": None, "sizes": np.array([1, 3, width, width])}


def scaled(size: int, factor: float) -> dict[str, Any]:
    return {"x": (1, 1, 1, size), "roi": None, "scales": np.array([1, 1, 1, factor], "float32")}


RIGHT = {
    **{f"resize to {w}": ("Resize", resized(w), {"mode": "linear"}) for w in (16, 17, 24, 33)},
    "resize by a scale": ("Resize", scaled(6, 1.5), {"mode": "nearest"}),
    "reflecting pad": (
        "Pad",
        {"x": (1, 3, 16, 16), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        {"mode": "reflect"},
    ),
    "gather of wide rows": ("GatherND", {"x": (5, 31), "at": np.array([[1], [3]])}, {}),
    **{
        f"einsum {equation}": ("Einsum", {"a": a, "b": b}, {"equation": equation})
        for equation, a, b in (
            ("ij,jk->ik", (4, 6), (6, 5)),
            ("bd,vd->bv", (2, 3), (4, 3)),
            ("bhid,bhjd->bhij", (1, 2, 3, 4), (1, 2, 5, 4)),
        )
    },
}
RIGHT |= {
    "resize by a scale that gives no whole size": (
        "Resize",
        scaled(5, 1.5),
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
    ),
    "resize, antialiased": ("Resize", resized(4), {"mode": "linear", "antialias": 1}),
}


@pytest.mark.parametrize(("op", "operands", "attrs"), RIGHT.values(), ids=RIGHT)
def test_operator_equals_onnx_runtime(op: str, operands: Any, attrs: Any) -> None:
    made = model(op, operands, **attrs)
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype("float32")
        for name, shape in operands.items()
        if isinstance(shape, tuple)
    }
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, feeds)
    found = tvmfuse.Session.of(tvmfuse.compile(made)).run(None, feeds)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)


def test_weights_that_are_parameters_are_refused_for_a_bundle() -> None:
    made = model("MatMul", {"x": (2, 3), "w": np.ones((3, 4), "float32")})
    imported = tvmfuse.import_model(made, keep_params=True)
    from tvmfuse import _pipeline

    with pytest.raises(ModelError, match="must be constants"):
        _pipeline.build(imported, tvmfuse.target("cpu"))
