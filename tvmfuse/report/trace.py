"""A plan as a timeline of predicted times, for ``chrome://tracing`` and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse.report.units import Unit


def timeline(units: Sequence[Unit]) -> dict[str, Any]:
    """Return the kernels of a plan, and beneath them what their operators take apart.

    Parameters
    ----------
    units : sequence of Unit
        The kernels in order.

    Returns
    -------
    dict
        In the JSON form of Chrome's trace events; times in microseconds.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": name}}
        for thread, name in enumerate(("by the plan", "apart"))
    ]
    for thread, attribute in enumerate(("time_us", "apart_us")):
        start = 0.0
        for unit in units:
            duration = getattr(unit, attribute)
            if duration > 0:
                events.append(
                    {
                        "ph": "X",
                        "name": unit.title,
                        "cat": unit.pattern or "single",
                        "pid": 0,
                        "tid": thread,
                        "ts": start,
                        "dur": duration,
                        "args": {"nodes": list(unit.nodes), "saved_us": unit.saved_us},
                    }
                )
            start += duration
    return {"traceEvents": events, "displayTimeUnit": "ms"}
