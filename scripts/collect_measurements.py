"""Time the kernels of many models, fused, unfused and partly fused, to learn from.

Each model is built under several plans first, which a busy machine may do. All plans of
a model then run in turns, and every kernel is timed in its place: its weights have gone
cold since the last run and its inputs are warm, as in use. What is there already is
kept, so an interrupted run goes on where it stopped::

    python scripts/collect_measurements.py --models models --generated 40 --built DIR --into FILE

``--phase prepare`` only builds, ``--phase time`` only times what has been built.
"""

from __future__ import annotations

import argparse
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
    target = calibrated(targets.resolve(args.target))
    if target.peaks.source != "measured":
        print(f"{args.target} has no measured peaks: run tvmfuse calibrate --target {args.target}")
        return 1
    found = entries(args.models, args.exported, generated=args.generated)
    wanted = [entry for entry in found if not args.names or entry.name in args.names]
    failed = 0
    if args.phase != "time":
        failed += _prepare([e for e in wanted if not prepared.is_there(args.built, e)], args)
    if args.phase != "prepare":
        failed += _time(wanted, target, args)
    return 1 if failed else 0


def _prepare(missing: Sequence[Entry], args: argparse.Namespace) -> int:
    """Build what is missing, several at a time; return how many could not be."""
    end, failed = time.monotonic() + args.limit, 0
    # A process each: a compiler that ran out of memory takes no other model with it.
    pool = ProcessPoolExecutor(
        args.jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )
    with pool:
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
    done = _done(args.into, args.target)
    if args.into.exists() and args.into.stat().st_size:
        files.write_text(args.into, _whole_lines(args.into.read_text()))
    end, failed, speed = time.monotonic() + args.limit, 0, FullSpeed(target)
    args.into.parent.mkdir(parents=True, exist_ok=True)
    with args.into.open("a", encoding="utf-8") as file:
        file.write(data.run_line(run_here(target, device=describe()["processor"])) + "\n")
        for entry in wanted:
            for each in prepared.read(args.built, entry) if entry.name not in done else ():
                if time.monotonic() > end:
                    return failed
                start = time.perf_counter()
                lines = timing.measure(each, speed, rounds=args.rounds, seconds=args.seconds_each)
                if lines is None:
                    failed += 1
                    print(f"{each.folder.name}: the machine was not at full speed", file=sys.stderr)
                    continue
                file.write("".join(line + "\n" for line in lines))
                file.flush()
                seconds = time.perf_counter() - start
                print(f"{each.folder.name}: {len(lines)} lines in {seconds:.1f} s", flush=True)
    if args.db:
        measured = data.read(args.into)[-1:]
        command = "scripts/collect_measurements.py"
        print(f"{cost_models.record(args.db, target, measured, command)} put into {args.db}")
    return failed


def _done(path: Path, target: str) -> set[str]:
    """Return the models that a file has of a target."""
    if not path.exists():
        return set()
    spec = targets.resolve(target).spec
    runs = [found for found in data.read(path) if found.run.target == spec]
    return {plan.model for found in runs for plan in found.plans}


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
        "--seconds-each", type=float, default=12.0, metavar="S", help="then no further round"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="S", help="then no further model"
    )
    parser.add_argument("--tuned-by", metavar="FILE|URL", help="a store with tuned schedules")
    parser.add_argument("--db", metavar="FILE|URL", help="put the measurements there, too")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
