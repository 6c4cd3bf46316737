"""Measure many models, one after the other, so that nothing measured is lost.

The rows of a model are written down as soon as it is done. A run that was
interrupted, or reached its limit, goes on where it stopped when it is started
again with the same options; once all is done, the next one begins afresh.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from coverage_table import Entry
from journal import Journal, digest
from outcome import Setting

import tvmfuse
from tvmfuse.report import machine

HERE = Path(__file__).parent
Measure = Callable[[Entry], Sequence[Mapping[str, Any]]]  # a row for each side


def add_options(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """Add the options that all benchmarks share."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--limit", type=float, default=3600, metavar="SECONDS", help="begin no model after this"
    )
    parser.add_argument(
        "--patience", type=float, default=600, metavar="SECONDS", help="for one answer of a side"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="only let every side compile, into --scratch"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="keep what peers compile, for the next call"
    )


def run(
    name: str,
    entries: Sequence[Entry],
    measure: Measure,
    *,
    args: argparse.Namespace,
    setting: Setting,
    sides: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Measure the models that an earlier run did not, and return the report.

    Parameters
    ----------
    name : str
        Of the report's file.
    entries : sequence of Entry
        The models.
    measure : callable
        Returns a row for each side on one model.
    args : Namespace
        The options of :func:`add_options`.
    setting : Setting
        How every side is measured.
    sides : Mapping
        ``title`` and ``threads`` of each side, in the order of the table.
    """
    about = {
        "threads": args.threads,
        "rounds": args.rounds,
        "sides": list(sides),
        "metaschedule_s": setting.metaschedule_s,
        "code": digest(Path(tvmfuse.__file__).parent),
    }
    journal = Journal(args.results / f"{name}.partial.jsonl", about)
    before = machine.describe()["load"]
    stop = time.monotonic() + args.limit
    for entry in entries:
        if entry.name not in journal.rows and time.monotonic() < stop:
            journal.add(entry.name, measure(entry))
    left = [entry.name for entry in entries if entry.name not in journal.rows]
    if left:
        say(f"{name}: the limit left out {', '.join(left)}; run again to go on")
    else:
        journal.finish()
    now = machine.describe()
    return {
        **about,
        "date": date.today().isoformat(),
        "machine": now,
        "load": [before, now["load"]],
        "sides": dict(sides),
        "left": left,
        "rows": [
            row
            for entry in entries
            if entry.name in journal.rows
            for row in journal.rows[entry.name]
        ],
    }


def prepare(entries: Sequence[Entry], measure: Measure) -> None:
    """Compile for every side, and check, but time nothing: the next run finds it done."""
    for entry in entries:
        for row in measure(entry):
            if row["cause"]:
                say(f"{entry.name}: {row['side']}: {row['cause']}")


def write(report: Mapping[str, Any], markdown: str, *, name: str, results: Path) -> None:
    """Write a report as JSON and as the table of README, and print the table."""
    results.mkdir(exist_ok=True, parents=True)
    text = json.dumps(report, indent=1) + "\n"
    (results / f"{name}.json").write_text(text, encoding="utf-8")
    (results / f"{name}.md").write_text(markdown, encoding="utf-8")
    print(markdown)


def say(line: str) -> None:
    """Report progress beside the results, which go to standard output."""
    print(line, file=sys.stderr, flush=True)
