from __future__ import annotations

import numpy as np
import pytest

from tests.passes.canonical import operators_of
from tvmfuse._tvm import tvm
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise

GENERATOR = np.random.default_rng(0)


def convolved(x, w):
    """Return the valid 2-D convolution of (C, H, W) by (O, C, K, K), in int64."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(1, 2))
    return np.einsum("chwij,ocij->ohw", windows.astype("i8"), w.astype("i8"))


def test_conv_integer_subtracts_zero_points_before_padding(parse, run):
    x = GENERATOR.integers(0, 256, (1, 2, 5, 5)).astype("uint8")
    w = GENERATOR.integers(-128, 128, (3, 2, 3, 3)).astype("int8")
    text = ",".join(map(str, w.ravel()))
    model = parse(
        f"g (uint8[1,2,5,5] x) => (int32[1,3,5,5] y)"
        f"<int8[3,2,3,3] w = {{{text}}}, uint8 xz = {{7}}, int8[3] wz = {{1,-2,3}}>"
        "{ y = ConvInteger<pads=[1,1,1,1]>(x, w, xz, wz) }"
    )
    centred = np.pad(x[0].astype("i4") - 7, [(0, 0), (1, 1), (1, 1)])
    right = convolved(centred, w.astype("i4") - np.array([1, -2, 3]).reshape(3, 1, 1, 1))
    (found,) = run(model, {"x": x})
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found[0], right)


def quantised(value, scale, zero_point):
    return np.clip(np.rint(value / scale) + zero_point, 0, 255)


def test_qlinear_conv_differs_by_one_unit_at_most(parse, run):
    x = GENERATOR.integers(0, 256, (1, 2, 5, 5)).astype("uint8")
    w = GENERATOR.integers(-128, 128, (3, 2, 3, 3)).astype("int8")
    text = ",".join(map(str, w.ravel()))
    model = parse(
        f"g (uint8[1,2,5,5] x) => (uint8[1,3,3,3] y)"
        f"<float xs = {{0.5}}, uint8 xz = {{128}}, int8[3,2,3,3] w = {{{text}}},"
        " float[3] ws = {0.25,0.5,0.125}, int8[3] wz = {0,0,0},"
        " float ys = {8.0}, uint8 yz = {100}, int32[3] b = {500,-400,300}>"
        "{ y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b) }"
    )
    scales = 0.5 * np.array([0.25, 0.5, 0.125]).reshape(3, 1, 1)
    sums = convolved(x[0].astype("i4") - 128, w) + np.array([500, -400, 300]).reshape(3, 1, 1)
    (found,) = run(model, {"x": x})
    assert found.dtype == np.uint8
    assert np.abs(found[0] - quantised(sums * scales, 8, 100)).max() <= 1


def test_qlinear_matmul_differs_by_one_unit_at_most(parse, run):
    a = GENERATOR.integers(0, 256, (4, 6)).astype("uint8")
    b = GENERATOR.integers(0, 256, (6, 3)).astype("uint8")
    model = parse(
        "g (uint8[4,6] a, uint8[6,3] b) => (uint8[4,3] y)"
        "<float s = {0.5}, uint8 z = {128}, float t = {0.25}, float u = {200.0}>"
        "{ y = QLinearMatMul(a, s, z, b, t, z, u, z) }"
    )
    products = (a.astype("i8") - 128) @ (b.astype("i8") - 128) * 0.125
    (found,) = run(model, {"a": a, "b": b})
    assert np.abs(found.astype("i8") - quantised(products, 200, 128)).max() <= 1


@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv", "QLinearMatMul"])
def test_tvm_still_lacks_the_operator(operator, parse, run_by_tvm):
    model = parse(f"g (float[2] x) => (float[2] y) {{ y = {operator}(x) }}")
    with pytest.raises(tvm.error.OpNotImplemented, match=operator):
        run_by_tvm(model, {})


@pytest.mark.parametrize("opset", [17, 21])
def test_product_of_dequantised_values_becomes_one_of_integers(parse, opset):
    model = parse(
        "g (uint8[2,3] x) => (float[2,2] y)"
        "<float s = {0.5}, uint8 z = {7}, int8[3,2] w = {1,-2,3,4,-5,6},"
        " float[2] ws = {0.25,0.5}, int8[2] wz = {0,0}>"
        "{ a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis=1>(w, ws, wz)"
        " y = MatMul(a, b) }",
        opset=opset,
    )
    left = operators_of(canonicalise(import_model(model).module))
    assert left == {"matmul": 1, "subtract": 1, "astype": 1, "multiply": 1}
