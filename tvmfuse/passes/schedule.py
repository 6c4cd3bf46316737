"""Give every kernel of a lowered module its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import tirx, tvm
from tvmfuse.kernels import dlight, families
from tvmfuse.kernels.families import Scheduled
from tvmfuse.kernels.tiling import Machine
from tvmfuse.targets import Target


@dataclass(frozen=True)
class Schedules:
    """A module of scheduled kernels, and for each kernel where its schedule came from."""

    module: Any
    kernels: Mapping[str, Scheduled]


def schedule(mod: Any, target: Target) -> Schedules:
    """Schedule every kernel that has no schedule yet.

    Parameters
    ----------
    mod : tvm.IRModule
        A lowered module.
    target : Target
        The device; it names the rules.

    Returns
    -------
    Schedules
        Kernels that no rule could schedule are in it as they were.
    """
    if target.rules == "dlight":
        return _by_dlight(mod, target)
    machine = machine_of(target)
    kernels = {}
    functions = dict(mod.functions.items())
    for var, function in functions.items():
        if isinstance(function, tirx.PrimFunc) and not is_scheduled(function):
            found = families.schedule(function, machine)
            kernels[str(var.name_hint)] = found
            functions[var] = found.function
    return Schedules(tvm.IRModule(functions, attrs=mod.attrs), kernels)


def machine_of(target: Target) -> Machine:
    """Return what the schedules may count on."""
    return Machine(
        lanes=target.lanes,
        registers=target.vector_registers,
        cores=target.peaks.cores,
        l2_bytes=target.peaks.cache_bytes.get("l2", 1 << 19),
    )


def is_scheduled(function: Any) -> bool:
    """Whether a kernel carries the mark of a schedule."""
    return bool((function.attrs or {}).get("tirx.is_scheduled", False))


def _by_dlight(mod: Any, target: Target) -> Schedules:
    scheduled, failed = dlight.schedule(mod, target)
    kernels = {
        str(var.name_hint): Scheduled(
            function, "dlight", "no rule fits: plain threads" if var.name_hint in failed else ""
        )
        for var, function in scheduled.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    return Schedules(scheduled, kernels)
