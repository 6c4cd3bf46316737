"""Say how far outputs are from ONNX Runtime's, and how far those are from themselves.

The reference is ONNX Runtime without its optimisations. How far its optimised
outputs are from that is the noise floor: two correct runtimes cannot be expected
to agree better. Run as a process of its own::

    python scripts/bench/reference.py model.onnx inputs.npz outputs.npz
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


def run(model: Path, inputs: Arrays, *, level: ort.GraphOptimizationLevel) -> Arrays:
    """Return the outputs of ``model`` by name, at one level of optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    # Without it, products of 8-bit integers saturate on processors that lack VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def relative_error(found: Array, expected: Array) -> float:
    """Return max |found - expected| / max |expected| over the finite values.

    Infinite where the two differ in shape or in where they are infinite or NaN.
    """
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    is_finite = np.isfinite(expected)
    if not np.array_equal(found[~is_finite], expected[~is_finite], equal_nan=True):
        return float("inf")
    found, expected = found[is_finite], expected[is_finite]
    if not np.isfinite(found).all():
        return float("inf")
    if expected.size == 0:
        return 0.0
    return float(np.abs(found - expected).max() / (np.abs(expected).max() or 1.0))


def compare(model: Path, inputs: Arrays, found: Arrays) -> dict[str, dict[str, float]]:
    """Return the relative error and the noise floor of each output of ``model``."""
    expected = run(model, inputs, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    optimised = run(model, inputs, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    return {
        name: {
            "error": relative_error(found[name], expected[name]),
            "noise": relative_error(optimised[name], expected[name]),
        }
        for name in expected
    }


if __name__ == "__main__":
    path, inputs_npz, found_npz = map(Path, sys.argv[1:])
    print(json.dumps(compare(path, np.load(inputs_npz), np.load(found_npz))))
