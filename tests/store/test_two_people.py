"""README's worked example, run line by line against a PostgreSQL server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from faults.postgres import Server
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]


def lines() -> list[tuple[str, list[str]]]:
    """Return who types what."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```shell\n(.*?)```", readme, re.DOTALL)
    typed = (line.partition("$ ") for line in block.splitlines())
    return [(who, shlex.split(command)) for who, _, command in typed]


def save_model(path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def test_two_people_share_one_database(server: Server, tmp_path: Path) -> None:
    variables: dict[str, str] = {}
    said: dict[tuple[str, ...], str] = {}
    for who in ("ann", "bob"):
        (tmp_path / who).mkdir()
        save_model(tmp_path / who / "model.onnx")
    for who, words in lines():
        if words[0] == "export":
            assert (who, words[1].partition("=")[0]) == ("both", "TVMFUSE_DB")
            variables["TVMFUSE_DB"] = server.new_database()
            continue
        assert words[0] == "tvmfuse"
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path / who,
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        said[who, " ".join(words[1:4])] = done.stdout
    assert "1 of 1 workload have a record here" in said["bob", "db best"]
    assert "tuned" in said["bob", "compile model.onnx -o"]
    assert "1 of 1" in said["bob", "compile model.onnx -o"]
    again = said["ann", "db merge train.db"]  # of the second time
    assert ": 0 new records" in again
    assert " 0 new measured fusions" in again
    assert " 0 records damaged" in said["bob", "db check"]
