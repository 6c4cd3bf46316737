"""The models of a folder are written once more, with the extents that ``models.toml`` names."""

from __future__ import annotations

from pathlib import Path

import bind_shapes
import onnx
import pytest
from onnx import TensorProto, helper


def test_open_extents_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", "length"])
        for name in ("bytes", "same")
    )
    graph = helper.make_graph([helper.make_node("Identity", ["bytes"], ["same"])], "g", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "magika.onnx"
    )
    into = tmp_path / "bound"
    assert bind_shapes.main(["magika", "--models", str(tmp_path), "--into", str(into)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.name == "magika.onnx"
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 2048]
    assert bind_shapes.main(["magika", "--models", str(tmp_path), "--into", str(into)]) == 0
    assert Path(capsys.readouterr().out.strip()) == path
