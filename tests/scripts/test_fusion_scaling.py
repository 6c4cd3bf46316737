"""The script of scaling measures what it says; no time is asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fusion_scaling
import pytest
from fusion_scaling import Figures


def test_a_small_graph_goes_all_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fusion_scaling.main(["200", "--results", str(tmp_path)])
    (row,) = json.loads((tmp_path / "fusion_scaling.json").read_text())
    assert 150 < row["n_operators"] < 250
    assert row["candidates"] > row["groups"] > 30
    table = (tmp_path / "fusion_scaling.md").read_text()
    assert capsys.readouterr().out.strip() == table.strip()
    assert f"| {row['n_operators']:,} |" in table


def test_missed_goals_are_told() -> None:
    good = Figures(10_000, 9_000, 2_000, 9.0, 5.0, 9.0, 9.0, 300.0)
    assert fusion_scaling.is_met(good)
    assert not fusion_scaling.is_met(replace(good, collect_s=16.0))
    assert not fusion_scaling.is_met(replace(good, memory_mib=3000.0))
    assert fusion_scaling.is_met(replace(good, n_operators=100_000, collect_s=200.0))
