"""The script is the command, once for each model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tune_cpu

from tvmfuse.store import open_store


def test_without_a_model_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune_cpu.main(["--trials", "1"]) == 2
    assert "python scripts/tune_cpu.py MODEL..." in capsys.readouterr().err


def test_each_model_is_tuned_with_the_same_options(affine_onnx: Path, tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    options = ["--trials", "1", "--no-learn", "--db", str(database)]
    assert tune_cpu.main([str(affine_onnx), str(affine_onnx), *options]) == 0
    with open_store(database) as store:
        assert len(store.sessions()) == 2


def test_a_report_has_each_model_once_and_is_gone_on_with(
    affine_onnx: Path, tmp_path: Path
) -> None:
    database = tmp_path / "t.db"
    options = [
        "--trials",
        "20",
        "--no-learn",
        "--db",
        str(database),
        "--resume",
        "--report",
        str(tmp_path),
    ]
    for _ in range(2):
        assert tune_cpu.main([str(affine_onnx), *options]) == 0
    with open_store(database) as store:
        assert len(store.sessions()) == 1
    assert "| default was best already |" in (tmp_path / "tuned.md").read_text()
    assert tune_cpu.main([str(affine_onnx), *options, "--again"]) == 0
    (known,) = json.loads((tmp_path / "tuned.json").read_text()).values()
    (tmp_path / "tuned.json").write_text(
        json.dumps({affine_onnx.stem: {**known, "outcome": "search not finished"}})
    )
    assert tune_cpu.main([str(affine_onnx), *options]) == 0
    with open_store(database) as store:
        assert len(store.sessions()) == 3


REPORT = {
    "kernels": [{"is_kept": True}, {"is_kept": False}],
    "outcome": "faster",
    "searched": 0.96,
    "gain": 1.1,
    "default_us": 2200.0,
    "tuned_us": 2000.0,
    "trials": 30,
    "seconds": 60.0,
    "date": "2026-11-30",
    "processor": "a CPU",
    "target": "cpu",
    "load": 0.5,
}


def test_the_table_says_who_reached_the_mark() -> None:
    none = {"kernels": [{"is_kept": False}], "gain": 1.0, "outcome": "default was best already"}
    few = {**none, "outcome": "search not finished", "searched": 0.2, "default_us": None}
    text = tune_cpu.table(
        {
            "faster": REPORT,
            "little": {**REPORT, "gain": 1.02, "outcome": "a little faster"},
            "best": {**REPORT, **none},
            "hardly begun": {**REPORT, **few},
        }
    )
    assert "**2 of 4 networks** are 1.05× as fast as with no trial" in text
    assert "1 are a little faster, of 1 the search is not finished" in text
    assert "| faster | 2.20 | 2.00 | 1.10 | faster | 96% | 1 of 2 | 30 | 60 |" in text
    assert (
        "| best | 2.20 | 2.20 | 1.00 | default was best already | 96% | 0 of 1 | 30 | 60 |" in text
    )
    assert "| hardly begun | not timed | not timed | 1.00 | search not finished | 20% |" in text


def test_a_model_that_cannot_be_tuned_ends_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.onnx")
    assert tune_cpu.main([missing, missing, "--db", str(tmp_path / "t.db")]) == 2
