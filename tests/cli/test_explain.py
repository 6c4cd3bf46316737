from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_group_is_shown_with_its_operators_and_times(cli: Cli, affine_onnx: Path) -> None:
    answer = cli("explain", affine_onnx)
    assert answer.code == 0
    assert "multiply + add" in answer.out
    assert "affine on cpu: 2 of 2 operators in 1 group," in " ".join(answer.out.split())


def test_json_names_groups_nodes_and_times(cli: Cli, affine_onnx: Path) -> None:
    found = cli("explain", affine_onnx, "--json").json
    assert list(found) == [
        "schema",
        "command",
        "model",
        "target",
        "ops",
        "fused_ops",
        "saved_us",
        "fused_us",
        "unfused_us",
        "planner",
        "gap_us",
        "notes",
        "fused",
        "alone",
        "refused",
        "near",
    ]
    (group,) = found["fused"]
    assert group["ops"] == ["multiply", "add"]
    assert len(group["nodes"]) == 2
    assert group["unfused_us"] > group["fused_us"] > 0


def test_what_is_in_doubt_is_told_as_measured_beside_what_was_predicted(
    cli: Cli, tmp_path: Path
) -> None:
    weight = numpy_helper.from_array(np.full((256, 512), 1 / 256, "float32"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, width))
        for name, width in (("x", 256), ("y", 512))
    ]
    graph = helper.make_graph(nodes, "linear", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)

    asked = ("--cost-model", "prior", "--planner", "everything", "--json")
    (guessed,) = cli("explain", path, *asked).json["fused"]
    (decided,) = cli("explain", path, *asked, "--measure-budget", "2m").json["fused"]
    assert guessed["predicted"] is None
    assert decided["predicted"]["fused_us"] == guessed["fused_us"]
    assert decided["predicted"]["unfused_us"] == guessed["unfused_us"]
    assert decided["fused_us"] > 0
    assert decided["fused_us"] != guessed["fused_us"]


def test_why_keeps_what_concerns_one_node(cli: Cli, affine_onnx: Path) -> None:
    node = cli("explain", affine_onnx, "--json").json["fused"][0]["nodes"][0]
    found = cli("explain", affine_onnx, "--why", node, "--json").json
    assert all(node in match["nodes"] for match in found["fused"] + found["refused"])


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    """A product with an activation that no pattern knows, and a clip, each node named."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="/proj/MatMul"),
        helper.make_node("ArgMax", ["m"], ["a"], name="/pick/ArgMax"),
        helper.make_node("HardSwish", ["m"], ["y"], name="/act/HardSwish"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    a = helper.make_tensor_value_info("a", TensorProto.INT64, [1, 4])
    w = numpy_helper.from_array(np.eye(4, dtype="float32"), "w")
    graph = helper.make_graph(nodes, "gated", [x], [y, a], [w])
    path = tmp_path / "gated.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_every_operator_has_the_name_of_its_node(cli: Cli, gated: Path) -> None:
    found = cli("explain", gated, "--json").json
    nodes = {node for group in found["fused"] for node in group["nodes"]}
    nodes |= {op["node"] for op in found["alone"]}
    assert nodes == {"/proj/MatMul", "/act/HardSwish", "/pick/ArgMax"}


def test_nodes_of_several_results_keep_their_names(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": (4, 2, 3, 3), "scale": (4,), "shift": (4,), "mean": (4,), "var": (4,)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="/stem/Conv", pads=[1] * 4),
        helper.make_node("Exp", ["c"], ["e"], name="/stem/Exp"),
        helper.make_node(
            "BatchNormalization", ["e", "scale", "shift", "mean", "var"], ["n"], "/bn"
        ),
        helper.make_node("Split", ["n"], ["a", "b"], name="/cut", axis=1, num_outputs=2),
        helper.make_node("Mul", ["a", "b"], ["y"], name="/join"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 6, 6])
    initializers = [
        numpy_helper.from_array(rng.uniform(0.5, 1, shape).astype("float32"), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], initializers)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    found = cli("explain", tmp_path / "net.onnx", "--json").json
    nodes_ = {node for group in found["fused"] for node in group["nodes"]}
    nodes_ |= {op["node"] for op in found["alone"]}
    assert nodes_ == {"/stem/Conv", "/stem/Exp", "/bn", "/cut", "/join"}


def test_every_operator_has_a_group_or_a_reason(cli: Cli, gated: Path) -> None:
    found = cli("explain", gated, "--json").json
    assert found["ops"] == found["fused_ops"] + len(found["alone"])
    for op in found["alone"]:
        assert op["reason"] or op["near"] or op["op"] == "argmax"
        assert op["time_us"] > 0
    assert found["unfused_us"] == pytest.approx(found["fused_us"] + found["saved_us"])


def test_near_names_the_condition_that_failed(cli: Cli, gated: Path) -> None:
    found = cli("explain", gated, "--near", "matmul_bias_act", "--json").json
    assert {miss["pattern"] for miss in found["near"]} == {"matmul_bias_act"}
    nearest = found["near"][0]
    assert nearest["condition"] == ("the intermediate /proj/MatMul is also read by /pick/ArgMax")
    assert "is also read by" in " ".join(
        cli("explain", gated, "--near", "matmul_bias_act").out.split()
    )


def test_near_of_an_unknown_pattern_is_2(cli: Cli, gated: Path) -> None:
    answer = cli("explain", gated, "--near", "convolution")
    assert answer.code == 2
    assert "there is no pattern 'convolution'" in answer.error


def test_kernels_name_the_nodes_they_compute(cli: Cli, gated: Path, tmp_path: Path) -> None:
    assert cli("compile", gated, "-o", tmp_path / "m.tvmfuse").code == 0
    kernels = json.loads((tmp_path / "m.tvmfuse" / "kernels.json").read_text())["kernels"]
    assert {node for kernel in kernels for node in kernel["nodes"]} == {
        "/proj/MatMul",
        "/act/HardSwish",
        "/pick/ArgMax",
    }
    assert any("proj_MatMul" in kernel["name"] for kernel in kernels)


def test_why_of_an_unknown_node_is_2(cli: Cli, affine_onnx: Path) -> None:
    answer = cli("explain", affine_onnx, "--why", "no-such-node")
    assert answer.code == 2
    assert "the model has no node named 'no-such-node'" in answer.error


def test_another_planner_may_be_asked(cli: Cli, affine_onnx: Path) -> None:
    found = cli("explain", affine_onnx, "--planner", "none", "--json").json
    assert found["fused"] == []
    answer = cli("explain", affine_onnx, "--planner", "oracle")
    assert answer.code == 2
    assert "saved-bytes" in answer.error


@pytest.mark.parametrize("size", ["", "12 apples", "-1MiB", "MiB"])
def test_a_size_that_is_none_is_named(cli: Cli, affine_onnx: Path, size: str) -> None:
    answer = cli("explain", affine_onnx, "--max-memory", size)
    assert answer.code == 2
    assert repr(size) in answer.error


def test_a_limit_of_memory_that_cannot_be_kept_is_one_line(cli: Cli, affine_onnx: Path) -> None:
    answer = cli("explain", affine_onnx, "--max-memory", "1B")
    assert answer.code == 2
    assert "allow more" in answer.error
    assert cli("explain", affine_onnx, "--max-memory", "1.5MiB").code == 0


def test_a_page_and_pictures_are_written(cli: Cli, gated: Path, tmp_path: Path) -> None:
    page = tmp_path / "net.html"
    assert cli("explain", gated, "--html", page).code == 0
    assert "/act/HardSwish" in page.read_text()
    for suffix, mark in ((".dot", "digraph"), (".mmd", "flowchart"), (".json", "traceEvents")):
        picture = tmp_path / f"net{suffix}"
        assert cli("explain", gated, "--graph", picture).code == 0
        assert mark in picture.read_text()
    assert cli("explain", gated, "--graph", tmp_path / "net.onnx").code == 0
    assert onnx.load(tmp_path / "net.onnx").functions


def test_an_unknown_kind_of_picture_is_2(cli: Cli, gated: Path, tmp_path: Path) -> None:
    answer = cli("explain", gated, "--graph", tmp_path / "net.png")
    assert answer.code == 2
    assert "--graph takes .dot, .mmd, .onnx, .json" in answer.error
