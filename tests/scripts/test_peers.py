"""Peers are checked before they are timed, and none is left out in silence."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import environment
import numpy as np
import onnx
import peers
import peers_measure
import peers_table
import pytest
from coverage_table import Entry
from onnx import TensorProto, helper
from peers_measure import Result, Setting

RIGHT = """
import numpy as np

def load(model, feeds, threads):
    return lambda: [feeds["x"] * np.float32(2)], f"right with {threads} threads"
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
    return Setting(threads=1, rounds=2, limit_s=120, scratch=scratch)


@pytest.mark.peers
def test_every_side_is_timed_or_has_a_cause(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(peers_measure, "SCRIPTS", tmp_path)
    monkeypatch.setattr(peers_measure, "SLOW_US", 50e3)
    pythons = dict.fromkeys(["onnxruntime", "tvmfuse", *SCRIPTS], Path(sys.executable))
    found = {
        result.side: result
        for result in peers_measure.measure(entry, pythons, setting(tmp_path / "scratch"))
    }
    assert list(found) == list(pythons)
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


def test_extents_are_bound_and_the_folder_is_named_by_the_content(
    entry: Entry, tmp_path: Path
) -> None:
    model, inputs = peers_measure.prepare(entry, tmp_path / "scratch")
    (dim, _) = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_value == 2
    assert np.load(inputs)["x"].shape == (2, 3)
    changed = onnx.load(entry.path)
    changed.producer_name = "somebody else"
    onnx.save(changed, entry.path)
    assert peers_measure.prepare(entry, tmp_path / "scratch")[0].parent != model.parent


def test_nan_in_other_places_is_wrong(tmp_path: Path) -> None:
    np.savez(tmp_path / "found.npz", np.array([1.0, np.nan]))
    np.savez(tmp_path / "expected.npz", np.array([1.0, 2.0]))
    result = Result("net", "peer")
    judged = peers_measure.judge(result, tmp_path / "found.npz", tmp_path / "expected.npz")
    assert judged.cause == "wrong: output 0: error 0.0e+00, NaN in other places"
    unjudged = peers_measure.judge(result, tmp_path / "found.npz", tmp_path / "none.npz")
    assert unjudged.cause == "nothing to compare with: ONNX Runtime failed"


def test_ratios_are_taken_round_by_round_and_above_one_tvmfuse_is_faster() -> None:
    ours = Result("net", "tvmfuse", rounds_us=(1.0, 2.0, 4.0))
    peer = Result("net", "peer", rounds_us=(2.0, 2.0, 2.0))
    alone = Result("net", "alone", rounds_us=(10.0, 12.0), is_alone=True)
    results = {result.side: result for result in (ours, peer, alone)}
    assert [result.ratios for result in peers_measure.with_ratios(results)] == [
        (1.0, 1.0, 1.0),
        (2.0, 1.0, 0.5),
        (5.0, 6.0),
    ]
    results["tvmfuse"] = replace(ours, cause="failed", rounds_us=())
    assert not any(result.ratios for result in peers_measure.with_ratios(results))


def test_models_are_found_in_the_first_folder_that_has_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one / "resnet18.onnx", two / "resnet18.onnx", two / "magika.onnx"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = peers.find([one, two], ["resnet18", "magika"])
    assert [entry.path for entry in found] == [one / "resnet18.onnx", two / "magika.onnx"]
    assert len(peers.find([one, two], [])) == 2
    with pytest.raises(SystemExit, match="no bert_base of models"):
        peers.find([one, two], ["resnet18", "bert_base"])


def test_every_peer_has_a_script_and_unknown_ones_are_refused() -> None:
    scripts = {path.stem for path in peers.SCRIPTS.glob("*.py")}
    assert scripts == peers.SIDES.keys() - {"tvmfuse", "onnxruntime"}
    with pytest.raises(argparse.ArgumentTypeError, match="not 'tensorrt'"):
        peers.peer_names("iree,tensorrt")


def test_an_environment_is_made_anew_only_when_its_requirements_change(tmp_path: Path) -> None:
    requirements, other = tmp_path / "peer.txt", tmp_path / "other.txt"
    requirements.write_text("--no-index\n-r other.txt\n")
    other.write_text("")
    python = environment.make("peer", requirements, into=tmp_path)
    mark = tmp_path / "peer" / "mark"
    mark.touch()
    assert environment.make("peer", requirements, into=tmp_path) == python
    assert mark.exists()
    other.write_text("no-such-package==1.0\n")
    with pytest.raises(environment.PipError, match="no-such-package"):
        environment.make("peer", requirements, into=tmp_path)
    assert not mark.exists()
    assert not (tmp_path / "peer" / ".installed").exists()


def row(network: str, side: str, **more: Any) -> dict[str, Any]:
    return Result(network, side, **more).to_json()


def test_the_table_has_times_ratios_and_numbered_causes() -> None:
    report = {
        "date": "2025-01-01",
        "machine": {"processor": "CPU", "cores": 2},
        "load": [0.1, 0.2],
        "threads": 2,
        "rounds": 1,
        "sides": {
            "tvmfuse": {"title": "tvmfuse", "threads": "a"},
            "peer": {"title": "Peer", "threads": "b"},
        },
        "rows": [
            row("one", "tvmfuse", version="tvm 1", rounds_us=(1e3,), ratios=(1.0,)),
            row("one", "peer", rounds_us=(2e3,), ratios=(2.0,), is_alone=True),
            row("two", "tvmfuse", version="tvm 1", rounds_us=(2e4,), ratios=(1.0,)),
            row("two", "peer", cause="wrong: a|b"),
        ],
        "not_measured": {"Other": "It is late."},
    }
    table = peers_table.markdown(report)
    assert "| network | tvmfuse | Peer |\n| --- | --- | --- |\n" in table
    assert "| one | 1.00 [1.00, 1.00] | 2.00 [2.00, 2.00]\\* 2.00× |\n" in table
    assert "| two | 20.0 [20.0, 20.0] | – (1) |\n" in table
    assert "| geometric mean | 1.00× | 2.00× (1 of 2) |\n" in table
    assert "(1) Peer, two: wrong: a|b\n" in table
    assert "- tvmfuse: tvm 1. Threads: a.\n- Peer: not loaded. Threads: b.\n" in table
    assert table.endswith("- Other: not measured. It is late.\n")
