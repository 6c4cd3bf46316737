"""What this machine is: processor, usable cores, caches. Read without TVM."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import psutil

_DEFAULT_CACHE_BYTES = {"l1": 32 << 10, "l2": 512 << 10, "l3": 8 << 20}
_DEFAULT_GHZ = 2.5


@dataclass(frozen=True)
class Host:
    """The machine that this process runs on.

    Parameters
    ----------
    arch : str
        ``x86_64`` or ``aarch64``; anything else as Python names it.
    system : str
        ``linux``, ``darwin`` or ``win32``.
    cores : int
        Physical cores that this process may use at once.
    cache_bytes : Mapping of str to int
        Data-cache capacity per level; "l1" and "l2" of one core, "l3" shared.
    ghz : float
        Nominal clock.
    flags : frozenset of str
        Instruction-set extensions that the operating system reports; empty where
        it reports none.
    model : str
        What the vendor calls the processor; empty where nothing tells.
    """

    arch: str
    system: str
    cores: int
    cache_bytes: Mapping[str, int] = field(default_factory=lambda: dict(_DEFAULT_CACHE_BYTES))
    ghz: float = _DEFAULT_GHZ
    flags: frozenset[str] = frozenset()
    model: str = ""

    @property
    def triple(self) -> str:
        """LLVM target triple, free of the vendor that LLVM was built by."""
        if self.system == "darwin":
            return f"{'arm64' if self.arch == 'aarch64' else self.arch}-apple-macos"
        if self.system == "win32":
            return f"{self.arch}-pc-windows-msvc"
        return f"{self.arch}-unknown-linux-gnu"

    def is_named_by(self, triple: str) -> bool:
        """Return whether a triple, by any vendor, is of this processor and system."""
        arch, _, rest = triple.partition("-")
        systems = {"linux": "linux", "darwin": "macos|darwin", "win32": "windows"}
        system = systems.get(self.system, self.system)
        return arch.replace("arm64", "aarch64") == self.arch and bool(re.search(system, rest))


def detect(root: Path = Path("/")) -> Host:
    """Describe this machine; what cannot be read becomes a modest default.

    Parameters
    ----------
    root : Path
        Folder that holds ``proc`` and ``sys``; other than ``/`` in tests only.
    """
    machine = platform.machine().lower()
    return Host(
        arch={"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine),
        system=sys.platform,
        cores=_usable_cores(root, _affinity()),
        cache_bytes={**_DEFAULT_CACHE_BYTES, **_linux_caches(root), **_macos_caches()},
        ghz=_nominal_ghz(),
        flags=frozenset(_cpuinfo(root, "flags|Features").split()),
        model=_cpuinfo(root, "model name") or _sysctl("machdep.cpu.brand_string"),
    )


@functools.cache  # as it was at first: TVM pins its threads, and the one that calls it, later
def _affinity() -> frozenset[int]:
    """Return the hardware threads that this process may use; empty if unknown."""
    if sys.platform != "linux":
        return frozenset()
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return frozenset[int]().union(*(os.sched_getaffinity(thread) for thread in threads))


def _usable_cores(root: Path, cpus: frozenset[int]) -> int:
    """Count physical cores within the affinity mask and the cgroup's quota."""
    # Hardware threads of one core name the same siblings, so the text names the core.
    topology = (
        _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        for cpu in cpus
    )
    cores = len({siblings for siblings in topology if siblings})
    if cores == 0:
        cores = min(psutil.cpu_count(logical=False) or 1, len(cpus) or sys.maxsize)
    return max(1, int(min(cores, *_cgroup_quotas(root), cores)))


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU seconds per second that each enclosing cgroup allows."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v1 = "cpu" in controllers.split(",")
        if controllers and not is_v1:
            continue
        mount = root / ("sys/fs/cgroup/cpu" if is_v1 else "sys/fs/cgroup")
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            folder = mount / str(group).lstrip("/")
            limit = (
                f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
                if is_v1
                else _read(folder / "cpu.max")
            )
            if match := re.fullmatch(r"(\d+) (\d+)", limit):  # "max" and -1 mean no limit
                yield int(match[1]) / int(match[2])


def _linux_caches(root: Path) -> dict[str, int]:
    caches = {}
    for folder in root.glob("sys/devices/system/cpu/cpu0/cache/index*"):
        size = re.fullmatch(r"(\d+)K", _read(folder / "size"))
        if size and _read(folder / "type") != "Instruction":
            caches[f"l{_read(folder / 'level')}"] = int(size[1]) << 10
    return caches


def _macos_caches() -> dict[str, int]:
    # Performance cores where the chip has two kinds; Apple's L2 is shared by a cluster.
    names = {"l1": "hw.perflevel0.l1dcachesize", "l2": "hw.perflevel0.l2cachesize"}
    sizes = {level: _sysctl(name) for level, name in names.items()}
    return {level: int(size) for level, size in sizes.items() if size.isdigit()}


def _nominal_ghz() -> float:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):  # containers and some virtual machines
        frequency = None
    mhz = (frequency.max or frequency.current) if frequency else 0.0
    return mhz / 1e3 if mhz else _DEFAULT_GHZ


def _cpuinfo(root: Path, name: str) -> str:
    """Return what Linux tells of the first CPU under ``name``, a regular expression."""
    text = _read(root / "proc/cpuinfo")
    found = re.search(rf"^(?:{name})\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _sysctl(name: str) -> str:
    """Return a value that macOS keeps by name; nothing elsewhere."""
    if sys.platform != "darwin":
        return ""
    try:
        return subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
