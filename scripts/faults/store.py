"""Harm tuning stores in every way that is known, and print what became of them.

Run by ``make faults``; the tests run a short form of the same. What was found is written
down as it comes, so that an interrupted run goes on. Exits with 1 where anything was lost,
wrong, or took too long.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from journal import Journal, digest

import tvmfuse
from faults import postgres, trials, tuners
from tvmfuse.host import detect

Step = Callable[[Path], Iterable[trials.Outcome]]


def steps(*, n_commits: int, n_kills: int, n_flips: int, n_tuners: int) -> Mapping[str, Step]:
    """Return what is done, each in an empty folder."""
    writers = {"n_processes": 8, "n_commits": n_commits}
    programs = postgres.find_programs()

    def served(folder: Path) -> Iterable[trials.Outcome]:
        if programs is None:
            print(postgres.MISSING, file=sys.stderr)
            return
        with postgres.running(programs) as server:
            yield trials.many_writers(server.new_database(), **writers)
            yield trials.server_away(server, n_commits=2000, n_stops=5)
            yield tuners.server_away(folder, server, n_stops=5)

    return {
        "writers": lambda folder: [trials.many_writers(str(folder / "shared.db"), **writers)],
        "server": served,
        "killed writers": lambda folder: [trials.killed_writers(folder, n_kills=n_kills)],
        "damaged files": lambda folder: trials.damaged_files(folder, n_flips=n_flips),
        "full disk": lambda folder: [trials.full_disk(folder)],
        "killed tuners": lambda folder: [tuners.killed_tuners(folder, n_kills=n_tuners)],
        "killed workers": lambda folder: [tuners.killed_workers(folder, n_kills=n_tuners)],
    }


def table(found: Sequence[trials.Outcome], about: str, left: Sequence[str] = ()) -> str:
    """Return what became of the stores as Markdown."""
    wrong = [outcome.fault for outcome in found if not outcome.is_right]
    verdict = f"**Wrong: {', '.join(wrong)}.**" if wrong else "Nothing was lost."
    lines = [f"{about}. {verdict}", "", "| fault | what became of it |", "| --- | --- |"]
    lines += [f"| {outcome.fault} | {_figures(outcome)} |" for outcome in found]
    lines += ["", f"To come: {', '.join(left)}."] if left else []
    return "\n".join(lines) + "\n"


def _figures(outcome: trials.Outcome) -> str:
    return ", ".join(f"{name}: {value}" for name, value in outcome.figures.items())


def run(
    all_steps: Mapping[str, Step], journal: Journal, *, limit_s: float = math.inf
) -> list[trials.Outcome]:
    """Take the steps that an earlier run did not; print a line for each fault."""
    found = []
    stop = time.monotonic() + limit_s
    for name, step in all_steps.items():
        is_open = not journal.rows.get(name)  # no server was found, perhaps
        if is_open and time.monotonic() >= stop:
            continue
        if is_open:
            with tempfile.TemporaryDirectory() as folder:
                journal.add(name, [asdict(outcome) for outcome in step(Path(folder))])
        outcomes = [trials.Outcome(**row) for row in journal.rows[name]]
        for outcome in outcomes:
            verdict = "ok   " if outcome.is_right else "FAULT"
            print(f"{verdict} {outcome.fault}: {_figures(outcome)}", flush=True)
        found += outcomes
    if all(journal.rows.get(name) for name in all_steps):
        journal.finish()
    return found


def main() -> int:
    """Print one line for each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=500, help="of each of 8 writers")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--tuners", type=int, default=100, help="and as many workers")
    parser.add_argument("--report", type=Path, metavar="DIR", required=True)
    parser.add_argument(
        "--limit", type=float, default=math.inf, metavar="SECONDS", help="begin no step after this"
    )
    given = parser.parse_args()
    sizes = {
        "n_commits": given.commits,
        "n_kills": given.kills,
        "n_flips": given.flips,
        "n_tuners": given.tuners,
    }
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{load} on {os.cpu_count()} cores")
    code = digest(Path(tvmfuse.__file__).parent)
    journal = Journal(given.report / "faults.partial.jsonl", {**sizes, "code": code})
    all_steps = steps(**sizes)
    found = run(all_steps, journal, limit_s=given.limit)
    left = [name for name in all_steps if not journal.rows.get(name)]
    about = f"{time.strftime('%Y-%m-%d')}, {detect().model}, {os.cpu_count()} cores, {load}"
    (given.report / "faults.md").write_text(table(found, about, left), encoding="utf-8")
    return 0 if all(outcome.is_right for outcome in found) else 1


if __name__ == "__main__":
    sys.exit(main())
