"""A side is checked before it is timed, and what fails keeps its cause."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import engine
import numpy as np
import onnx
import pytest
import sides
from coverage_table import Entry
from crew import Crew
from onnx import TensorProto, helper
from outcome import Result, Setting
from sides import Peer

RIGHT = """
import numpy as np

def load(model, feeds, threads):
    return lambda: [feeds["x"] * np.float32(2)], f"right with {threads} threads"
"""
# Counts what its process loaded; multiplies by what it is told to.
MOODY = """
import numpy as np
from pathlib import Path

COUNT = []

def load(model, feeds, threads):
    COUNT.append(model)
    factor = np.float32((Path(__file__).parent / "factor").read_text())
    return lambda: [feeds["x"] * factor], f"load {len(COUNT)}"
"""
SCRIPTS = {
    "right": RIGHT,
    "wrong": RIGHT.replace("float32(2)", "float32(2.1)"),
    "ragged": RIGHT.replace('feeds["x"]', 'feeds["x"][:, :2]'),
    "broken": "raise SystemExit('no such operator: Add')",
    "slow": RIGHT.replace("[feeds", "time.sleep(0.1) or [feeds").replace(
        "import", "import time,", 1
    ),
}


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    """Write ``y = x + x`` whose first extent is known at run time only."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "double.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return Entry("double", path, {"x": {"shape": [2, 3], "low": 1, "high": 2}})


def setting(scratch: Path) -> Setting:
    return Setting(threads=1, rounds=2, patience_s=120, scratch=scratch)


@pytest.mark.peers
def test_every_side_is_timed_or_has_a_cause(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(sides, "SCRIPTS", tmp_path)
    monkeypatch.setattr(engine, "SLOW_US", 50e3)
    peers = [Peer(name, name, "") for name in ("tvmfuse", "onnxruntime", *SCRIPTS)]
    results = engine.measure(entry, peers, setting(tmp_path / "scratch"))
    found = {result.side: result for result in results}
    assert list(found) == [peer.name for peer in peers]
    assert not found["tvmfuse"].cause
    assert found["tvmfuse"].compiled["kernels"] == 1
    assert found["tvmfuse"].compiled["peak_mib"] > 50
    for name in ("onnxruntime", "tvmfuse", "right"):
        assert (found[name].cause, found[name].is_alone) == ("", False)
        assert len(found[name].rounds_us) == len(found[name].ratios) == 2
    assert found["right"].version == "right with 1 threads"
    assert found["slow"].is_alone
    assert len(found["slow"].rounds_us) == len(found["slow"].ratios) == 5
    assert found["wrong"].error == pytest.approx(0.05, rel=1e-3)
    assert found["wrong"].cause == "wrong: output 0: error 5.0e-02"
    assert "float32 [2, 2] instead of float32 [2, 3]" in found["ragged"].cause
    assert "no such operator: Add" in found["broken"].cause
    assert not any(found[name].rounds_us for name in ("wrong", "ragged", "broken"))
    json.dumps([result.to_json() for result in found.values()], allow_nan=False)


@pytest.mark.peers
def test_processes_load_one_model_after_the_other_and_a_wrong_one_starts_anew(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "SCRIPTS", tmp_path)
    (tmp_path / "moody.py").write_text(MOODY)
    peers = [Peer(name, name, "") for name in ("onnxruntime", "moody")]
    said = []
    with Crew(threads=1, patience_s=120) as crew:
        for factor in (2, 2, 3, 2):
            (tmp_path / "factor").write_text(str(factor))
            _, moody = engine.measure(entry, peers, setting(tmp_path / "scratch"), crew=crew)
            said.append((moody.version, len(moody.rounds_us)))
    assert said == [("load 1", 2), ("load 2", 2), ("load 3", 0), ("load 1", 2)]


def test_extents_are_bound_and_the_folder_is_named_by_the_content(
    entry: Entry, tmp_path: Path
) -> None:
    model, inputs = engine.prepare(entry, tmp_path / "scratch")
    (dim, _) = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_value == 2
    assert np.load(inputs)["x"].shape == (2, 3)
    changed = onnx.load(entry.path)
    changed.producer_name = "somebody else"
    onnx.save(changed, entry.path)
    assert engine.prepare(entry, tmp_path / "scratch")[0].parent != model.parent


def test_nan_in_other_places_is_wrong(tmp_path: Path) -> None:
    np.savez(tmp_path / "found.npz", np.array([1.0, np.nan]))
    np.savez(tmp_path / "expected.npz", np.array([1.0, 2.0]))
    result = Result("net", "peer")
    judged = engine.judge(result, tmp_path / "found.npz", tmp_path / "expected.npz")
    assert judged.cause == "wrong: output 0: error 0.0e+00, NaN in other places"
    unjudged = engine.judge(result, tmp_path / "found.npz", tmp_path / "none.npz")
    assert unjudged.cause == "nothing to compare with: ONNX Runtime failed"


def test_ratios_are_taken_round_by_round_and_above_one_tvmfuse_is_faster() -> None:
    ours = Result("net", "tvmfuse", rounds_us=(1.0, 2.0, 4.0))
    peer = Result("net", "peer", rounds_us=(2.0, 2.0, 2.0))
    alone = Result("net", "alone", rounds_us=(10.0, 12.0), is_alone=True)
    results = {result.side: result for result in (ours, peer, alone)}
    assert [result.ratios for result in engine.with_ratios(results).values()] == [
        (1.0, 1.0, 1.0),
        (2.0, 1.0, 0.5),
        (5.0, 6.0),
    ]
    results["tvmfuse"] = replace(ours, cause="failed", rounds_us=())
    assert not any(result.ratios for result in engine.with_ratios(results).values())
