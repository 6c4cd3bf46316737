"""What each candidate is worth: predicted, or measured where that is in doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvmfuse.errors import CostModelError
from tvmfuse.plan import BatchCostModel, Candidate, CostModel, Measure, OpGraph, RunTime


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


def price(candidates: Sequence[Candidate], model: CostModel) -> list[Priced]:
    """Ask a model for the run times of candidates.

    Raises
    ------
    CostModelError
        The model gave a time that is not finite.
    """
    copied = {(c.function, binding): c for c in candidates for binding in c.recomputes}
    alone = _predict([_alone(c, binding) for (_, binding), c in copied.items()], model)
    alone_us = {place: time.unfused_us for place, time in zip(copied, alone, strict=True)}
    priced = []
    for candidate, time in zip(candidates, _predict(candidates, model), strict=True):
        own_us = {b: alone_us[candidate.function, b] for b in candidate.recomputes}
        priced.append(_checked(Priced(candidate, time, alone_us=own_us), model))
    return priced


def _predict(candidates: Sequence[Candidate], model: CostModel) -> Sequence[RunTime]:
    if isinstance(model, BatchCostModel):
        return model.predict_all(candidates)
    return [model.predict(candidate) for candidate in candidates]


def _checked(item: Priced, model: CostModel) -> Priced:
    if math.isfinite(item.most_saved_us):
        return item
    raise CostModelError(
        f"planner: cost model {type(model).__name__} must predict finite times, but gave "
        f"{item.time} for {item.candidate.label!r}; use the roofline model or retrain"
    )


def measure_doubtful(priced: Sequence[Priced], measure: Measure, budget_us: float) -> list[Priced]:
    """Replace doubtful predictions by measurements, those with most at stake first.

    Equal candidates are measured once: a network repeats its blocks.

    Parameters
    ----------
    priced : Sequence[Priced]
        All candidates.
    measure : Measure
        Builds and times candidates.
    budget_us : float
        Time that it may take.
    """
    doubtful = [i for i, item in enumerate(priced) if item.time.is_doubtful]
    alike: dict[object, list[int]] = {}
    for i in sorted(doubtful, key=lambda i: (-priced[i].time.doubt_us, i)):
        alike.setdefault(priced[i].candidate.likeness, []).append(i)
    if not alike:
        return list(priced)
    asked = [priced[own[0]].candidate for own in alike.values()]
    measured = list(priced)
    for own, run_time in zip(alike.values(), measure(asked, budget_us=budget_us), strict=True):
        if run_time is not None:
            for i in own:
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
