"""OpenVINO on its CPU plug-in, in float32 as all others (it may choose bfloat16 itself)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino

Array = np.ndarray[Any, Any]


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(model, "CPU", options)
    request = compiled.create_infer_request()
    inputs = dict(feeds)

    def call() -> list[Array]:
        outputs = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [outputs[port] for port in compiled.outputs]

    return call, f"openvino {openvino.__version__.partition('-')[0]}"
