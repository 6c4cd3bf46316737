"""The tables of kernels and of plans are made from their command lines; no time is asserted."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import coverage_table
import fusion_counts
import fusion_counts_xla
import fusion_regressions
import fusion_table
import kernel_models
import onnx
import pytest

pytestmark = pytest.mark.peers


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small network, and the list that names it."""
    onnx.save(kernel_models.matmul_gelu(8, 16, 24), tmp_path / "dense.onnx")
    listed = "models = {}\n[exported.dense]\ntiers = []\ninputs = {}\n"
    (tmp_path / "models.toml").write_text(listed)
    monkeypatch.setattr(coverage_table, "MODELS_TOML", tmp_path / "models.toml")
    return tmp_path


def test_kernels_are_counted_on_every_side(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fusion_counts, "PEERS", models / "no peers")
    options = ["--models", str(models), "--exported", str(models), "--results", str(models)]
    assert fusion_counts.main(options) == 0
    (row,) = json.loads((models / "fusion_counts.json").read_text())
    assert row["ours"] == 1
    assert row["tvm"] >= row["ours"]
    assert row["onnxruntime"] >= 1
    assert row["gain_us"] >= 0
    assert "| dense | 1 |" in (models / "fusion_counts.md").read_text()
    assert "| dense | 1 |" in capsys.readouterr().out


def test_what_was_counted_is_kept(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fusion_table.Row("dense", ours=7, causes={"onnxruntime": "it said no"})
    (models / "fusion_counts.json").write_text(json.dumps([dataclasses.asdict(known)]))
    options = ["--models", str(models), "--exported", str(models), "--results", str(models)]
    assert fusion_counts.main([*options, "--sides", "ours,tvm,onnxruntime"]) == 0
    (row,) = json.loads((models / "fusion_counts.json").read_text())
    assert (row["ours"], row["onnxruntime"]) == (7, None)
    assert row["tvm"] >= 1


def test_a_side_is_counted_anew_where_asked(models: Path) -> None:
    known = fusion_table.Row("dense", ours=7, tvm=8, causes={"onnxruntime": "it said no"})
    (models / "fusion_counts.json").write_text(json.dumps([dataclasses.asdict(known)]))
    options = ["--models", str(models), "--exported", str(models), "--results", str(models)]
    assert fusion_counts.main([*options, "--again", "--sides", "tvm,onnxruntime"]) == 0
    (row,) = json.loads((models / "fusion_counts.json").read_text())
    assert row["ours"] == 7
    assert row["tvm"] != 8
    assert row["onnxruntime"] >= 1


def test_why_a_number_is_missing_is_told_once_for_each_cause() -> None:
    causes = {"xla": "no HardSwish"}
    rows = [fusion_table.Row(name, 1, 2, 3, 4, causes=causes) for name in ("one", "two")]
    table = fusion_table.markdown([*rows, fusion_table.Row("three", 1, 2, 3, 4)])
    assert "| one | 1 | 2 | 3 | 4 | – |  |" in table
    assert table.endswith(
        "\n\n- No number of XLA for one, two: no HardSwish\n"
        "- No number of XLA for three: not asked\n"
    )


def test_a_number_that_another_interpreter_prints_is_taken_and_an_error_is_a_cause() -> None:
    python = Path(sys.executable)
    assert fusion_counts.printed(python, "-c", "print('first'); print(12)", limit_s=60) == 12
    assert fusion_counts.printed(Path("no python"), "-c", "", limit_s=60) is None
    with pytest.raises(coverage_table.StepError) as caught:
        fusion_counts.printed(python, "-c", "raise SystemExit('no kernel')", limit_s=60)
    assert caught.value.cause == "no kernel"


def test_kernels_of_an_xla_program_are_those_of_its_entry_that_do_work() -> None:
    program = """HloModule jit_f, entry_computation_layout={(f32[2,4]{1,0})->(f32[2,8]{1,0})}

%fused_computation (param_0: f32[2,8]) -> f32[2,8] {
  %param_0 = f32[2,8]{1,0} parameter(0)
  ROOT %tanh.1 = f32[2,8]{1,0} tanh(%param_0)
}

ENTRY %main.7 (Arg_0.1: f32[2,4]) -> (f32[2,8]) {
  %Arg_0.1 = f32[2,4]{1,0} parameter(0), metadata={op_name="x"}
  %constant.2 = f32[4,8]{1,0} constant({...})
  %custom-call.3 = (f32[2,8]{1,0}, s8[64]{0}) custom-call(%Arg_0.1, %constant.2)
  %get-tuple-element.4 = f32[2,8]{1,0} get-tuple-element(%custom-call.3), index=0
  %bitcast.5 = f32[2,8]{1,0} bitcast(%get-tuple-element.4)
  %fusion = f32[2,8]{1,0} fusion(%bitcast.5), kind=kLoop, calls=%fused_computation
  ROOT %tuple.6 = (f32[2,8]{1,0}) tuple(%fusion)
}
"""
    assert fusion_counts_xla.count(program) == 2


def test_more_kernels_are_explained_by_time() -> None:
    row = fusion_table.Row("net", ours=12, tvm=10, onnxruntime=15, conversions=1, gain_us=40.0)
    assert row.excess == (
        "2 above TVM; 1 of ours convert layouts; predicted 40 µs faster than TVM's choice"
    )
    assert not fusion_table.Row("net", ours=10, tvm=10).excess


def test_plans_are_timed_once_and_kept(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["max_pool_add", "--processes", "2", "--rounds", "1", "--results", str(models)]
    assert fusion_regressions.main(options) in (0, 1)
    first = (models / "fusion_regressions.json").read_text()
    (row,) = json.loads(first)
    for name in fusion_regressions.STRATEGIES:
        assert [len(rounds) for rounds in row["rounds_us"][name]] == [1, 1]
    assert row["alike"] == []
    assert "| max_pool_add |" in capsys.readouterr().out
    fusion_regressions.main(options)
    assert (models / "fusion_regressions.json").read_text() == first


def test_planners_that_choose_the_same_kernels_are_named(models: Path) -> None:
    options = ["dense", "--exported", str(models), "--processes", "1", "--rounds", "1"]
    assert fusion_regressions.main([*options, "--results", str(models)]) in (0, 1)
    (row,) = json.loads((models / "fusion_regressions.json").read_text())
    assert row["alike"] == ["fuse-ops"]


def test_a_plan_is_slower_only_beyond_the_noise() -> None:
    def row(*processes: list[float], alike: Sequence[str] = ()) -> fusion_regressions.Row:
        ours = [[100.0] * len(rounds) for rounds in processes]
        times = {"optimal": ours, "fuse-ops": processes, "none": processes}
        return fusion_regressions.Row("net", times, alike)

    assert row(*[[95.0] * 7] * 3).is_slower("none")
    assert not row(*[[99.0] * 7] * 3).is_slower("none")
    assert not row(*[[90.0, 105.0] * 10] * 3).is_slower("none")
    places = [[93.0] * 7, [103.0] * 7, [95.0] * 7]  # steady within a process, not between them
    assert not row(*places).is_slower("none")
    assert row(places[0], alike=["fuse-ops"]).is_slower("none")
    assert not row(places[0], alike=["fuse-ops"]).is_slower("fuse-ops")
    assert "| the same | kernels |" in fusion_regressions.markdown([row([1.0], alike=["none"])])


def test_the_public_slow_downs_are_models() -> None:
    for build in fusion_regressions.CASES.values():
        onnx.checker.check_model(build())
