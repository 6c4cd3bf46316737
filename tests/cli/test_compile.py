from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tvmfuse.runtime

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_model_becomes_a_bundle_that_runs(cli: Cli, affine_onnx: Path, tmp_path: Path) -> None:
    answer = cli("compile", affine_onnx, "-o", tmp_path / "m.tvmfuse")
    assert answer.code == 0
    assert "affine for cpu" in answer.out
    assert "write" in answer.err  # the last of the stages
    session = tvmfuse.runtime.load(tmp_path / "m.tvmfuse")
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(session({"x:0": x}), [[1.5, 2.5, 3.5]] * 2)


def test_json_holds_the_same_keys_for_every_model(
    cli: Cli, affine_onnx: Path, tmp_path: Path
) -> None:
    found = cli("compile", affine_onnx, "-o", tmp_path / "m.tvmfuse", "--json").json
    assert list(found) == [
        "schema",
        "command",
        "model",
        "target",
        "precision",
        "bundle",
        "bytes",
        "groups",
        "saved_us",
        "kernels",
        "untuned",
        "notes",
        "fallbacks",
        "dropped_patterns",
        "seconds",
    ]
    assert (found["schema"], found["command"], found["model"]) == (1, "compile", "affine")
    assert found["groups"] == 1
    assert found["bundle"] == str(tmp_path / "m.tvmfuse")


def test_without_fusion_every_operator_is_a_kernel(
    cli: Cli, affine_onnx: Path, tmp_path: Path
) -> None:
    found = cli("compile", affine_onnx, "-o", tmp_path / "m", "--no-fusion", "--json").json
    assert found["groups"] == 0
    assert sum(found["kernels"].values()) == 2


BAD = {
    "missing": (None, "missing.onnx"),
    "empty": (b"", "empty.onnx"),
    "text": (b"dear diary\n" * 50, "text.onnx"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_model_is_one_line_and_2(cli: Cli, tmp_path: Path, case: str) -> None:
    content, name = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    answer = cli("compile", tmp_path / name, "-o", tmp_path / "m.tvmfuse")
    assert answer.code == 2
    assert answer.error.startswith("tvmfuse: ")
    assert name in answer.error
    assert answer.out == ""
    assert not (tmp_path / "m.tvmfuse").exists()


def test_what_stands_in_the_way_is_found_before_the_model_is_read(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    answer = cli("compile", tmp_path / "missing.onnx", "-o", tmp_path / "thesis")
    assert answer.code == 2
    assert "is not a tvmfuse bundle, so it is not overwritten" in answer.error


def test_a_target_that_does_not_exist_is_named(cli: Cli, affine_onnx: Path, tmp_path: Path) -> None:
    answer = cli("compile", affine_onnx, "-o", tmp_path / "m", "--target", "tpu:v9")
    assert answer.code == 2
    assert "'tpu:v9'" in answer.error


@pytest.mark.parametrize("shape", ["x:0", "x:0=2,-3", "x:0=2,three", "=2,3"])
def test_a_shape_that_is_none_is_named(
    cli: Cli, affine_onnx: Path, tmp_path: Path, shape: str
) -> None:
    answer = cli("compile", affine_onnx, "-o", tmp_path / "m", "--shape", shape)
    assert answer.code == 2
    assert shape in answer.error


def test_a_machine_without_a_compiler_is_told_what_to_do(
    cli: Cli, affine_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = cli("compile", affine_onnx, "-o", tmp_path / "m")
    assert answer.code == 2
    assert "install one, or set CXX" in answer.error


def test_a_home_that_cannot_be_written_to_is_no_obstacle(
    process: Cli, affine_onnx: Path, tmp_path: Path
) -> None:
    home = {"HOME": "/proc/nobody", "XDG_CACHE_HOME": "/proc/nobody"}
    answer = process("compile", affine_onnx, "-o", tmp_path / "m", "--json", **home)
    assert answer.code == 0, answer.err
    assert answer.json["model"] == "affine"
