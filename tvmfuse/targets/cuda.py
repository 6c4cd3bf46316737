"""NVIDIA GPUs: what TVM is told, and what the data sheets say."""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass

from tvmfuse.errors import TargetError
from tvmfuse.host import detect
from tvmfuse.plan import Peaks
from tvmfuse.targets.base import Target

# What one launch costs when launches follow one another; no data sheet has it.
_LAUNCH_US = 3.0
# No data sheet has the bandwidth of the L2 cache either; a modest guess.
_L2_PER_DRAM = 3.0


@dataclass(frozen=True)
class _Sheet:
    """The data sheet of the device that stands for an architecture."""

    device: str
    gflops: float
    dram_gbps: float
    l2_mib: int
    multiprocessors: int


_SHEETS = {
    "sm_75": _Sheet("T4", 8_100, 320, 4, 40),
    "sm_80": _Sheet("A100 SXM 40 GB", 19_500, 1_555, 40, 108),
    "sm_86": _Sheet("A10", 31_200, 600, 6, 72),
    "sm_87": _Sheet("Jetson AGX Orin 64 GB", 5_300, 205, 4, 16),
    "sm_89": _Sheet("L4", 30_300, 300, 48, 58),
    "sm_90": _Sheet("H100 SXM", 66_900, 3_350, 50, 132),
    "sm_100": _Sheet("B200", 75_000, 8_000, 126, 148),
    "sm_120": _Sheet("GeForce RTX 5090", 104_800, 1_792, 96, 170),
}
# From sm_90 on, code for "sm_90a" may use instructions of exactly that generation. Of
# TVM's rules, those for matrix units pass such an architecture by.
_SPECIFIC = tuple(f"{arch}a" for arch in _SHEETS if int(arch.removeprefix("sm_")) >= 90)


def target(arch: str) -> Target:
    """Describe an NVIDIA GPU by its architecture.

    Parameters
    ----------
    arch : str
        ``sm_75``, ``sm_80`` ... ``sm_120``; ``sm_90a`` and the like for code that runs
        on no other generation.

    Returns
    -------
    Target
        Its peaks are those of one common device of that architecture.

    Raises
    ------
    TargetError
        The architecture is unknown.
    """
    if arch not in _SHEETS and arch not in _SPECIFIC:
        raise TargetError(
            f"target: 'cuda:{arch}' needs one of {', '.join((*_SHEETS, *_SPECIFIC))}, "
            f"and {arch!r} is none of them; nvidia-smi --query-gpu=compute_cap tells a GPU's "
            "(8.0 means sm_80)"
        )
    sheet = _SHEETS[arch.removesuffix("a")]
    return Target(
        spec=f"cuda:{arch}",
        kind="cuda",
        attrs={
            "kind": "cuda",
            "arch": arch,
            "max_threads_per_block": 1024,
            "max_num_threads": 1024,  # the older name, which some of dlight's rules read
            "thread_warp_size": 32,
            # What a kernel may declare. For dynamic shared memory, TVM's runtime asks
            # the driver for more where a kernel needs more.
            "max_shared_memory_per_block": 48 << 10,
            "registers_per_block": 65536,
            "l2_cache_size_bytes": sheet.l2_mib << 20,
            "host": {"kind": "llvm", "mtriple": detect().triple},
        },
        peaks=_peaks(sheet),
        rules="dlight",
        runs_here=_fits(arch, _device_capability()),
    )


def _peaks(sheet: _Sheet) -> Peaks:
    return Peaks(
        gflops=sheet.gflops,
        bandwidth_gbps={"l2": _L2_PER_DRAM * sheet.dram_gbps, "dram": sheet.dram_gbps},
        cache_bytes={"l2": sheet.l2_mib << 20},
        dispatch_us=_LAUNCH_US,
        cores=sheet.multiprocessors,
    )


def _fits(arch: str, device: tuple[int, int] | None) -> bool:
    """Whether machine code of ``arch`` runs on a device of that compute capability.

    It runs on later devices of the same major version (sm_80 on 8.6), but code
    for "sm_90a" on exactly that one.
    """
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    if found is None or device is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return device[0] == major and (device[1] == minor if found[3] else device[1] >= minor)


def _device_capability() -> tuple[int, int] | None:
    """Ask the driver for the compute capability of the first GPU; None without one."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        # 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        or driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    )
    return None if failed else (major.value, minor.value)
