"""How well a cost model predicts what was measured."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from tvmfuse.cost import kernel
from tvmfuse.cost.data import MeasuredKernel, Measurements
from tvmfuse.plan import Candidate, CostModel, OpGraph

CLEAR = 0.03  # of the unfused time: a difference that counts


@dataclass(frozen=True)
class ModelScore:
    """How well the kernels of one model are predicted.

    Parameters
    ----------
    model, model_family : str
        The model.
    kernels : int
        Kernels compared.
    rank_correlation : float
        Spearman's, between predicted and measured times.
    median_error : float
        Of predicted times, as a share of the measured.
    noise : float
        The same between measurements of equal kernels under different plans.
    decisions, right : int
        Groups for which it clearly matters whether they are fused, and those of them for
        which the prediction says so.
    """

    model: str
    model_family: str
    kernels: int
    rank_correlation: float
    median_error: float
    noise: float
    decisions: int
    right: int


@dataclass(frozen=True)
class Decision:
    """A group that was measured fused and apart."""

    kernel: MeasuredKernel
    fused_us: float
    apart_us: float

    @property
    def is_clear(self) -> bool:
        """Whether it matters if it is fused."""
        return abs(self.apart_us - self.fused_us) > CLEAR * self.apart_us


def judge(measured: Sequence[Measurements], model: CostModel) -> list[ModelScore]:
    """Hold predictions against measurements, model by model.

    Parameters
    ----------
    measured : Sequence[Measurements]
        Of one device.
    model : CostModel
        Predicts for that device.
    """
    by_model: defaultdict[str, list[MeasuredKernel]] = defaultdict(list)
    for found in measured:
        for each in found.kernels:
            by_model[each.model].append(each)
    return [_score(name, own, model) for name, own in sorted(by_model.items())]


def decisions(kernels: Sequence[MeasuredKernel]) -> Iterator[Decision]:
    """Yield every group of a model whose operators were measured together and apart."""
    times = place_times(kernels)
    seen = set()
    for each in kernels:
        if each.pattern == "single":
            continue
        works = [op for op in each.graph.ops if op.kind != "view"]
        place = each.places[0]
        parts = [times.get((op.binding,)) for op in works]
        if place in seen or len(works) < 2 or any(us is None for us in parts):
            continue
        seen.add(place)
        yield Decision(each, times[place], sum(us for us in parts if us is not None))


def place_times(kernels: Sequence[MeasuredKernel]) -> Mapping[tuple[int, ...], float]:
    """Return the median time of each set of bindings of a model, over all plans."""
    times: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
    for each in kernels:
        for place in each.places:
            times[place].append(each.call_us)
    return {place: statistics.median(taken) for place, taken in times.items()}


def predicted_us(model: CostModel, each: MeasuredKernel) -> float:
    """Return what a model predicts for a measured kernel."""
    return model.predict(_candidate(each)).fused_us


def _score(name: str, kernels: Sequence[MeasuredKernel], model: CostModel) -> ModelScore:
    alike: defaultdict[tuple[str, str, OpGraph], list[MeasuredKernel]] = defaultdict(list)
    for each in kernels:
        if kernel.together(each.graph):
            alike[each.family, each.schedule, each.graph].append(each)
    measured = np.array([statistics.median(k.call_us for k in own) for own in alike.values()])
    predicted = np.array([predicted_us(model, own[0]) for own in alike.values()])
    pairs = [
        abs(a.call_us / b.call_us - 1)
        for own in alike.values()
        for a, b in itertools.combinations(own, 2)
    ]
    clear = [decision for decision in decisions(kernels) if decision.is_clear]
    right = sum(_is_right(decision, model) for decision in clear)
    return ModelScore(
        model=name,
        model_family=kernels[0].model_family,
        kernels=len(alike),
        rank_correlation=float(spearmanr(measured, predicted).statistic),
        median_error=float(np.median(np.abs(predicted / measured - 1))),
        noise=statistics.median(pairs) if pairs else 0.0,
        decisions=len(clear),
        right=right,
    )


def _is_right(decision: Decision, model: CostModel) -> bool:
    saved_us = model.predict(_candidate(decision.kernel)).saved_us
    return (saved_us > 0) == (decision.apart_us > decision.fused_us)


def _candidate(each: MeasuredKernel) -> Candidate:
    return Candidate(each.pattern, each.family, "main", each.places[0], each.graph)
