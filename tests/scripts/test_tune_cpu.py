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
    options = ["--trials", "1", "--db", str(database)]
    assert tune_cpu.main([str(affine_onnx), str(affine_onnx), *options]) == 0
    with open_store(database) as store:
        assert len(store.sessions()) == 2


def test_a_model_that_cannot_be_tuned_ends_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.onnx")
    assert tune_cpu.main([missing, missing, "--db", str(tmp_path / "t.db")]) == 2
