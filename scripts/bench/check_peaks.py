"""Check the peaks that tvmfuse measures against loops that a C compiler compiled.

Needs a quiet machine; exits with 1 where a number is off by more than its tolerance.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tvmfuse.calibrate import calibrate
from tvmfuse.calibrate.measurement import buffers
from tvmfuse.targets import Target, resolve

# The C loops keep 12 sums, not 24, and read without knowing where a pass begins: the
# arithmetic agrees within percents, the caches less well.
TOLERANCE = {"arithmetic": 0.10, "l1": 0.25, "l2": 0.25, "l3": 0.35, "dram": 0.35}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both ways, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu", help="a CPU target of this machine")
    parser.add_argument("--cc", default="cc", help="the C compiler")
    options = parser.parse_args(arguments)
    if shutil.which(options.cc) is None:
        print(f"check_peaks: needs a C compiler, but found no {options.cc!r}", file=sys.stderr)
        return 2
    target = resolve(options.target)
    console = Console()
    with console.status("measuring"):
        peaks = calibrate(target)
        ours = {"arithmetic": peaks.gflops, **peaks.bandwidth_gbps}
        theirs = in_c(target, options.cc, threads=peaks.cores)
    table = Table("", "tvmfuse", "C", "ratio", "within", title=f"{peaks.cores} threads")
    is_off = False
    for name, value in ours.items():
        ratio = value / theirs[name]
        off = abs(ratio - 1) > TOLERANCE[name]
        is_off |= off
        unit = "GFLOP/s" if name == "arithmetic" else "GB/s"
        within = f"{TOLERANCE[name]:.0%}" + (" NO" if off else "")
        table.add_row(name, f"{value:.1f} {unit}", f"{theirs[name]:.1f}", f"{ratio:.2f}", within)
    console.print(table)
    return int(is_off)


def in_c(target: Target, compiler: str, *, threads: int) -> dict[str, float]:
    """Return GFLOP/s and GB/s by level as the C program measures them."""
    source = Path(__file__).with_name("peaks.c")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peaks"
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread"]
        flags.append(f"-DVECTOR_BYTES={target.vector_bytes}")
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)

        def run(*what: object) -> float:
            command = [str(program), str(threads), *map(str, what)]
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        sizes = buffers(target, threads)
        reading = {level: run("read", size >> 10) for level, size in sizes.items()}
        return {"arithmetic": run("flops"), **reading}


if __name__ == "__main__":
    sys.exit(main())
