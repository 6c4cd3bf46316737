"""Give every kernel of a lowered module its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse._tvm import tirx, tvm
from tvmfuse.kernels import blocks, choices, dlight, families, traces
from tvmfuse.kernels.families import Scheduled
from tvmfuse.kernels.gemm import dots
from tvmfuse.kernels.tiling import Machine
from tvmfuse.plan import Records, Tuned
from tvmfuse.targets import Target
from tvmfuse.targets.cpu import instructions


@dataclass(frozen=True)
class Schedules:
    """A module of scheduled kernels, and for each kernel where its schedule came from.

    Parameters
    ----------
    module : tvm.IRModule
        The module.
    kernels : Mapping of str to Scheduled
        Every kernel, by name.
    tuned : frozenset of str
        Kernels that were scheduled by a tuning record.
    sources : Mapping of str to tirx.PrimFunc
        The kernels as they were before, which is what a tuner searches.
    """

    module: Any
    kernels: Mapping[str, Scheduled]
    tuned: frozenset[str] = frozenset()
    sources: Mapping[str, Any] = field(default_factory=dict)


def schedule(mod: Any, target: Target, *, records: Records | None = None) -> Schedules:
    """Schedule every kernel that has no schedule yet.

    Parameters
    ----------
    mod : tvm.IRModule
        A lowered module.
    target : Target
        The device; it names the rules.
    records : Records, optional
        Decisions to take instead of the default ones; where one does not fit, the kernel's
        note says so.

    Returns
    -------
    Schedules
        Kernels that no rule could schedule are in it as they were.
    """
    if target.rules == "dlight":
        return _by_dlight(mod, target)
    machine = machine_of(target)
    kernels, sources, tuned = {}, {}, set()
    functions = dict(mod.functions.items())
    for var, function in functions.items():
        if isinstance(function, tirx.PrimFunc) and not is_scheduled(function):
            name = str(var.name_hint)
            found, is_tuned = _by_family(function, machine, records)
            kernels[name], sources[name], functions[var] = found, function, found.function
            tuned |= {name} if is_tuned else set()
    scheduled = tvm.IRModule(functions, attrs=mod.attrs)
    return Schedules(scheduled, kernels, frozenset(tuned), sources)


def _by_family(function: Any, machine: Machine, records: Records | None) -> tuple[Scheduled, bool]:
    """Schedule a kernel by its record where there is one that fits, else by default."""
    if records is None or not blocks.is_made_of_blocks(function):
        return families.schedule(function, machine), False
    tuned = records.best(families.family_of(function), function)
    if tuned is None:
        return families.schedule(function, machine), False
    found = by_record(function, machine, tuned)
    if not found.note:
        return replace(found, note=tuned.note), True
    default = families.schedule(function, machine)
    note = f"its tuning record does not fit ({found.note})"
    return replace(default, note="; ".join(filter(None, (default.note, note)))), False


def by_record(function: Any, machine: Machine, tuned: Tuned) -> Scheduled:
    """Schedule a kernel as a record says; a note tells why that cannot be done."""
    if tuned.trace is not None:
        return traces.replay(function, tuned.trace)
    return families.schedule(function, machine, choices.from_record(tuned.decisions).choose)


def machine_of(target: Target) -> Machine:
    """Return what the schedules may count on."""
    return Machine(
        lanes=target.lanes,
        registers=target.vector_registers,
        cores=target.peaks.cores,
        l2_bytes=target.peaks.cache_bytes.get("l2", 1 << 19),
        holds_rows=str(target.attrs.get("mtriple", "")).startswith(("aarch64", "arm64")),
        dot=dots.best(instructions(target.attrs)) if target.rules == "cpu" else "",
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
