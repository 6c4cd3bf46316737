"""Time the kernels of many models, fused, unfused and partly fused, to learn from.

Each model is compiled under several plans. All of them then run in turns, several runs
of one at a time, and every kernel is timed in its place: its weights have gone cold
since the last run and its inputs are warm, as in use. What is there already is kept, so
an interrupted run goes on where it stopped::

    python scripts/collect_measurements.py --models models --generated 40 --into FILE.jsonl

A machine that is shared can be made quiet while kernels are timed: ``--quiet-by CMD``
starts CMD, waits for its first line, and closes its standard input when done.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import generated_graphs
from bench.sample_inputs import sample
from full_speed import FullSpeed

from tvmfuse import Session, _pipeline, targets
from tvmfuse._tvm import threads
from tvmfuse.calibrate import calibrated
from tvmfuse.cost import data
from tvmfuse.cost.roofline import Roofline
from tvmfuse.errors import TvmFuseError
from tvmfuse.frontend import Model, import_model
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.opgraph import Describer
from tvmfuse.plan import FusionPlan
from tvmfuse.planner import STRATEGIES, Sampled, Strategy
from tvmfuse.report.machine import describe
from tvmfuse.runtime.timing import quartiles
from tvmfuse.store.devices import device_of
from tvmfuse.store.versions import Versions
from tvmfuse.targets import Target
from tvmfuse.tuning import cost_models, variants

TRIES = 3
WAIT_S = 5.0
ALMOST_FULL = 0.85  # of the calibrated speed, after timing

MODELS_TOML = Path(__file__).parent / "models.toml"


@dataclass(frozen=True)
class Entry:
    """A model to measure, and what to feed it."""

    name: str
    family: str
    source: Any
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A model under several plans, ready to run; ``same`` names the plan of each planner."""

    entry: Entry
    model: Model
    canonical: Any
    plans: Mapping[str, FusionPlan]
    same: Mapping[str, str]
    variants: variants.Variants


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return 1 where a model could not be."""
    args = _arguments(argv)
    target = calibrated(targets.resolve(args.target))
    if target.peaks.source != "measured":
        print(f"{args.target} has no measured peaks: run tvmfuse calibrate --target {args.target}")
        return 1
    done = _done(args.into, args.target)
    strategies = {**STRATEGIES, **{f"sampled-{i}": Sampled(i) for i in range(args.sampled)}}
    if args.into.exists() and args.into.stat().st_size:
        args.into.write_text(_whole_lines(args.into.read_text()))
    failed, speed = 0, FullSpeed(target)
    with args.into.open("a", encoding="utf-8") as file:
        file.write(data.run_line(_run(target)) + "\n")
        for batch in _batches(_entries(args), args, done):
            built = []
            for entry in batch:
                try:
                    built.append(build(entry, target, strategies))
                except TvmFuseError as error:
                    failed += 1
                    print(f"{entry.name}: {error}", file=sys.stderr)
            for lines in measure(built, speed, rounds=args.rounds, quiet_by=args.quiet_by):
                file.write("".join(line + "\n" for line in lines))
                file.flush()
    if args.db:
        found = data.read(args.into)[-1:]
        command = "scripts/collect_measurements.py"
        print(f"{cost_models.record(args.db, target, found, command)} put into {args.db}")
    return 1 if failed else 0


def build(entry: Entry, target: Target, strategies: Mapping[str, Strategy]) -> Built:
    """Compile a model under every plan that differs from those before it."""
    start = time.perf_counter()
    shapes = {name: given["shape"] for name, given in entry.inputs.items() if "shape" in given}
    model = import_model(entry.source, shapes=shapes)
    plans, same, planned = _plans(model, target, strategies)
    built = variants.build(planned, plans, target, signature=model.signature)
    seconds = time.perf_counter() - start
    print(f"{entry.name}: {', '.join(plans)} built in {seconds:.1f} s", flush=True)
    return Built(entry, model, planned.module, plans, same, built)


def _plans(
    model: Model, target: Target, strategies: Mapping[str, Strategy]
) -> tuple[dict[str, FusionPlan], dict[str, str], _pipeline.Planned]:
    """Return the plans of a model that differ, which is whose, and their module."""
    options = {name: _pipeline.Options(strategy=way) for name, way in strategies.items()}
    options["prior"] = _pipeline.Options(cost_model=Roofline(target.peaks))
    plans: dict[str, FusionPlan] = {}
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    for name, told in options.items():
        planned = _pipeline.plan(model.module, target, options=told)
        main = [g.candidate for g in planned.plan.groups if g.candidate.function == "main"]
        groups = frozenset((candidate.bindings, candidate.pattern) for candidate in main)
        same[name] = first.setdefault(groups, name)
        if same[name] == name:
            plans[name] = planned.plan
    return plans, same, planned


def measure(
    built: Sequence[Built], speed: FullSpeed, *, rounds: int, quiet_by: str | None
) -> Iterator[list[str]]:
    """Time models; yield the lines of each that the machine ran at full speed."""
    sessions = [each.variants.sessions for each in built]
    feeds = [
        {
            spec.name: sample(
                each.entry.inputs.get(spec.name, {}), shape=spec.shape, dtype=spec.dtype
            )
            for spec in each.model.signature.inputs
        }
        for each in built
    ]
    for own, fed in zip(sessions, feeds, strict=True):
        for session in own.values():
            session.kernel_times(fed)
    with _quiet(quiet_by):
        start = time.perf_counter()
        timed = [
            _at_full_speed(own, fed, rounds, speed)
            for own, fed in zip(sessions, feeds, strict=True)
        ]
        print(f"timed in {time.perf_counter() - start:.1f} s", flush=True)
    for each, times in zip(built, timed, strict=True):
        if times is None:
            print(f"{each.entry.name}: the machine was not at full speed", file=sys.stderr)
        else:
            yield list(_lines(each, times))


def _at_full_speed(
    sessions: Mapping[str, Session], feeds: Mapping[str, Any], rounds: int, speed: FullSpeed
) -> dict[str, Times] | None:
    """Time a model between two moments of full speed; None where there are none."""
    for _ in range(TRIES):
        if speed.wait(WAIT_S):
            times = _turns(sessions, feeds, rounds)
            if speed.share() > ALMOST_FULL:
                return times
    return None


@dataclass
class Times(variants.Times):
    """Times of kernels, and of the whole model."""

    model_us: list[float] = field(default_factory=list)


def _turns(
    sessions: Mapping[str, Session], feeds: Mapping[str, Any], rounds: int
) -> dict[str, Times]:
    """Let the plans of a model run in turns; the better of two runs is a round's."""
    times = {name: Times() for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            session(feeds)
            runs = [_passed_us(session, feeds) for _ in range(variants.COUNTED_RUNS)]
            times[name].model_us.append(min(runs))
            times[name].add_round(session, feeds)
    return times


def _passed_us(session: Session, feeds: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    session(feeds)
    return (time.perf_counter() - start) * 1e6


def _lines(built: Built, times: Mapping[str, Times]) -> Iterator[str]:
    """Yield what was measured of one model."""
    describer = Describer(Dataflow.of("main", built.canonical["main"]))
    about = built.entry.name, built.entry.family
    for name, plan in built.plans.items():
        taken = times[name]
        kernels, other_us = [], 0.0
        for kernel, us in taken.kernels_us.items():
            info = built.variants.kernels.get(kernel)
            median, (first, third) = statistics.median(us), quartiles(tuple(us))
            if info is None or not info.places or not all(info.places):
                other_us += median * taken.calls[kernel]
                continue
            graph = describer.graph(info.places[0])
            kernels.append(
                data.MeasuredKernel(
                    *(*about, name, info.pattern, info.family, info.schedule, graph),
                    *(median, third - first, taken.calls[kernel]),
                    tuple(dict.fromkeys(info.places)),
                )
            )
        first, third = quartiles(tuple(taken.model_us))
        model_us = statistics.median(taken.model_us)
        groups = tuple(g.candidate.bindings for g in plan.groups if g.candidate.function == "main")
        whole = [
            data.MeasuredPlan(*about, alike, model_us, third - first, other_us, groups)
            for alike, of in built.same.items()
            if of == name
        ]
        yield from data.lines(kernels, whole)


@contextmanager
def _quiet(command: str | None) -> Iterator[None]:
    """Keep the machine quiet by a command that is told to end by its standard input."""
    if command is None:
        yield
        return
    pipe = subprocess.PIPE
    with subprocess.Popen(shlex.split(command), stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def _run(target: Target) -> data.Run:
    device, versions = device_of(target), Versions.installed()
    return data.Run(
        device=describe()["processor"],
        device_family=device.family,
        target=target.spec,
        threads=threads.in_use(),
        peaks=target.peaks,
        versions={"tvm": versions.tvm, "tvmfuse": versions.tvmfuse},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _done(path: Path, target: str) -> set[str]:
    """Return the models that a file has of a target."""
    if not path.exists():
        return set()
    runs = [found for found in data.read(path) if found.run.target == target]
    return {plan.model for found in runs for plan in found.plans}


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _entries(args: argparse.Namespace) -> Iterator[Entry]:
    listed = tomllib.loads(MODELS_TOML.read_text(encoding="utf-8"))
    for kind, folder in (("models", args.models), ("exported", args.exported)):
        for name, given in listed[kind].items() if folder else ():
            if (folder / f"{name}.onnx").exists():
                path = folder / f"{name}.onnx"
                yield Entry(name, given["family"], path, given["inputs"])
    for seed in range(args.generated):
        yield Entry(f"generated_{seed}", "generated", generated_graphs.module(seed))


def _batches(
    entries: Iterator[Entry], args: argparse.Namespace, done: set[str]
) -> Iterator[list[Entry]]:
    """Yield the models that are missing, a few at a time: they share one quiet moment."""
    batch: list[Entry] = []
    for entry in entries:
        is_wanted = not args.names or entry.name in args.names
        if is_wanted and entry.name not in done:
            batch.append(entry)
        if len(batch) == args.batch:
            yield batch
            batch = []
    if batch:
        yield batch


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--models", type=Path, metavar="DIR", help="of scripts/fetch_models.py")
    parser.add_argument("--exported", type=Path, metavar="DIR", help="of bench/export_models.py")
    parser.add_argument("--generated", type=int, default=0, metavar="N", help="random graphs")
    parser.add_argument("--sampled", type=int, default=3, metavar="N", help="random plans each")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="models timed together")
    parser.add_argument("--db", metavar="FILE|URL", help="put the measurements there, too")
    parser.add_argument("--quiet-by", metavar="CMD", help="keeps the machine quiet")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
