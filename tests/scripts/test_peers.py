"""Peers are checked before they are timed, and none is left out in silence."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import environment
import peers
import peers_table
import pytest
import sides
from outcome import Result


def test_models_are_found_in_the_first_folder_that_has_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one / "resnet18.onnx", two / "resnet18.onnx", two / "magika.onnx"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = peers.find([one, two], ["resnet18", "magika"])
    assert [entry.path for entry in found] == [one / "resnet18.onnx", two / "magika.onnx"]
    assert len(peers.find([one, two], [])) == 2
    with pytest.raises(SystemExit, match=r"no ppocrv6_det.*whisper_tiny of models"):
        peers.find([one, two], [], tier="bench")
    with pytest.raises(SystemExit, match="no bert_base of models"):
        peers.find([one, two], ["resnet18", "bert_base"])


def test_every_peer_has_a_script_and_unknown_ones_are_refused() -> None:
    scripts = {path.stem for path in sides.SCRIPTS.glob("*.py")}
    assert scripts == sides.PEERS.keys() - set(sides.BUILT_IN)
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
        "not_measured": {"Other": "it is late."},
        "left": [],
    }
    table = peers_table.markdown(report)
    assert "| network | tvmfuse | Peer |\n| --- | --- | --- |\n" in table
    assert "| one | 1.00 [1.00, 1.00] | 2.00 [2.00, 2.00]\\* 2.00× |\n" in table
    assert "| two | 20.0 [20.0, 20.0] | – (1) |\n" in table
    assert "| geometric mean | 1.00× | 2.00× (1 of 2) |\n" in table
    assert "(1) Peer, two: wrong: a|b\n" in table
    assert "- tvmfuse: tvm 1. Threads: a.\n- Peer: not loaded. Threads: b.\n" in table
    assert table.endswith("- Other: not measured; it is late.\n")


def test_the_table_says_how_far_tuning_came() -> None:
    tuned = {"kernels": 7, "schedules": {"tuned": 3, "family": 4}}
    rows = [
        row("net", sides.TUNED, compiled=tuned),
        row("net", sides.METASCHEDULE, compiled={"said": "tuned for 9 s"}),
        row("net", "onnxruntime"),
    ]
    assert peers_table.reached(sides.TUNED, rows) == ["net: 3 of 7 kernels have records."]
    assert peers_table.reached(sides.METASCHEDULE, rows) == ["net: tuned for 9 s"]
    assert peers_table.reached("onnxruntime", rows) == []


def test_sides_that_need_a_store_or_time_are_left_out_by_name_without() -> None:
    nothing = argparse.Namespace(db=None, metaschedule=0.0, peers=["tuned", "metaschedule", "xla"])
    names, left_out = peers.chosen(nothing)
    assert names == ["tvmfuse", "onnxruntime", "xla"]
    assert left_out.keys() == {"tvmfuse, tuned", "MetaSchedule"}
    given = argparse.Namespace(db=Path("a.db"), metaschedule=60.0, peers=["tuned", "metaschedule"])
    assert peers.chosen(given) == (["tvmfuse", "tuned", "onnxruntime", "metaschedule"], {})


def test_records_that_were_being_written_are_dropped(tmp_path: Path) -> None:
    script = runpy.run_path(str(sides.SCRIPTS / "metaschedule.py"))
    records = tmp_path / "records.json"
    records.write_text('[1]\n[2]\n[3, "to')
    script["drop_torn_line"](records)
    assert records.read_text() == "[1]\n[2]\n"
