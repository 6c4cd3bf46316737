"""Apple GPUs: what TVM is told, and what Apple says of them."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from dataclasses import dataclass

from tvmfuse.errors import TargetError
from tvmfuse.plan import Peaks
from tvmfuse.targets.base import Target

# What one dispatch costs when dispatches share a command buffer; Apple has no number.
_DISPATCH_US = 5.0
# Apple has no bandwidth of the last-level cache; twice the memory's is a modest guess.
_CACHE_PER_DRAM = 2.0


@dataclass(frozen=True)
class _Sheet:
    """The smallest chip of a generation, with its full number of GPU cores.

    Apple gives the compute rate of M1 and M2. Those of M3 and M4 follow from 128
    multiply-adds per core and cycle and the reported clocks.
    """

    gflops: float
    dram_gbps: float
    cores: int


_SHEETS = {
    "m1": _Sheet(2_600, 68, 8),
    "m2": _Sheet(3_600, 100, 10),
    "m3": _Sheet(3_500, 100, 10),
    "m4": _Sheet(4_300, 120, 10),
}
_CACHE_BYTES = 8 << 20  # system-level cache of all four, shared with the CPU


def target(chip: str) -> Target:
    """Describe an Apple GPU by its chip.

    Parameters
    ----------
    chip : str
        ``m1``, ``m2``, ``m3`` or ``m4``; the larger chips of a generation run the same
        code.

    Returns
    -------
    Target
        The host code of its libraries is for macOS on that chip.

    Raises
    ------
    TargetError
        The chip is unknown.
    """
    if chip not in _SHEETS:
        raise TargetError(
            f"target: 'metal:{chip}' needs one of {', '.join(_SHEETS)}, and {chip!r} is none of "
            "them; for a Pro, Max or Ultra give its generation"
        )
    sheet = _SHEETS[chip]
    return Target(
        spec=f"metal:{chip}",
        kind="metal",
        attrs={
            "kind": "metal",
            "max_threads_per_block": 1024,
            "max_num_threads": 1024,  # the older name, which some of dlight's rules read
            "thread_warp_size": 32,
            "max_shared_memory_per_block": 32 << 10,
            "host": {"kind": "llvm", "mtriple": "arm64-apple-macos", "mcpu": f"apple-{chip}"},
        },
        peaks=Peaks(
            gflops=sheet.gflops,
            bandwidth_gbps={"l2": _CACHE_PER_DRAM * sheet.dram_gbps, "dram": sheet.dram_gbps},
            cache_bytes={"l2": _CACHE_BYTES},
            dispatch_us=_DISPATCH_US,
            cores=sheet.cores,
        ),
        rules="dlight",
        runs_here=_fits(chip, _this_chip()),
    )


def _fits(chip: str, brand: str) -> bool:
    """Whether code for ``chip`` runs on a machine whose processor is called ``brand``."""
    found = re.match(r"Apple M(\d+)\b", brand)
    return found is not None and int(found[1]) >= int(chip.removeprefix("m"))


def _this_chip() -> str:
    """Return what this Mac calls its processor ("Apple M2 Pro"); "" elsewhere."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
