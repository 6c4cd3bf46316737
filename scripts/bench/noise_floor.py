"""Print how far ONNX Runtime is from itself: optimised against not optimised.

Two correct runtimes cannot be expected to agree better than that. Run as a
process of its own::

    python scripts/bench/noise_floor.py model.onnx inputs.npz
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

Arrays = Mapping[str, npt.NDArray[Any]]


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


def relative_error(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return max |found - expected| / max |expected| where both are finite."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    is_finite = np.isfinite(found) & np.isfinite(expected)
    if not is_finite.any():
        return 0.0
    difference = np.abs(found - expected)[is_finite].max()
    return float(difference / (np.abs(expected[is_finite]).max() or 1.0))


def noise_floor(model: Path, inputs: Arrays) -> dict[str, float]:
    """Return the relative error of each output between the two levels."""
    plain = run(model, inputs, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    optimised = run(model, inputs, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    return {name: relative_error(optimised[name], plain[name]) for name in plain}


if __name__ == "__main__":
    path, npz = map(Path, sys.argv[1:])
    print(json.dumps(noise_floor(path, np.load(npz))))
