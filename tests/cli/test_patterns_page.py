"""The page on patterns is run: its code and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

PAGE = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pattern of the page, and a model that it matches."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "squared_relu.py").write_text(code)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="rectify"),
        helper.make_node("Mul", ["r", "r"], ["y"], name="square"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "net", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pattern_has_about_twenty_lines() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_every_command_of_the_page_works(cli: Cli, folder: Path) -> None:
    (session,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in session.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "))
        assert program == "tvmfuse"
        answer = cli(*words)
        assert answer.code == 0, answer.err + answer.out


def test_the_pattern_is_the_one_that_fuses(cli: Cli, folder: Path) -> None:
    found = cli("explain", "model.onnx", "--patterns", "squared_relu.py", "--json").json
    assert [group["pattern"] for group in found["fused"]] == ["squared_relu"]


def test_one_that_throws_is_named_and_the_model_compiles(cli: Cli, folder: Path) -> None:
    code = (folder / "squared_relu.py").read_text()
    (folder / "throws.py").write_text(
        code.replace("rectified = op.nn.relu(x)", "raise RuntimeError('not today')")
    )
    answer = cli("compile", "model.onnx", "--patterns", "throws.py", "-o", "m.tvmfuse")
    assert answer.code == 0
    line = "pattern squared_relu was dropped: the pattern failed: RuntimeError: not today"
    assert line in " ".join(answer.out.split())


def test_a_wrong_reference_fails_the_contract(cli: Cli, folder: Path) -> None:
    code = (folder / "squared_relu.py").read_text()
    (folder / "wrong.py").write_text(code.replace("** 2", "** 3"))
    answer = cli("patterns", "test", "wrong.py", "--json")
    assert answer.code == 1
    faulty = {test["test"] for test in answer.json["tests"] if test["fault"]}
    assert faulty == {"matches once", "is right"}
