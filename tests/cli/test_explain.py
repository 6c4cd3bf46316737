from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
        "fused",
        "alone",
        "refused",
    ]
    (group,) = found["fused"]
    assert group["ops"] == ["multiply", "add"]
    assert len(group["nodes"]) == 2
    assert group["unfused_us"] > group["fused_us"] > 0


def test_why_keeps_what_concerns_one_node(cli: Cli, affine_onnx: Path) -> None:
    node = cli("explain", affine_onnx, "--json").json["fused"][0]["nodes"][0]
    found = cli("explain", affine_onnx, "--why", node, "--json").json
    assert all(node in match["nodes"] for match in found["fused"] + found["refused"])


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
