"""Time whole networks against ONNX Runtime and against the machine's limit.

The networks are the bench tier of ``models.toml``: the exported ones and those that
ship in packages. Each is compiled by ``tvmfuse compile`` at zero trials; then both
sides, each in a process of its own, take turns with equally many threads. The limit
is a network's arithmetic at the peak that ``tvmfuse calibrate`` measured::

    python scripts/bench/end_to_end.py --models models/bench --models models
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import campaign
from coverage_table import Entry, run_json
from engine import measure, prepare
from outcome import Setting
from peers import find
from sides import OURS, PEERS, REFERENCE, sides_json

NAME = "end_to_end"
SIDES = (OURS, REFERENCE)
# What must be reached: of ONNX Runtime's speed, and when compiling.
MEAN, WORST = 1.0, 0.8
COMPILE_S = {"bert_base": 30, "resnet50": 60}
COMPILE_MIB = 3 * 1024


def work(model: Path) -> float:
    """Return the floating-point operations of a network, in GFLOP."""
    code = "import sys; from tvmfuse.report.work import flops; print(flops(sys.argv[1]))"
    line = [sys.executable, "-c", code, str(model)]
    return float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout) / 1e9


def markdown(report: Mapping[str, Any]) -> str:
    """Return the table as it stands in README."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["network"], {})[row["side"]] = row
    peak = report["peak_gflops"]
    speeds = {name: both[REFERENCE]["ratio"] for name, both in rows.items()}
    lines = [
        heading(report),
        "",
        verdict(speeds),
        compiling({name: both[OURS]["compiled"] for name, both in rows.items()}),
        "",
        "| network | tvmfuse, ms | ONNX Runtime, ms | ONNX Runtime's speed × | of the limit "
        "| kernels | compile, s | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [line(name, both[OURS], both[REFERENCE], peak) for name, both in rows.items()]
    if report["left"]:
        lines += ["", f"Not measured, for the run had a limit: {', '.join(report['left'])}."]
    return "\n".join(lines) + "\n"


def heading(report: Mapping[str, Any]) -> str:
    """Say when, where and how it was measured."""
    before, after = report["load"]
    return (
        f"{report['date']}, {report['machine']['processor']}, load average {before} before and "
        f"{after} after; {report['threads']} threads, {report['rounds']} rounds, float32 unless "
        "the file says otherwise, batch 1, zero trials. Peak measured by `tvmfuse calibrate`: "
        f"{report['peak_gflops']:.0f} GFLOP/s. Medians; quartiles in brackets."
    )


def verdict(speeds: Mapping[str, float | None]) -> str:
    """Say how the networks do together, and which does worst."""
    measured = {name: speed for name, speed in speeds.items() if speed}
    if not measured:
        return "No network could be timed."
    mean, worst = geometric_mean(measured.values()), min(measured, key=lambda n: measured[n])
    is_reached = mean >= MEAN and measured[worst] >= WORST and len(measured) == len(speeds)
    return (
        f"**{mean:.2f}× ONNX Runtime's speed in the geometric mean of {len(measured)} networks, "
        f"{measured[worst]:.2f}× at worst ({worst})**; to reach: {MEAN:.2f}×, and none under "
        f"{WORST:.2f}×: {'yes' if is_reached else 'no'}."
    )


def compiling(compiled: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Say what compiling took at most."""
    known = {name: about for name, about in compiled.items() if about}
    if not known:
        return ""
    slowest = max(known, key=lambda name: known[name]["seconds"])
    largest = max(known, key=lambda name: known[name]["peak_mib"])
    is_kept = known[largest]["peak_mib"] < COMPILE_MIB and all(
        known[name]["seconds"] < most for name, most in COMPILE_S.items() if name in known
    )
    musts = ", ".join(f"{name} under {most} s" for name, most in COMPILE_S.items())
    return (
        f"Compiling takes {known[slowest]['seconds']:.1f} s at most ({slowest}), and "
        f"{known[largest]['peak_mib']:.0f} MiB ({largest}); to keep: {musts}, "
        f"{COMPILE_MIB} MiB: {'yes' if is_kept else 'no'}."
    )


def line(name: str, ours: Mapping[str, Any], peer: Mapping[str, Any], peak_gflops: float) -> str:
    """Return a network's line of the table."""
    if ours["cause"] or peer["cause"]:
        cause = ours["cause"] or f"ONNX Runtime: {peer['cause']}"
        return f"| {name} | {cause.replace('|', '/')[:200]} | | | | | | |"
    limit_ms = ours["gflop"] / peak_gflops * 1e3
    compiled = ours["compiled"]
    return (
        f"| {name} | {span(ours)} | {span(peer)} | {ratio(peer)} "
        f"| {1e5 * limit_ms / ours['median_us']:.0f} % | {compiled['kernels']} "
        f"| {compiled['seconds']:.1f} | {compiled['peak_mib']:.0f} |"
    )


def span(row: Mapping[str, Any]) -> str:
    """Return a median with its quartiles, in milliseconds."""
    middle, low, high = (value / 1e3 for value in (row["median_us"], *row["quartiles_us"]))
    digits = 1 if middle >= 10 else 2
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def ratio(row: Mapping[str, Any]) -> str:
    """Return how many times as long as tvmfuse a side takes, with quartiles."""
    low, high = row["ratio_quartiles"]
    return f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="all of the tier when none is given"
    )
    parser.add_argument(
        "--models", type=Path, action="append", required=True, metavar="DIR", help="may be repeated"
    )
    campaign.add_options(parser, rounds=9)
    args = parser.parse_args(argv)
    entries = find(args.models, args.names, tier=None if args.names else "bench")
    with ExitStack() as stack:
        scratch = (args.scratch or Path(stack.enter_context(TemporaryDirectory()))).resolve()
        setting = Setting(args.threads, 0 if args.prepare else args.rounds, args.patience, scratch)

        def measure_one(entry: Entry) -> list[Mapping[str, Any]]:
            sides = [PEERS[name] for name in SIDES]
            results = measure(entry, sides, setting, progress=campaign.say)
            model, _ = prepare(entry, scratch)
            gflop = 0.0 if results[0].cause else work(model)
            return [{**result.to_json(), "gflop": gflop} for result in results]

        if args.prepare:
            campaign.prepare(entries, measure_one)
            return 0
        campaign.say("calibrate")
        peaks = run_json(("-m", "tvmfuse", "calibrate", "--json"), limit_s=args.patience)
        report = campaign.run(
            NAME, entries, measure_one, args=args, setting=setting, sides=sides_json(SIDES)
        )
    report["peak_gflops"] = peaks["peaks"]["gflops"]
    campaign.write(report, markdown(report), name=NAME, results=args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
