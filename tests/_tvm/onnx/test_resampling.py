"""Where Resize samples and how it weighs, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmfuse._tvm.onnx.resampling import Sampling, nearest, weights

TRANSFORMATIONS = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
)


def by_onnx_runtime(x: Any, scale: float, **attributes: Any) -> Any:
    from onnxruntime import InferenceSession

    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 1, scale, 1], "f4"), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.peers
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(
    ("mode", "size", "scale", "options"),
    [
        ("nearest", 5, 1.5, {}),
        ("linear", 5, 1.5, {}),
        ("linear", 7, 0.6, {}),
        ("linear", 11, 0.41, {"antialias": 1}),
        ("linear", 9, 1.7, {"antialias": 1}),
        ("cubic", 7, 0.6, {}),
        ("cubic", 11, 0.31, {"exclude_outside": 1}),
        ("cubic", 11, 0.41, {"antialias": 1}),
        ("cubic", 11, 0.41, {"antialias": 1, "exclude_outside": 1}),
    ],
)
def test_resampling_agrees_with_onnx_runtime(
    mode: str, size: int, scale: float, options: dict[str, int], transformation: str
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, size, 3)).astype("f4")
    sampling = Sampling(
        size,
        int(np.floor(size * np.float32(scale))),
        float(np.float32(scale)),
        transformation,
        **{name: bool(value) for name, value in options.items()},
    )
    if mode == "nearest":
        matrix = np.eye(size)[nearest(sampling, "round_prefer_floor")]
    else:
        matrix = weights(sampling, mode)
    found = np.einsum("oi,bciw->bcow", matrix, x)
    right = by_onnx_runtime(
        x, scale, mode=mode, coordinate_transformation_mode=transformation, **options
    )
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_region_is_cropped() -> None:
    sampling = Sampling(9, 3, 1.0, "tf_crop_and_resize", region=(0.25, 0.75))
    np.testing.assert_allclose(sampling.places, [2, 4, 6])
    assert not sampling.outside.any()
    beyond = Sampling(9, 3, 1.0, "tf_crop_and_resize", region=(0.5, 1.5))
    assert beyond.outside.tolist() == [False, False, True]
