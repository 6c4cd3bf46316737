"""Time single kernels beside the libraries that are known for them, and the machine's limit.

Each is a model of one operator (``kernel_models.py``): the same file, inputs and
threads for every side, each in a process of its own, in turns. The limit of a
kernel is its arithmetic at the peak of fused multiply-adds, or what it moves at
the bandwidth of STREAM's triad, whichever takes longer; ``check_peaks.py`` measures
both::

    python scripts/bench/single_kernels.py --scratch .venv-peers/kernels
    python scripts/bench/single_kernels.py --scratch .venv-peers/kernels --only attention --rounds 3
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import campaign
import check_peaks
import kernels_table
import onnx
from compiling import no_records
from coverage_table import Entry
from crew import Crew
from engine import measure
from kernel_models import Kernel, all_kernels
from outcome import Setting
from peers import peer_names
from sides import ENVIRONMENTS, OURS, PEERS, REFERENCE, sides_json, with_environments

NAME = "kernels"
SIDES = (OURS, REFERENCE, "openvino", "torch")
ROUND_US = 40e3
PAUSE_S = 0.05  # a pool that spins longer would be one that spins for ever


def entry(kernel: Kernel, folder: Path) -> Entry:
    """Write a kernel's model, unless it is there, and return where it lies."""
    path = folder / f"{kernel.name}.onnx"
    if not path.exists():
        partial = path.with_suffix(".partial")
        onnx.save(kernel.build(), partial)
        partial.replace(path)
    return Entry(kernel.name, path, {})


def limits(kernel: Kernel, *, gflops: float, triad_gbps: float) -> dict[str, Any]:
    """Return what a row says of a kernel, whoever computes it."""
    return {
        "group": kernel.group,
        "title": kernel.title,
        "flops": kernel.flops,
        "bytes": kernel.n_bytes,
        "triad_gbps": triad_gbps,
        "limit_us": max(kernel.flops / gflops / 1e3, kernel.n_bytes / triad_gbps / 1e3),
    }


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line asks for; tvmfuse and ONNX Runtime always take part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name has it")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="DIR")
    parser.add_argument("--sides", type=peer_names, default=list(SIDES), metavar="NAME,...")
    campaign.add_options(parser, rounds=9)
    args = parser.parse_args(argv)
    args.kernels = [kernel for kernel in all_kernels() if args.only in kernel.name]
    if not args.kernels:
        parser.error(f"no kernel's name has {args.only!r} in it")
    args.sides = [name for name in PEERS if name in {OURS, REFERENCE, *args.sides}]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results and print the table; return the exit code."""
    args = options(argv)
    ready, missing = with_environments(args.sides, args.environments, say=campaign.say)
    with ExitStack() as stack:
        scratch = (args.scratch or Path(stack.enter_context(TemporaryDirectory()))).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        os.environ["TVMFUSE_DB"] = str(no_records(scratch))  # zero trials
        campaign.say("measure the peaks")
        peaks = check_peaks.measure(threads=args.threads)
        setting = Setting(
            args.threads,
            0 if args.prepare else args.rounds,
            args.patience,
            scratch,
            round_us=ROUND_US,
            pause_s=PAUSE_S,
        )
        crew = stack.enter_context(Crew(threads=args.threads, patience_s=args.patience))
        in_c = stack.enter_context(check_peaks.loops_in_c(threads=args.threads))
        known = {kernel.name: kernel for kernel in args.kernels}

        def measure_one(one: Entry) -> list[Mapping[str, Any]]:
            results = measure(one, ready, setting, crew=crew, progress=campaign.say)
            kernel, gbps = known[one.name], peaks.triad_gbps
            if kernel.n_bytes:  # it comes and goes with the neighbours of a virtual machine
                gbps = max(in_c("triad", check_peaks.TRIAD_BYTES >> 10) for _ in range(3))
            about = limits(kernel, gflops=peaks.gflops, triad_gbps=gbps)
            return [{**result.to_json(), **about} for result in results]

        entries = [entry(kernel, scratch) for kernel in args.kernels]
        if args.prepare:
            campaign.prepare(entries, measure_one)
            return 0
        sides = sides_json(args.sides)
        report = campaign.run(NAME, entries, measure_one, args=args, setting=setting, sides=sides)
    report["peaks"] = peaks.to_json()
    report["missing"] = {PEERS[name].title: why for name, why in missing.items()}
    campaign.write(report, kernels_table.markdown(report), name=NAME, results=args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
