"""The short form of ``make faults``: a killed tuner loses nothing and leaves nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from faults import tuners

from tvmfuse.tuning.scratch import scratch


def test_a_killed_tuner_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = tuners.killed_tuners(tmp_path, n_kills=3)
    assert outcome.is_right, outcome


def test_a_tuner_whose_workers_are_killed_goes_on(tmp_path: Path) -> None:
    outcome = tuners.killed_workers(tmp_path, n_kills=2)
    assert outcome.is_right, outcome


def test_folders_of_processes_that_are_gone_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, ours, foreign = (
        tmp_path / f"tvmfuse-tune-{name}" for name in (f"{2**22 + 1}-a", f"{os.getpid()}-a", "x")
    )
    for folder in (old, ours, foreign):
        folder.mkdir()
    with scratch() as mine:
        assert set(tmp_path.iterdir()) == {ours, foreign, mine}
    assert set(tmp_path.iterdir()) == {ours, foreign}
