"""The search on a table of times, and the picture of what it reaches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tuning_curve
import tuning_models
from chart import Line, Panel, svg
from tuning_tables import Kept, Measured, curve, summary

from tests.tuning.kernels import task
from tvmfuse.tuning.space import key

TASK = task()
TABLE = {
    key(point): 100.0 + 5.0 * abs(point["unroll"] - 4) + point["row_tasks"]
    for point in [TASK.space.default, *TASK.space._all()]
}
KEPT = Kept("m k", TASK.family, TASK.space, TABLE)


def test_the_search_stays_within_the_table_and_finds_its_best() -> None:
    half = dict(list(TABLE.items())[: len(TABLE) // 2]) | {
        key(TASK.space.default): TABLE[key(TASK.space.default)]
    }
    found = curve(TASK.space, half, seed=1)
    assert len(found) == len(half)
    assert found[0] == TABLE[key(TASK.space.default)]
    assert found[-1] == min(half.values())
    assert found == sorted(found, reverse=True)


def test_the_gain_is_the_share_of_what_the_best_saves() -> None:
    measured = Measured("k", 100.0, 50.0, 4, [[100.0, 75.0, 50.0], [100.0, 100.0, 100.0, 50.0]])
    assert [measured.gain(n) for n in (1, 2, 4)] == [0.0, 0.25, 1.0]
    assert Measured("k", 50.0, 50.0, 1, [[50.0]]).gain(1) == 1.0
    assert summary(KEPT).best_us == min(TABLE.values())


def test_a_table_that_was_kept_gives_the_same_curves() -> None:
    again = Kept.from_json(json.loads(json.dumps(KEPT.to_json())))
    assert again == KEPT
    assert summary(again) == summary(KEPT)


def test_the_search_is_repeated_in_the_tables(tmp_path: Path) -> None:
    tables = {"on": "here", "kernels": [KEPT.to_json()]}
    (tmp_path / tuning_curve.TABLES).write_text(json.dumps(tables))
    tuning_curve.main(["--into", str(tmp_path), "replay"])
    (found,) = json.loads((tmp_path / "tuning_curve.json").read_text())["kernels"]
    assert found == json.loads(json.dumps(vars(summary(KEPT))))


def test_a_picture_has_all_its_lines() -> None:
    lines = [Line("a", [(1.0, 10.0), (100.0, 1.0)]), Line("b", [(1.0, 5.0), (50.0, 5.0)], 1)]
    panel = Panel("title", "x & y", "ms", lines, is_log_x=True, is_log_y=True)
    tree = ElementTree.fromstring(svg([panel, panel]))
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert [texts.count(text) for text in ("title", "x & y", "a", "b")] == [2, 2, 2, 2]
    curves = [element for element in tree.iter() if element.get("stroke-width")]
    assert len(curves) == 4


def test_a_default_that_is_best_already_is_said_to_be() -> None:
    measured = Measured("k", 100.0, 98.0, 40, [[100.0, 98.0]])
    text = tuning_curve.text({"kernels": [vars(measured)], "kernels_on": "here"})
    assert "On 1 of 1 kernels the default is within 3 % of the best point" in text
    assert "95 %" not in text


def test_what_was_measured_becomes_a_picture_and_a_text(tmp_path: Path) -> None:
    kernel = {
        "name": "m k",
        "default_us": 100.0,
        "best_us": 50.0,
        "points": 40,
        "curves_us": [[100.0, 50.0]],
    }
    ours = {
        "seconds": 20.0,
        "trials": 9,
        "first_trial_s": 3.0,
        "default_us": 5e3,
        "tuned_us": 4e3,
        "estimates": [[5.0, 3, 4.5e3]],
    }
    stock = {"seconds": 60.0, "records": 4, "reached": 2, "tasks": 9, "model_us": 9e5}
    known = {"kernels": [kernel], "kernels_on": "here", "model": "m", "model_on": "here"}
    known |= {"ours": ours, "stock": [stock]}
    (tmp_path / "tuning_curve.json").write_text(json.dumps(known))
    tuning_curve.main(["--into", str(tmp_path), "show"])
    text = (tmp_path / "tuning_curve.md").read_text()
    assert "On 0 of 1 kernels the default is within 3 % of the best point" in text
    assert "95 % of its gain on 1 of the other 1 (median" in text
    assert "5.0 ms with no trial, 4.0 ms after 9 trials in 20 s" in text
    assert "4 records on 2 of 9 kernels, 900 ms. At that rate 1,000 trials take it 4.2 h." in text
    ElementTree.parse(tmp_path / "tuning_curve.svg")


def _tune_by(peer: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(tuning_models, "PEER", peer)
    places = {peer.parent / "copy": 2.0}
    how: dict[str, Any] = {"threads": 1, "python": Path(sys.executable)}
    tuning_models._tune(peer.parent / "net.onnx", peer.parent, places, **how)
    return list(places)


def test_a_tuner_that_ends_by_itself_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text("raise SystemExit('no compiler')\n")
    with pytest.raises(RuntimeError, match="code 1; it said: no compiler"):
        _tune_by(peer, monkeypatch)


def test_a_file_beside_the_tuner_hides_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('hidden')\n")
    peer = tmp_path / "peer.py"
    peer.write_text("import json, time\ntime.sleep(60)\n")
    (place,) = _tune_by(peer, monkeypatch)
    assert (place / "done.json").exists()
