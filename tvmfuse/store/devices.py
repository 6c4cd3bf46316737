"""Say which device a target means, and what of a target a record depends on."""

from __future__ import annotations

from tvmfuse._tvm import threads
from tvmfuse.host import Host, detect
from tvmfuse.store.records import Device, TargetKey
from tvmfuse.targets.base import Target

# Instruction sets of the x86-64 levels of the System V ABI, as Linux names them.
_LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "x86-64-v3": frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    "x86-64-v2": frozenset({"cx16", "popcnt", "sse4_2", "ssse3"}),
}


def device_of(target: Target, *, host: Host | None = None) -> Device:
    """Return the device that a target is measured on.

    Parameters
    ----------
    target : Target
        One that ``runs_here`` means this machine; any other the device of its name.
    host : Host, optional
        This machine; detected where not given.

    Returns
    -------
    Device
        The threads of TVM's pool are a part of it: what wins on two may lose on one.
    """
    name = target.spec.partition(":")[2]
    if target.kind != "llvm" or not target.runs_here:
        return Device(target.kind, name, f"any {target.spec}")
    host = host or detect()
    # Code for a portable level runs alike wherever that level is there.
    family = name if name in _LEVELS else cpu_family(host)
    details = {
        "cores": host.cores,
        "cache_bytes": dict(host.cache_bytes),
        "system": host.system,
        "threads": threads.in_use(),
    }
    return Device(target.kind, family, host.model or host.arch, details)


def cpu_family(host: Host) -> str:
    """Return the family of a CPU: its x86-64 level, else its architecture."""
    if host.arch != "x86_64":
        return host.arch
    levels = (level for level, flags in _LEVELS.items() if flags <= host.flags)
    return next(levels, "x86-64")


def target_key(target: Target) -> TargetKey:
    """Return the target without what no kernel depends on: its host code, tag and keys."""
    kept = {name: value for name, value in target.attrs.items() if name not in IRRELEVANT}
    return TargetKey(kept)


IRRELEVANT = frozenset({"host", "keys", "tag"})
