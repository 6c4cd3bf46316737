"""Every command and every piece of Python in README is run, on a small model."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.1, (8, 3, 3, 3)).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16, 16])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, folder / "model.onnx")
    return folder


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_in_readme_works(folder):
    (session,) = blocks("console")
    commands = [line.removeprefix("$ ") for line in session.splitlines()]
    assert len(commands) >= 6
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "tvmfuse"
        run([sys.executable, "-m", "tvmfuse", *words], folder)


def test_every_piece_of_python_in_readme_works(folder):
    pieces = blocks("python")
    assert len(pieces) >= 2
    for piece in pieces:
        run([sys.executable, "-c", piece], folder)


def test_every_make_target_in_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_numbers_in_readme_are_what_the_scripts_wrote():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "readme.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
