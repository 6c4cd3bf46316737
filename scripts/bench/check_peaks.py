"""Check the peaks that tvmfuse measures against loops that a C compiler compiled.

Arithmetic and STREAM's triad, which the limits of the tables stand on, must agree
within 5 %; the caches are read in another order, and agree less well. Needs a quiet
machine; exits with 1 where a number is off by more than its tolerance::

    python scripts/bench/check_peaks.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse._tvm import tvm
from tvmfuse.calibrate import calibrate
from tvmfuse.calibrate import kernels as loops
from tvmfuse.calibrate.measurement import buffers
from tvmfuse.report import machine
from tvmfuse.targets import Target, resolve

HERE = Path(__file__).parent
TOLERANCE = {"arithmetic": 0.05, "triad": 0.05, "l1": 0.25, "l2": 0.25, "l3": 0.35, "dram": 0.35}
UNITS = {"arithmetic": "GFLOP/s"}
WORDS = {
    "arithmetic": "float32 fused multiply-adds",
    "triad": "STREAM's triad, write-allocate counted",
    "dram": "reading memory",
}
# STREAM asks for four times the last cache; a virtual machine's may be a server's.
TRIAD_BYTES = 128 << 20
TRIAD_SECONDS = 0.4
# Where its pages lie moves it by half, and they lie elsewhere at every turn.
TRIAD_TURNS = 10


@dataclass(frozen=True)
class Peaks:
    """What this machine can do, measured by tvmfuse and by loops in C.

    Parameters
    ----------
    threads : int
        Threads of both.
    ours, in_c : Mapping of str to float
        By the keys of ``TOLERANCE``; GFLOP/s for arithmetic, else GB/s.
    """

    threads: int
    ours: Mapping[str, float]
    in_c: Mapping[str, float]

    @property
    def gflops(self) -> float:
        """Arithmetic: the better of the two, so that no limit is set too low."""
        return max(self.ours["arithmetic"], self.in_c["arithmetic"])

    @property
    def triad_gbps(self) -> float:
        """STREAM's triad, write-allocate counted: the better of the two."""
        return max(self.ours["triad"], self.in_c["triad"])

    def is_off(self, name: str) -> bool:
        """Whether the two differ by more than is tolerated."""
        return abs(self.ours[name] / self.in_c[name] - 1) > TOLERANCE[name]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible data."""
        return {**asdict(self), "gflops": self.gflops, "triad_gbps": self.triad_gbps}


def measure(*, threads: int, target: str = "cpu", compiler: str = "cc") -> Peaks:
    """Measure both ways.

    Raises
    ------
    SystemExit
        There is no such C compiler.
    """
    if shutil.which(compiler) is None:
        raise SystemExit(f"check_peaks: needs a C compiler, but found no {compiler!r}")
    os.environ["TVM_NUM_THREADS"] = str(threads)
    device = resolve(target)
    found = calibrate(device)
    threads = found.cores
    with loops_in_c(target, compiler, threads=threads) as run:
        sizes = buffers(device, threads)
        in_c = {"arithmetic": run("flops"), "triad": 0.0}
        in_c |= {level: run("read", size >> 10) for level, size in sizes.items()}
        ours = {"arithmetic": found.gflops, "triad": 0.0, **found.bandwidth_gbps}
        for _ in range(TRIAD_TURNS):
            ours["triad"] = max(ours["triad"], triad(device, threads=threads))
            in_c["triad"] = max(in_c["triad"], run("triad", TRIAD_BYTES >> 10))
    return Peaks(threads, ours, in_c)


def triad(target: Target, *, threads: int) -> float:
    """Return GB/s of STREAM's triad as TVM compiles it, write-allocate counted."""
    row = loops.row(target)
    rows = TRIAD_BYTES // (4 * threads * math.prod(row))
    run = loops.triad(target, threads=threads, rows=rows)
    # One thread touches every page first, as in the C program: pages that several threads
    # touch at once lie scattered, and are found half as fast.
    ones = np.ones((threads, rows, *row), "float32")
    arrays = [tvm.runtime.tensor(ones) for _ in "bca"]
    best, end = math.inf, time.perf_counter() + TRIAD_SECONDS
    while (begin := time.perf_counter()) < end:
        run(*arrays)
        best = min(best, time.perf_counter() - begin)
    return 4 * 4 * threads * rows * math.prod(row) / best / 1e9


@contextmanager
def loops_in_c(
    target: str = "cpu", compiler: str = "cc", *, threads: int
) -> Iterator[Callable[..., float]]:
    """Compile ``peaks.c`` and yield what runs it: words of its usage to GFLOP/s or GB/s."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peaks"
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread"]
        flags += [f"-DVECTOR_BYTES={resolve(target).vector_bytes}", f"-DSECONDS={TRIAD_SECONDS}"]
        source = HERE / "peaks.c"
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)

        def run(*what: object) -> float:
            command = [str(program), str(threads), *map(str, what)]
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        yield run


def markdown(peaks: Peaks, about: Mapping[str, Any]) -> str:
    """Return the table as it stands in README."""
    lines = [
        f"{date.today().isoformat()}, {about['processor']}, {peaks.threads} threads, load average "
        f"{about['load']}; the best of many passes.",
        "",
        "| peak | tvmfuse | C | ratio | tolerated |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, value in peaks.ours.items():
        unit = UNITS.get(name, "GB/s")
        off = " – **off**" if peaks.is_off(name) else ""
        lines.append(
            f"| {WORDS.get(name, f'reading {name}')} | {value:.1f} {unit} | {peaks.in_c[name]:.1f} "
            f"| {value / peaks.in_c[name]:.2f} | {TOLERANCE[name]:.0%}{off} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both ways, write and print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="cpu", help="a CPU target of this machine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cc", default="cc", help="the C compiler")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    args = parser.parse_args(argv)
    peaks = measure(threads=args.threads, target=args.target, compiler=args.cc)
    table = markdown(peaks, machine.describe())
    args.results.mkdir(exist_ok=True, parents=True)
    report = json.dumps(peaks.to_json(), indent=1) + "\n"
    (args.results / "peaks.json").write_text(report, encoding="utf-8")
    (args.results / "peaks.md").write_text(table, encoding="utf-8")
    print(table)
    return int(any(map(peaks.is_off, peaks.ours)))


if __name__ == "__main__":
    sys.exit(main())
