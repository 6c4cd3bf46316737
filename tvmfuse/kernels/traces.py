"""Schedule a kernel by a trace of MetaSchedule, as a tuning record keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import s_tir, tirx
from tvmfuse._tvm.failures import FAILURES, reason
from tvmfuse._tvm.imports import import_tensor_intrinsics
from tvmfuse.kernels.families import Scheduled, as_module, finished

FAMILY = "metaschedule"


def replay(function: Any, trace: Sequence[Any]) -> Scheduled:
    """Apply a trace to a kernel.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR, whose blocks are called as in the trace.
    trace : sequence
        TVM's JSON of the instructions and the decisions.

    Returns
    -------
    Scheduled
        With a note where the trace does not fit; the function is as it was then.
    """
    if any(instruction[0] == "Tensorize" for instruction in trace[0]):
        import_tensor_intrinsics()
    module = as_module(function)  # held, so that TVM copies what it changes
    schedule = s_tir.Schedule(module)
    try:
        s_tir.schedule.Trace.apply_json_to_schedule(list(trace), schedule)
    except FAILURES as error:
        return Scheduled(finished(function, function), "", f"{FAMILY}: {reason(error)}")
    return Scheduled(finished(function, schedule.mod["main"]), FAMILY)


def to_json(trace: Any) -> list[Any]:
    """Return a trace as JSON-compatible data, which :func:`replay` takes."""
    plain = _plain(trace.as_json())
    assert isinstance(plain, list)
    return plain


def _plain(value: Any) -> Any:
    """Turn TVM's containers and numbers into those of Python."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    return [_plain(item) for item in value]
