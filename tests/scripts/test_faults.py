"""The report of ``make faults``: resumed, and red where anything was wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import store
from faults.trials import Outcome
from journal import Journal

LOST = Outcome("kill -9", {"lost": 1}, is_right=False)
WHOLE = Outcome("full disk", {"lost": 0}, is_right=True)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    taken: list[str] = []

    def first(_: Path) -> Iterator[Outcome]:
        taken.append("first")
        yield LOST

    def interrupted(_: Path) -> Iterator[Outcome]:
        raise KeyboardInterrupt
        yield

    def second(_: Path) -> Iterator[Outcome]:
        taken.append("second")
        yield WHOLE

    path = tmp_path / "faults.partial.jsonl"
    with pytest.raises(KeyboardInterrupt):
        store.run({"first": first, "second": interrupted}, Journal(path, {}))
    found = store.run({"first": first, "second": second}, Journal(path, {}))
    assert (taken, found) == (["first", "second"], [LOST, WHOLE])
    assert not path.exists()


def test_what_a_limit_left_out_is_named_and_done_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "faults.partial.jsonl", {})
    assert store.run({"first": lambda _: [WHOLE]}, journal, limit_s=0.0) == []
    assert journal.path.exists()
    assert "To come: first." in store.table([], "today", ["first"])
    assert store.run({"first": lambda _: [WHOLE]}, journal) == [WHOLE]


def test_a_step_that_found_no_server_is_to_come(tmp_path: Path) -> None:
    path = tmp_path / "faults.partial.jsonl"
    assert store.run({"server": lambda _: [], "disk": lambda _: [LOST]}, Journal(path, {})) == [
        LOST
    ]
    found = store.run({"server": lambda _: [WHOLE], "disk": lambda _: []}, Journal(path, {}))
    assert found == [WHOLE, LOST]
    assert not path.exists()


def test_the_table_names_what_was_wrong() -> None:
    assert "Nothing was lost." in store.table([WHOLE], "today")
    said = store.table([WHOLE, LOST], "today")
    assert "**Wrong: kill -9.**" in said
    assert "| kill -9 | lost: 1 |" in said
