"""What ``compile`` and ``explain`` are told about planning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmfuse.cli.options import parse_size
from tvmfuse.tuning.budget import seconds

if TYPE_CHECKING:
    from tvmfuse._pipeline import Planned
    from tvmfuse.frontend import Model
    from tvmfuse.targets import Target


def check(*, planner: str, max_memory: str | None, measure_budget: str | None) -> None:
    """Refuse what is ill-formed, before the long work.

    Raises
    ------
    TvmFuseError
        A planner that there is none of, or a size or time that is none.
    """
    from tvmfuse.planner import strategy

    strategy(planner)
    parse_size(max_memory)
    _budget_us(measure_budget)


def options(
    model: Model,
    device: Target,
    *,
    planner: str,
    cost_model: str,
    max_memory: str | None,
    measure_budget: str | None,
    db: str | None = None,
) -> dict[str, Any]:
    """Return the fields of ``_pipeline.Options`` that planning depends on."""
    from tvmfuse.planner import strategy
    from tvmfuse.tuning import cost_models
    from tvmfuse.tuning.in_place import InPlace

    chosen = cost_models.resolve(cost_model, device, database=db)
    budget_us = _budget_us(measure_budget) if device.runs_here else 0.0

    def measure(planned: Planned, target: Target) -> InPlace:
        return InPlace(planned, target, signature=model.signature)

    return {
        "strategy": strategy(planner),
        "cost_model": chosen.model,
        "notes": (chosen.note,),
        "max_memory_bytes": parse_size(max_memory),
        "measure": measure if budget_us else None,
        "measure_us": budget_us,
    }


def _budget_us(text: str | None) -> float:
    return 1e6 * seconds(text, "--measure-budget") if text is not None else 0.0
