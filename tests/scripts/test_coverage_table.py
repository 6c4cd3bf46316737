"""The coverage table calls agreement, disagreement and failure by their names."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import coverage_table
import numpy as np
import onnx
import pytest
import reference
from coverage_table import Entry, Row, StepError
from onnx import TensorProto, helper


def judge(*, error: float, noise: float = 0.0, precision: str = "float32") -> Row:
    compared = {"y": {"error": error, "noise": noise}}
    compiled = {"kernels": {"family": 2}, "precision": precision}
    return coverage_table.judge("net", compiled, compared, compile_s=1.23)


def test_a_small_error_agrees() -> None:
    assert judge(error=9e-4, noise=1e-6) == Row("net", "agrees", 9e-4, 1e-6, 2, 1.2, "")


@pytest.mark.parametrize(("error", "noise"), [(2e-3, 0.0), (2e-2, 9e-3), (float("inf"), 1.0)])
def test_a_large_error_differs(error: float, noise: float) -> None:
    row = judge(error=error, noise=noise)
    assert row.result == "differs"
    assert row.cause == f"output y is {error:.1e} off where 0.001 is allowed"


def test_halves_may_be_off_by_more_and_integers_not_at_all() -> None:
    assert judge(error=2e-3, precision="float16").result == "agrees"
    assert judge(error=2e-2, precision="float16").result == "differs"
    assert judge(error=1e-9, precision="").result == "differs"


def test_an_infinite_error_is_none_so_that_the_table_is_valid_json() -> None:
    assert judge(error=float("inf")).error is None


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


def test_the_table_has_a_line_for_each_model_and_keeps_bars_apart() -> None:
    rows = [judge(error=5e-7, noise=1e-7), Row("other", "refused", cause="a|b")]
    about = {"date": "2026-01-02", "machine": {"processor": "P"}}
    heading, *table = coverage_table.markdown(
        {**about, "rows": [asdict(row) for row in rows]}
    ).splitlines()
    assert heading == "2026-01-02, P: **1 of 2 models agree with ONNX Runtime**."
    assert table[3:] == [
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
def test_outputs_are_compared_with_onnxruntime(model: Path) -> None:
    x = np.ones((2, 3), np.float32)
    right = np.array([[2, 3, 4], [2, 3, 4]], np.float32)
    compare = partial(reference.compare, model, {"x": x})
    assert compare({"y": right}) == {"y": {"error": 0.0, "noise": 0.0}}
    assert compare({"y": right + 1}) == {"y": {"error": 0.25, "noise": 0.0}}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1, -4, NAN, INF], [0, -4, NAN, INF], 0.25),
        ([0, 0], [0, 0], 0),
        ([], [], 0),
        ([NAN], [NAN], 0),
        ([NAN, 1], [1, 1], INF),
        ([1, 1], [NAN, 1], INF),
        ([INF], [-INF], INF),
        ([1, 1], [[1, 1]], INF),
    ],
)
def test_the_error_is_relative_and_infinite_where_nan_or_shape_differ(
    found: list[float], expected: list[float], error: float
) -> None:
    assert reference.relative_error(np.array(found), np.array(expected)) == error


def test_every_listed_model_says_what_to_feed_it() -> None:
    entries = coverage_table.read_entries(Path("models"), Path("exported"))
    assert len(entries) == 33
    assert all(entry.inputs for entry in entries)
