"""Find the family of a kernel, and schedule it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import s_tir, tirx, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import (
    attention,
    blocks,
    chained,
    conv,
    elementwise,
    gemm,
    generic,
    joined,
    nest,
    planes,
    recurrent,
    relayout,
    resize,
    row_tasks,
    scan,
    sections,
    transposed,
    window,
    winograd,
)
from tvmfuse.kernels.blocks import FAMILY, Choose, Schedule, default_choice
from tvmfuse.kernels.tiling import Machine

JOINED = "joined"
"""Kernels of several parts; what the parts are is seen by their blocks."""

Apply = Callable[[Schedule, Machine, Choose], None]

FAMILIES: Mapping[str, Apply] = {
    "attention": attention.schedule,
    chained.CHAINED: chained.schedule,
    "conv": conv.schedule,
    "planes": planes.schedule,
    "recurrent": recurrent.schedule,
    "relayout": relayout.schedule,
    "resize": resize.schedule,
    "scan": scan.schedule,
    "transposed": transposed.schedule,
    "winograd": winograd.schedule,
    "window": window.schedule,
    "gemm": gemm.schedule,
    "reduction": row_tasks.schedule,
    "elementwise": elementwise.schedule,
    "nest": nest.schedule,
    "generic": generic.schedule,
}


@dataclass(frozen=True)
class Scheduled:
    """A kernel with its schedule.

    Parameters
    ----------
    function : tirx.PrimFunc
        The scheduled function.
    family : str
        Name of the family that scheduled it; "" where none could.
    note : str
        Why the family's own schedule does not fit, or "".
    """

    function: Any
    family: str
    note: str = ""


def schedule(function: Any, machine: Machine, choose: Choose = default_choice) -> Scheduled:
    """Schedule one kernel by its family, else plainly, else leave it as it is.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR.
    machine : Machine
        The device.
    choose : callable
        Takes each decision.

    Returns
    -------
    Scheduled
        Marked as scheduled, so that no later pass touches it.
    """
    if not blocks.is_made_of_blocks(function):
        return Scheduled(finished(function, function), "", "a call of the runtime")
    family = family_of(function)
    parts = [function]
    if family == JOINED:
        parts = joined.split(function)
    elif family == "elementwise":
        parts = sections.cut(function)
    if len(parts) > 1:
        return _joined(function, parts, family, machine, choose)
    note = ""
    for name in dict.fromkeys((family, "nest", "generic")):
        # Held while it is scheduled: TVM changes a function that only the schedule refers to
        # in place, and with it the body that it shares with the original.
        module = as_module(function)
        sch = s_tir.Schedule(module)
        try:
            FAMILIES[name](sch, machine, choose)
        except (s_tir.ScheduleError, LoweringError) as error:
            note = note or f"{name}: {_reason(error)}"
            continue
        return Scheduled(finished(function, sch.mod["main"]), name, note)
    return Scheduled(finished(function, function), "", note)


def _joined(
    function: Any, parts: Sequence[Any], family: str, machine: Machine, choose: Choose
) -> Scheduled:
    """Schedule a kernel of several parts, each by its family."""
    notes: list[str] = []

    def schedule_part(part: Any, choose_of_part: Choose) -> Any:
        scheduled = schedule(part, machine, choose_of_part)
        notes.append(scheduled.note)
        return scheduled.function

    try:
        result = joined.join(function, parts, schedule_part, choose)
    except LoweringError as error:
        notes.insert(0, f"{JOINED}: {error}")
        result, family = joined.in_sequence(function, parts, schedule_part, choose), "generic"
    note = "; ".join(dict.fromkeys(filter(None, notes)))
    return Scheduled(finished(function, result), family, note)


def family_of(function: Any) -> str:
    """Return the family that a kernel belongs to, by the blocks in it."""
    sch = s_tir.Schedule(as_module(function))
    found = blocks.children(sch)
    named = {str(sch.get(block).annotations.get(FAMILY, "")) for block in found} - {""}
    is_plain = not named and not any(blocks.is_reduction(sch, block) for block in found)
    if is_plain and len({_shape(sch, block) for block in blocks.outputs(sch)}) == 1:
        return "elementwise"
    if len(joined.split(function)) > 1:
        return JOINED
    if chained.CHAINED in named:
        return chained.CHAINED
    anchored = sorted(named - {"reduction"})
    if anchored:
        return anchored[0]
    if named:
        return "reduction"
    if is_plain:
        return "elementwise"
    return "generic" if len(found) == 1 else "nest"


def _shape(sch: Schedule, block: Any) -> tuple[str, ...]:
    return tuple(str(d) for d in sch.get(block).writes[0].source.ty.shape)


def as_module(function: Any) -> Any:
    """Return a module of one function, as a schedule takes it."""
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def finished(original: Any, scheduled: Any) -> Any:
    """Give a scheduled function the attributes of the original and the mark of a schedule."""
    result = scheduled.without_attr("global_symbol")
    for name, value in (original.attrs or {}).items():
        result = result.with_attr(name, value)
    return result.with_attr("tirx.is_scheduled", tirx.const(1, "bool"))


def _reason(error: Exception) -> str:
    """Return what an error says, in one line: TVM prints the whole program with it."""
    if isinstance(error, LoweringError):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.startswith("Error message:")]
    return (lines[0] if lines else str(error).splitlines()[0]).removeprefix("Error message: ")[:200]
