"""Time the kernels of many models, fused, unfused and partly fused, to learn from.

Each model is built under several plans first, which a busy machine may do. All plans of
a model then run in turns, and every kernel is timed in its place: its weights have gone
cold since the last run and its inputs are warm, as in use. What is there already is
kept, so an interrupted run goes on where it stopped. A machine can be slow for seconds
without being slow at arithmetic, so each model is come back to (``--visits``), each time in
a process of its own::

    python scripts/collect_measurements.py --models models --generated 40 --built DIR --into FILE

``--phase prepare`` only builds, ``--phase time`` only times what has been built.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from collecting import prepared, timing
from collecting.entries import Entry, entries
from full_speed import FullSpeed

from tvmfuse import files, targets
from tvmfuse.calibrate import calibrated
from tvmfuse.cost import data
from tvmfuse.errors import TvmFuseError
from tvmfuse.report.machine import describe
from tvmfuse.targets import Target
from tvmfuse.tuning import cost_models
from tvmfuse.tuning.observing import run_here


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return 1 where a model could not be."""
    args = _arguments(argv)
    target = _target(args)
    if target.peaks.source != "measured":
        print(f"{args.target} has no measured peaks: run tvmfuse calibrate --target {args.target}")
        return 1
    found = entries(args.models, args.exported, generated=args.generated)
    wanted = [entry for entry in found if not args.names or entry.name in args.names]
    failed = 0
    if args.phase != "time":
        missing = [e for e in wanted if args.again or not prepared.is_there(args.built, e)]
        failed += _prepare(missing, args)
    if args.phase != "prepare":
        failed += _time(wanted, target, args)
    return 1 if failed else 0


def _prepare(missing: Sequence[Entry], args: argparse.Namespace) -> int:
    """Build what is missing, several at a time; return how many could not be."""
    end, failed = time.monotonic() + args.limit, 0
    # A process each: a compiler that ran out of memory takes no other model with it.
    with _processes(args.jobs) as pool:
        waiting = list(missing)
        running = {}
        while waiting or running:
            while waiting and len(running) < args.jobs and time.monotonic() < end:
                entry = waiting.pop(0)
                running[pool.submit(_prepare_one, entry, args)] = entry.name
            if not running:
                break
            done = next(as_completed(running))
            name = running.pop(done)
            try:
                print(f"{name}: {done.result()}", flush=True)
            except Exception as error:  # noqa: BLE001 - whatever fails, the others go on
                failed += 1
                print(f"{name}: {error}", file=sys.stderr)
    return failed


def _prepare_one(entry: Entry, args: argparse.Namespace) -> str:
    start = time.perf_counter()
    try:
        count = prepared.prepare(
            entry, args.built, args.target, sampled=args.sampled, tuned_by=args.tuned_by
        )
    except TvmFuseError as error:
        raise RuntimeError(str(error)) from None  # crosses to the other process
    return f"{count} kernels built in {time.perf_counter() - start:.1f} s"


def _time(wanted: Sequence[Entry], target: Target, args: argparse.Namespace) -> int:
    """Time what is built and not in the file yet; return how many could not be."""
    done = set() if args.again else _done(args.into, args.target)
    if args.into.exists() and args.into.stat().st_size:
        files.write_text(args.into, _whole_lines(args.into.read_text()))
    end, failed = time.monotonic() + args.limit, 0
    args.into.parent.mkdir(parents=True, exist_ok=True)
    with args.into.open("a", encoding="utf-8") as file:
        file.write(data.run_line(run_here(target, device=describe()["processor"])) + "\n")
    ready = [e for e in wanted if e.name not in done and prepared.is_there(args.built, e)]
    taken: dict[str, Sequence[str]] = {}
    for entry in [entry for _ in range(args.visits) for entry in ready]:
        if time.monotonic() > end:
            break
        start = time.perf_counter()
        # A process each: in one that ran another model, kernels can be several times slower.
        with _processes(1) as pool:
            lines = pool.submit(_time_one, entry, args).result()
        if lines is None:
            failed += 1
            print(f"{entry.name}: the machine was not at full speed", file=sys.stderr)
            continue
        again = ""
        if before := taken.get(entry.name):
            again = f", {timing.ratio(lines, before):.2f} times what it was"
            lines = timing.quicker(lines, before)
        taken[entry.name] = lines
        _put(entry.name, lines, args.into)
        seconds = time.perf_counter() - start
        print(f"{entry.name}: {len(lines)} lines in {seconds:.1f} s{again}", flush=True)
    if args.db:
        measured = data.read(args.into)[-1:]
        command = "scripts/collect_measurements.py"
        print(f"{cost_models.record(args.db, target, measured, command)} put into {args.db}")
    return failed


def _time_one(entry: Entry, args: argparse.Namespace) -> list[str] | None:
    parts, speed = list(prepared.read(args.built, entry)), FullSpeed(_target(args))
    return timing.measure(parts, speed, rounds=args.rounds, seconds=args.seconds_each)


def _target(args: argparse.Namespace) -> Target:
    return calibrated(targets.resolve(args.target))


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )


def _put(model: str, lines: Sequence[str], path: Path) -> None:
    """Write the lines of a model in place of those that are there."""
    others = _without(model, path.read_text())
    files.write_text(path, others + "".join(line + "\n" for line in lines))


def _done(path: Path, target: str) -> set[str]:
    """Return the models that a file has of a target."""
    if not path.exists():
        return set()
    spec = targets.resolve(target).spec
    runs = [found for found in data.read(path) if found.run.target == spec]
    return {plan.model for found in runs for plan in found.plans}


def _without(model: str, text: str) -> str:
    """Return the lines that are not of a model."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if json.loads(line).get("model") != model)


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--models", type=Path, metavar="DIR", help="of scripts/fetch_models.py")
    parser.add_argument("--exported", type=Path, metavar="DIR", help="of bench/export_models.py")
    parser.add_argument("--generated", type=int, default=0, metavar="N", help="random graphs")
    parser.add_argument("--sampled", type=int, default=3, metavar="N", help="random plans each")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--phase", choices=("prepare", "time", "both"), default="both")
    parser.add_argument(
        "--built", type=Path, required=True, metavar="DIR", help="for what is built"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models built at a time")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--visits",
        type=int,
        default=3,
        metavar="N",
        help="times each model is come back to; the shortest time of a kernel counts",
    )
    parser.add_argument(
        "--seconds-each", type=float, default=12.0, metavar="S", help="then no further round"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="S", help="then no further model"
    )
    parser.add_argument(
        "--tuned-by", metavar="FILE|URL", help="a store with tuned schedules, beside the packs"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="models that are there, too: build what is planned otherwise now, time all anew",
    )
    parser.add_argument("--db", metavar="FILE|URL", help="put the measurements there, too")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
