"""What a compile may be told, and what its stages hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tvmfuse.passes.lower import Lowered
from tvmfuse.passes.schedule import Schedules
from tvmfuse.patterns.registry import Registry, default
from tvmfuse.plan import CostModel, FunctionGraph, FusionPlan, Measure, Records
from tvmfuse.planner import STRATEGIES, Strategy
from tvmfuse.targets import Target

RecordsOf = Callable[[Target], AbstractContextManager[Records | None]]
MeasureIn = Callable[["Planned", Target], Measure]


@dataclass(frozen=True)
class Options:
    """What a compile may be told.

    Parameters
    ----------
    fuse : bool
        Whether to fuse at all; without, every operator is a kernel of its own.
    registry : Registry
        The patterns to look for.
    cost_model : CostModel, optional
        Predicts what fusing is worth; where not given, the learned model of the device's
        family, or the roofline where there is none.
    strategy : Strategy
        How to choose what to fuse; others than the optimal one are there to compare.
    max_memory_bytes : int, optional
        What values between the kernels of a function may take at any time.
    measure : callable, optional
        Given a module with nothing fused and the target, returns what measures the
        candidates whose gain is in doubt.
    measure_us : float
        Time that measuring may take.
    notes : tuple of str
        What the plan shall say about how it was made.
    records : Records, optional
        Tuned decisions for kernels; each kernel has its family's default ones without.
    verify : bool
        Whether what each stage returns is checked, at the cost of time.
    """

    fuse: bool = True
    registry: Registry = field(default_factory=default)
    cost_model: CostModel | None = None
    strategy: Strategy = STRATEGIES["optimal"]
    max_memory_bytes: int | None = None
    measure: MeasureIn | None = None
    measure_us: float = 0.0
    notes: tuple[str, ...] = ()
    records: Records | None = None
    verify: bool = False


@dataclass(frozen=True)
class Planned:
    """A canonical module, the plan for it, and what it was planned by.

    Parameters
    ----------
    module : tvm.IRModule
        The module.
    plan : FusionPlan
        What to fuse.
    graphs : Mapping of str to FunctionGraph
        The dependencies that the plan speaks of.
    model : CostModel
        What predicted its times.
    registry : Registry
        The patterns that were looked for.
    """

    module: Any
    plan: FusionPlan
    graphs: Mapping[str, FunctionGraph]
    model: CostModel
    registry: Registry


@dataclass(frozen=True)
class Prepared:
    """Scheduled kernels, and what each was made of."""

    module: Any
    plan: FusionPlan
    lowered: Lowered
    schedules: Schedules
