from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

PATTERN = """
import tvmfuse
from tvm import te, tirx

@tvmfuse.register
class Wrong(tvmfuse.Pattern):
    '''The square of a relu, with a kernel that forgets the relu.'''

    name = "wrong"
    family = "elementwise"

    def graph(self, op, x):
        r = op.nn.relu(x)
        return op.multiply(r, r)

    def reference(self, x):
        raise NotImplementedError

    def lower(self, x):
        return te.compute(x.shape, lambda i, j: x[i, j] * x[i, j], name="square")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    nodes, inits, value = [], [], "x"
    for i in range(5):
        inits.append(numpy_helper.from_array(rng.normal(0, 0.5, (8, 8)).astype("float32"), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], name=f"/{i}/MatMul"))
        value = f"s{i}"
        if i == 2:
            nodes.append(helper.make_node("Exp", ["m2"], ["e"], name="/2/Exp"))
            nodes.append(helper.make_node("Sub", ["e", "m2"], ["d"], name="/2/Sub"))
            nodes.append(helper.make_node("Softmax", ["d"], ["z"], name="/2/Softmax"))
            nodes.append(helper.make_node("ReduceMean", ["m2"], ["a"], name="/2/Mean", axes=[1]))
            nodes.append(helper.make_node("Sub", ["z", "a"], ["c"], name="/2/Centre"))
            inits.append(numpy_helper.from_array(np.array(1), "one"))
            nodes.append(helper.make_node("CumSum", ["c", "one"], ["t"], name="/2/CumSum"))
            nodes.append(helper.make_node("Relu", ["t"], ["r"], name="/2/Relu"))
            nodes.append(helper.make_node("Mul", ["r", "r"], [value], name="/2/Square"))
        else:
            nodes.append(helper.make_node("Tanh", [f"m{i}"], [value], name=f"/{i}/Tanh"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in ("x", value))
    graph = helper.make_graph(nodes, "net", [x], [y], inits)
    path = tmp_path / "net.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    (tmp_path / "wrong.py").write_text(PATTERN)
    return path


def test_a_right_model_has_no_culprit(cli: Cli, model: Path) -> None:
    answer = cli("bisect", model)
    assert answer.code == 0
    assert "groups changes the answer" in answer.out
    assert "Error, at most 0.001 apart (float32)" in answer.out


def test_the_wrong_fusion_is_named_and_can_be_run_alone(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "fault"
    answer = cli("bisect", model, "--patterns", tmp_path / "wrong.py", "-o", folder, "--json")
    assert answer.code == 1
    (culprit,) = answer.json["culprits"]
    assert culprit["pattern"] == "wrong"
    assert culprit["nodes"] == ["/2/Relu", "/2/Square"]
    assert answer.json["error"]["unfused"] < 1e-4 < answer.json["error"]["fused"]
    assert json.loads((folder / "case.json").read_text())["pattern"] == "wrong"
    assert "R.nn.relu" in (folder / "module.txt").read_text()

    def reproduce() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, folder / "reproduce.py"], capture_output=True, text=True, check=False
        )

    shown = reproduce()
    assert shown.returncode == 1, shown.stderr
    assert "fused: relu + multiply [wrong]" in shown.stdout
    zero = "tirx.const(0.0, 'float32')"
    mended = PATTERN.replace("x[i, j] * x[i, j]", f"x[i, j] * te.max(x[i, j], {zero})")
    (folder / "patterns_0.py").write_text(mended)
    assert reproduce().returncode == 0


def test_people_are_told_the_nodes(cli: Cli, model: Path, tmp_path: Path) -> None:
    answer = cli("bisect", model, "--patterns", tmp_path / "wrong.py")
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "What changes the answer" in text
    assert "/2/Relu, /2/Square" in text


def test_a_target_that_does_not_run_here_is_2(cli: Cli, model: Path) -> None:
    answer = cli("bisect", model, "--target", "metal:m1")
    assert answer.code == 2
    assert "needs a target that runs on this machine" in answer.error


def test_inputs_of_another_type_are_refused_by_name(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((8, 8), "float64"))
    answer = cli("bisect", model, "--inputs", tmp_path / "in.npz")
    assert answer.code == 2
    assert "input 'x' must be float32 [8, 8], but got float64 [8, 8]" in answer.error


def test_a_file_of_patterns_that_is_not_there_is_2(cli: Cli, model: Path, tmp_path: Path) -> None:
    answer = cli("bisect", model, "--patterns", tmp_path / "none.py")
    assert answer.code == 2
    assert "none.py: there is no such file" in answer.error
