"""Small ONNX models that importers commonly get wrong, against their right values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

CASES = Path(__file__).parents[1] / "cases" / "onnx"


def case_names() -> list[str]:
    return sorted(path.stem for path in CASES.glob("*.onnx"))


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    with np.load(CASES / f"{name}.npz") as values:
        return {
            key.removeprefix("in__"): values[key].shape for key in values if key.startswith("in__")
        }


def test_the_cases_are_there():
    assert len(case_names()) >= 29


@pytest.mark.parametrize("name", case_names())
def test_case_gives_the_right_values(name, run):
    values = np.load(CASES / f"{name}.npz")
    inputs = {key.removeprefix("in__"): values[key] for key in values if key.startswith("in__")}
    expected = {key.removeprefix("out__"): values[key] for key in values if key.startswith("out__")}

    outputs = run(import_model(CASES / f"{name}.onnx", shapes=shapes_of(name)), inputs)

    assert outputs.keys() >= expected.keys()
    for key, right in expected.items():
        assert outputs[key].shape == right.shape
        assert outputs[key].dtype == right.dtype
        np.testing.assert_allclose(outputs[key], right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in case_names() if name.startswith("dyn_")])
def test_dynamic_case_needs_its_shapes(name):
    with pytest.raises(ModelError, match=r"these are open: x\[.*--shape 'x="):
        import_model(CASES / f"{name}.onnx")
