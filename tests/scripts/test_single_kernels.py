"""The kernels that are timed are what they say, and the table says what was reached."""

from __future__ import annotations

from typing import Any

import conv_shapes
import kernel_models
import kernels_table
import numpy as np
import onnx
import onnxruntime
import pytest
import single_kernels
from conv_shapes import ConvShape
from outcome import Result


def run(model: onnx.ModelProto, **feeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (result,) = session.run(None, feeds)
    return result


def test_every_shape_is_listed_once_and_flops_are_those_of_the_network() -> None:
    names = [kernel.name for kernel in kernel_models.all_kernels()]
    assert len(names) == len(set(names)) == 43
    assert len(conv_shapes.RESNET50) == 22
    assert len(conv_shapes.MOBILENETV2) == 10
    assert {kernel.group for kernel in kernel_models.all_kernels()} == kernels_table.GROUPS.keys()


def test_a_strided_convolution_has_half_the_size() -> None:
    shape = ConvShape(4, 8, 5, kernel=3, stride=2)
    x = np.ones((1, 4, 5, 5), np.float32)
    assert run(kernel_models.conv(shape), x=x).shape == (1, 8, shape.out, shape.out) == (1, 8, 3, 3)
    assert shape.flops == 9 * 8 * (2 * 9 * 4 + 1)
    depthwise = ConvShape(4, 4, 5, kernel=3, groups=4)
    assert run(kernel_models.conv(depthwise), x=x).shape == (1, 4, 5, 5)
    assert depthwise.flops == 25 * 4 * (2 * 9 + 1)


def test_attention_is_what_its_name_says() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 2, 5, 4)).astype(np.float32)
    model = kernel_models.attention(2, 5, 4)
    scores = np.exp(np.einsum("bhid,bhjd->bhij", q, k) / 2)
    expected = np.einsum("bhij,bhjd->bhid", scores / scores.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(run(model, q=q, k=k, v=v), expected, rtol=1e-4, atol=1e-5)
    assert {p.key: p.value for p in model.metadata_props}[kernel_models.EAGER]


@pytest.mark.parametrize(
    ("model", "feeds"),
    [
        (kernel_models.matmul_gelu(3, 4, 5), {"x": (3, 4)}),
        (kernel_models.gemv(4, 5), {"x": (1, 4)}),
        (kernel_models.elementwise("Add", 2, (2, 3)), {"x0": (2, 3), "x1": (2, 3)}),
        (kernel_models.rowwise("Softmax", 2, 3), {"x": (2, 3)}),
        (kernel_models.rowwise("LayerNormalization", 2, 3), {"x": (2, 3)}),
    ],
)
def test_models_run(model: onnx.ModelProto, feeds: dict[str, tuple[int, ...]]) -> None:
    result = run(model, **{name: np.ones(shape, np.float32) for name, shape in feeds.items()})
    assert np.isfinite(result).all()


def test_the_limit_is_arithmetic_or_memory_whichever_takes_longer() -> None:
    gemv, matmul = (
        next(kernel for kernel in kernel_models.all_kernels() if kernel.name.startswith(name))
        for name in ("gemv", "matmul_512")
    )
    about = single_kernels.limits(gemv, gflops=100.0, triad_gbps=50.0)
    assert about["limit_us"] == pytest.approx(64 * 2**20 / 50e3)
    assert single_kernels.limits(matmul, gflops=100.0, triad_gbps=50.0)[
        "limit_us"
    ] == pytest.approx(512**2 * (1024 + 15) / 100e3)


def row(name: str, side: str, us: float, ratio: float, **about: Any) -> dict[str, Any]:
    result = Result(name, side, version=f"{side} 1", rounds_us=(us,), ratios=(ratio,))
    return {**result.to_json(), "title": name, "limit_us": 90.0, **about}


def report(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2025-01-01",
        "machine": {"processor": "CPU", "cores": 2},
        "load": [0.1, 0.2],
        "threads": 2,
        "rounds": 1,
        "sides": {side: {"title": side} for side in ("tvmfuse", "onnxruntime", "torch")},
        "peaks": {"gflops": 100.0, "triad_gbps": 10.0},
        "rows": list(rows),
        "missing": {"openvino": "not installed: no network"},
        "left": ["softmax"],
    }


def test_the_table_says_what_was_reached_and_what_was_not() -> None:
    convs = [
        row("a", "tvmfuse", 100.0, 1.0, group="conv"),
        row("a", "onnxruntime", 140.0, 1.4, group="conv"),
        row("b", "tvmfuse", 100.0, 1.0, group="conv"),
        row("b", "onnxruntime", 85.0, 0.85, group="conv"),
    ]
    heads = [
        row("c", "tvmfuse", 100.0, 1.0, group="attention"),
        row("c", "torch", 130.0, 1.3, group="attention"),
    ]
    wrong = {**row("d", "torch", 1.0, 1.0, group="matmul"), "cause": "wrong: 2 is not 3"}
    product = [row("d", "tvmfuse", 95.0, 1.0, group="matmul"), wrong]
    product.append(row("d", "onnxruntime", 100.0, 1.05, group="matmul"))
    table = kernels_table.markdown(report(*convs, *heads, *product))
    must = "1.1× ONNX Runtime's speed, none under 0.9×"
    assert f"depthwise of MobileNetV2 | {must} | 1.09 | 0.85 (b) | **no** |\n" in table
    assert "scaled_dot_product_attention | 1.30 | 1.30 (c) | yes |\n" in table
    assert "| 85% of peak | 0.95 | 0.95 (d) | yes |\n" in table
    assert "| d | 90 | 95% | 95 [95, 95] | 100 [100, 100] 1.05× | – (1) |\n" in table
    assert "| b | 90 | 90% | 100 [100, 100] | 85 [85, 85] 0.85× | – |\n" in table
    assert "(1) torch, d: wrong: 2 is not 3\n" in table
    assert "- openvino: not installed: no network\n" in table
    assert table.endswith("- Not measured, for the run had a limit: softmax.\n")
