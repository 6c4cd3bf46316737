"""The coverage table calls agreement, disagreement and failure by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coverage_table
import noise_floor
import numpy as np
import onnx
import pytest
from coverage_table import Entry, Row, StepError
from onnx import TensorProto, helper


def judge(*, error: float, noise: float = 0.0, has_same_nans: bool = True) -> Row:
    output = {"name": "y", "error": error, "has_same_nans": has_same_nans}
    return coverage_table.judge(
        "net", {"kernels": [{}, {}]}, {"outputs": [output]}, noise={"y": noise}, compile_s=1.23
    )


def test_a_small_error_agrees() -> None:
    assert judge(error=9e-4, noise=1e-6) == Row("net", "agrees", 9e-4, 1e-6, 2, 1.2, "")


@pytest.mark.parametrize(
    "found",
    [
        {"error": 2e-3},
        {"error": 2e-2, "noise": 9e-3},
        {"error": float("inf")},
        {"error": 0.0, "has_same_nans": False},
    ],
)
def test_a_large_error_or_a_misplaced_nan_differs(found: dict[str, Any]) -> None:
    row = judge(**found)
    assert (row.result, row.cause) == ("differs", "output y")


def test_an_error_within_the_noise_of_the_reference_agrees() -> None:
    assert judge(error=2e-2, noise=1.1e-2).result == "agrees"


def test_a_refusal_is_told_from_a_failure_and_a_time_out() -> None:
    script = "import sys; print('first', file=sys.stderr); sys.exit('model.onnx: no LSTM')"
    with pytest.raises(StepError, match=r"^model.onnx: no LSTM$") as failed:
        coverage_table.run_json(["-c", script], limit_s=60)
    with pytest.raises(StepError, match="exit code 2, nothing said") as refused:
        coverage_table.run_json(["-c", "raise SystemExit(2)"], limit_s=60)
    with pytest.raises(StepError, match="not done after 1 s") as slow:
        coverage_table.run_json(["-c", "import time; time.sleep(60)"], limit_s=1)
    results = [caught.value.result for caught in (failed, refused, slow)]
    assert results == ["failed", "refused", "timed out"]


def test_outputs_that_differ_are_read_although_the_command_says_so() -> None:
    script = "print('{}'); raise SystemExit(1)"
    assert coverage_table.run_json(["-c", script], limit_s=60, may_differ=True) == {}
    with pytest.raises(StepError):
        coverage_table.run_json(["-c", script], limit_s=60)


def test_the_table_has_a_line_for_each_model_and_keeps_bars_apart() -> None:
    rows = [judge(error=5e-7, noise=1e-7), Row("other", "refused", cause="a|b")]
    assert coverage_table.markdown(rows).splitlines()[2:] == [
        "| net | agrees | 5.0e-07 | 1.0e-07 | 2 | 1.2 |  |",
        "| other | refused |  |  |  |  | a\\|b |",
    ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write ``y = x + w`` where ``w`` is listed as an input too, as old files do."""
    shapes = {"x": ["n", 3], "w": [3], "y": ["n", 3]}
    x, w, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    add = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([add], "add", [x, w], [y], initializer=[weight])
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "add.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_inputs_are_sampled_for_real_inputs_only(model: Path) -> None:
    entry = Entry("add", model, {"x": {"shape": [2, 3], "value": 4}})
    inputs = coverage_table.sample_all(entry)
    assert list(inputs) == ["x"]
    assert inputs["x"].dtype == np.float32
    assert coverage_table.shape_options(entry) == ["--shape", "x=2,3"]


@pytest.mark.peers
def test_a_deterministic_model_has_no_noise(model: Path) -> None:
    assert noise_floor.noise_floor(model, {"x": np.ones((2, 3), np.float32)}) == {"y": 0.0}


def test_relative_error_is_scaled_by_the_largest_expected_value() -> None:
    expected = np.array([0.0, -4.0, np.nan])
    assert noise_floor.relative_error(np.array([1.0, -4.0, np.nan]), expected) == 0.25
    assert noise_floor.relative_error(np.zeros(2), np.zeros(2)) == 0.0


def test_every_listed_model_says_what_to_feed_it() -> None:
    entries = coverage_table.read_entries(Path("models"), Path("exported"))
    assert len(entries) == 25
    assert all(entry.inputs for entry in entries)
