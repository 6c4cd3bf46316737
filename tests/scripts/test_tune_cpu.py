"""The script is the command, once for each model."""

from __future__ import annotations

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
        "1",
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
    assert "default was best already" in (tmp_path / "tuned.md").read_text()


REPORT = {
    "kernels": [{"is_kept": True}, {"is_kept": False}],
    "untried": [],
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
    none = {"kernels": [{"is_kept": False, "is_searched": True}], "gain": 1.0}
    few = {"kernels": [{"is_kept": False, "is_searched": False}], "gain": 1.0}
    text = tune_cpu.table(
        {
            "faster": REPORT,
            "little": {**REPORT, "gain": 1.02},
            "best": {**REPORT, **none},
            "open": {**REPORT, **none, "untried": ["conv"]},
            "hardly begun": {**REPORT, **few},
        }
    )
    assert "**2 of 5 networks**" in text
    assert "| faster | 2.20 | 2.00 | 1.10 | 1 of 2 | 30 | 60 |" in text
    assert "| best | 2.20 | 2.20 | default was best already | 0 of 1 | 30 | 60 |" in text
    assert "| hardly begun | 2.20 | 2.20 | too few trials of 1 | 0 of 1 | 30 | 60 |" in text
    assert "| open | 2.20 | 2.20 | no time left to try 1 | 0 of 1 | 30 | 60 |" in text


def test_a_model_that_cannot_be_tuned_ends_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.onnx")
    assert tune_cpu.main([missing, missing, "--db", str(tmp_path / "t.db")]) == 2
