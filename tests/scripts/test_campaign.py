"""A benchmark keeps what it measured, and goes on where it stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import campaign
import journal
import pytest
from coverage_table import Entry
from outcome import Setting

ENTRIES = [Entry(name, Path(f"{name}.onnx"), {}) for name in ("one", "two", "three")]


def run(folder: Path, *, limit: float = 60, rounds: int = 2, broken: str = "") -> dict[str, Any]:
    """Return the report of a run in which one model may interrupt it, and what it measured."""
    measured = []

    def measure(entry: Entry) -> list[dict[str, Any]]:
        if entry.name == broken:
            raise KeyboardInterrupt
        measured.append(entry.name)
        return [{"network": entry.name, "side": "peer"}]

    parser = argparse.ArgumentParser()
    campaign.add_options(parser, rounds=rounds)
    args = parser.parse_args(["--results", str(folder), "--limit", str(limit)])
    setting = Setting(threads=2, rounds=rounds, patience_s=1, scratch=folder)
    sides = {"peer": {"title": "Peer", "threads": "none"}}
    report = campaign.run("net", ENTRIES, measure, args=args, setting=setting, sides=sides)
    return {**report, "measured": measured}


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, broken="three")
    report = run(tmp_path)
    assert report["measured"] == ["three"]
    assert [row["network"] for row in report["rows"]] == ["one", "two", "three"]
    assert report["left"] == []
    assert run(tmp_path)["measured"] == ["one", "two", "three"]


@pytest.mark.parametrize("missing", [5, 3], ids=["within a row", "after a row"])
def test_a_torn_line_costs_one_model_only(tmp_path: Path, missing: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, broken="three")
    journal = tmp_path / "net.partial.jsonl"
    journal.write_text(journal.read_text()[:-missing])
    assert run(tmp_path)["measured"] == ["two", "three"]


def test_another_run_begins_afresh(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, broken="three")
    assert run(tmp_path, rounds=3)["measured"] == ["one", "two", "three"]


def test_the_limit_leaves_models_out_by_name(tmp_path: Path) -> None:
    report = run(tmp_path, limit=0)
    assert (report["rows"], report["left"]) == ([], ["one", "two", "three"])
    assert run(tmp_path)["left"] == []


def test_preparing_measures_each_model_and_says_what_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    causes = {"one": "", "two": "wrong: 1 is not 2", "three": ""}
    campaign.prepare(ENTRIES, lambda entry: [{"side": "peer", "cause": causes[entry.name]}])
    assert capsys.readouterr().err == "two: peer: wrong: 1 is not 2\n"


def test_changed_code_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = 1\n")
    before = journal.digest(tmp_path)
    (tmp_path / "note.txt").write_text("no code\n")
    assert journal.digest(tmp_path) == before
    (tmp_path / "code.py").write_text("x = 2\n")
    assert journal.digest(tmp_path) != before


def test_a_report_is_written_as_json_and_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.write({"rows": [1]}, "| a |\n", name="net", results=tmp_path / "new")
    assert json.loads((tmp_path / "new" / "net.json").read_text()) == {"rows": [1]}
    assert (tmp_path / "new" / "net.md").read_text() == "| a |\n"
    assert capsys.readouterr().out == "| a |\n\n"
