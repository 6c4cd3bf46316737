"""What each candidate is worth: predicted, or measured where that is in doubt."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, CostModel, Measure, OpGraph, RunTime


@dataclass(frozen=True, eq=False)
class Priced:
    """A candidate with its run time and where that comes from.

    Parameters
    ----------
    candidate : Candidate
        The candidate.
    time : RunTime
        What counts.
    predicted : RunTime, optional
        What the model said, where ``time`` was measured.
    alone_us : Mapping of int to float
        Run time of each binding that it computes for itself only, as its own kernel.
    """

    candidate: Candidate
    time: RunTime
    predicted: RunTime | None = None
    alone_us: Mapping[int, float] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where the time comes from, as a word."""
        return "predicted" if self.predicted is None else "measured"

    @property
    def most_saved_us(self) -> float:
        """What it saves if nobody else needs what it computes for itself."""
        return self.time.saved_us + sum(self.alone_us.values())


def price(candidate: Candidate, model: CostModel) -> Priced:
    """Ask a model for the run time of a candidate.

    Raises
    ------
    CostModelError
        The model gave a time that is not finite.
    """
    run_time = model.predict(candidate)
    alone = {
        binding: model.predict(_alone(candidate, binding)).unfused_us
        for binding in candidate.recomputes
    }
    if not math.isfinite(run_time.saved_us + sum(alone.values())):
        raise CostModelError(
            f"planner: cost model {type(model).__name__} must predict finite times, but gave "
            f"{run_time} for {candidate.label!r}; use the roofline model or retrain"
        )
    return Priced(candidate, run_time, alone_us=alone)


def measure_doubtful(priced: Sequence[Priced], measure: Measure, budget_us: float) -> list[Priced]:
    """Replace doubtful predictions by measurements, those with most at stake first.

    Equal candidates are measured once: a network repeats its blocks.

    Parameters
    ----------
    priced : Sequence[Priced]
        All candidates.
    measure : Measure
        Builds and times one.
    budget_us : float
        No measurement begins after that.
    """
    measured = list(priced)
    known: dict[object, RunTime | None] = {}
    end = time.perf_counter() + budget_us / 1e6
    doubtful = [i for i, item in enumerate(priced) if item.time.is_doubtful]
    for i in sorted(doubtful, key=lambda i: (-priced[i].time.doubt_us, i)):
        key = _key(priced[i].candidate)
        if key not in known:
            if time.perf_counter() >= end:
                continue
            known[key] = measure(priced[i].candidate)
        run_time = known[key]
        if run_time is not None:
            measured[i] = replace(priced[i], time=run_time, predicted=priced[i].time)
    return measured


def _alone(candidate: Candidate, binding: int) -> Candidate:
    """Return one operator of a candidate as a candidate of its own."""
    graph = candidate.graph
    ops = tuple(op for op in graph.ops if op.binding == binding)
    read = {i for op in ops for i in op.inputs}
    made = {i for op in ops for i in op.outputs}
    part = OpGraph(graph.tensors, ops, tuple(sorted(read - made)), tuple(sorted(made)))
    return Candidate("single", "", candidate.function, (binding,), part)


def _key(candidate: Candidate) -> object:
    """Return what two candidates share that take equally long."""
    graph = candidate.graph
    ops = tuple((op.name, op.inputs, op.outputs, op.flops) for op in graph.ops)
    first = candidate.bindings[0]
    copied = tuple(i - first for i in candidate.recomputes)
    return candidate.pattern, candidate.family, graph.tensors, ops, graph.outputs, copied
