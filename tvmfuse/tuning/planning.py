"""What a user says about planning, as the pipeline takes it."""

from __future__ import annotations

import re
from typing import Any

from tvmfuse._pipeline import Planned
from tvmfuse.errors import InputError
from tvmfuse.frontend import Model
from tvmfuse.planner import strategy
from tvmfuse.targets import Target
from tvmfuse.tuning import cost_models
from tvmfuse.tuning.budget import seconds
from tvmfuse.tuning.in_place import InPlace


def check(
    *, planner: str, max_memory: str | int | None, measure_budget: str | float | None
) -> None:
    """Refuse what is ill-formed, before the long work.

    Raises
    ------
    TvmFuseError
        A planner that there is none of, or a size or time that is none.
    """
    strategy(planner)
    _bytes(max_memory)
    _budget_us(measure_budget)


def options(
    model: Model,
    device: Target,
    *,
    planner: str,
    cost_model: str,
    max_memory: str | int | None,
    measure_budget: str | float | None,
    db: str | None = None,
) -> dict[str, Any]:
    """Return the fields of ``_pipeline.Options`` that planning depends on."""
    chosen = cost_models.resolve(cost_model, device, database=db)
    budget_us = _budget_us(measure_budget) if device.runs_here else 0.0

    def measure(planned: Planned, target: Target) -> InPlace:
        return InPlace(planned, target, signature=model.signature)

    return {
        "strategy": strategy(planner),
        "cost_model": chosen.model,
        "notes": (chosen.note,),
        "max_memory_bytes": _bytes(max_memory),
        "measure": measure if budget_us else None,
        "measure_us": budget_us,
    }


def _budget_us(given: str | float | None) -> float:
    if given is None:
        return 0.0
    return 1e6 * seconds(str(given), "plan: --measure-budget")


def _bytes(given: str | int | None) -> int | None:
    """Return a size in bytes: of ``64MiB``, ``2G``, or a plain number.

    Raises
    ------
    InputError
        It is none.
    """
    if given is None:
        return None
    text = str(given).strip()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMG])(?:i?B)?|B)?", text, re.IGNORECASE)
    if found is None:
        raise InputError(f"plan: --max-memory must be a size such as 64MiB, but got {given!r}")
    power = " KMG".index((found[2] or " ").upper())
    return int(float(found[1]) * 1024**power)
