"""What drives the decision to fuse the operators around a node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from tvmfuse._pipeline import Planned
from tvmfuse.cost import chained, extraction, kernel
from tvmfuse.cost.features import Resources
from tvmfuse.cost.learned import Learned
from tvmfuse.cost.roofline import Roofline
from tvmfuse.errors import ModelError
from tvmfuse.plan import Candidate, CostModel, Group, OpGraph, Rejection
from tvmfuse.report import assembled
from tvmfuse.targets import Target

_SHOWN = 12  # features of a kernel, those that change its time most


@dataclass(frozen=True)
class Feature:
    """A feature of a kernel: its value, and by what factor it changes the prior's time."""

    name: str
    value: float
    factor: float


@dataclass(frozen=True)
class KernelView:
    """A kernel with its time and what drives it.

    Parameters
    ----------
    label : str
        Its operators.
    us, prior_us : float
        Predicted time, and the roofline's.
    error : float
        How far the prediction may be off, as a share.
    features : tuple of Feature
        Those that matter most.
    """

    label: str
    us: float
    prior_us: float
    error: float
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Decision:
    """The kernels that a node may be in, fused first, and what was decided."""

    node: str
    kernels: tuple[KernelView, ...]
    verdict: str
    notes: tuple[str, ...] = ()


def of_node(planned: Planned, node: str, model: CostModel, *, target: Target) -> Decision:
    """Return what drives the decision about a node.

    Parameters
    ----------
    planned : Planned
        A plan, and what it speaks of.
    node : str
        What a person calls the node.
    model : CostModel
        What the plan was made by.
    target : Target
        What was planned for; of CUDA kernels registers, spills and shared memory are told.

    Raises
    ------
    ModelError
        The plan has no group with that node.
    """
    places = {
        (function.name, i)
        for function in planned.graphs.values()
        for i, label in enumerate(function.labels)
        if label == node
    }
    for group in planned.plan.groups:
        candidate = group.candidate
        if any((candidate.function, i) in places for i in candidate.bindings):
            found = assembled.of_group(planned, group, target)
            views = tuple(_views(candidate, model, found.resources))
            notes = (found.note,) if found.note else ()
            return Decision(node, views, _verdict(group), notes)
    refused = [r for r in planned.plan.rejections if _is_about(r, places)]
    why = f": {refused[0].reason}" if refused else ""
    raise ModelError(f"cost show: {node!r} is in no fused group of the model{why}")


def _is_about(rejection: Rejection, places: set[tuple[str, int]]) -> bool:
    return any((rejection.function, i) in places for i in rejection.bindings)


def _verdict(group: Group) -> str:
    time = group.time
    source = "predicted" if group.predicted is None else "measured"
    text = (
        f"{group.candidate.label}: {source} {time.fused_us:.2f} µs fused against "
        f"{time.unfused_us:.2f} µs apart, saving {time.saved_us:.2f} ± {time.doubt_us:.2f} µs"
    )
    return text + ("; in doubt, --measure-budget measures it" if time.is_doubtful else "")


def _views(
    candidate: Candidate, model: CostModel, resources: Mapping[tuple[int, ...], Resources]
) -> Iterator[KernelView]:
    graph = candidate.graph
    if parts := chained.work(graph, family=candidate.family):
        own = resources.get(candidate.bindings)
        yield _view(graph, parts, candidate.label, model, own)
    for op in graph.ops:
        if op.kind != "view" and op.binding not in candidate.recomputes:
            alone = kernel.alone(graph, op)
            own, label = resources.get((op.binding,)), op.name.removeprefix("relax.")
            yield _view(alone, kernel.apart(alone), label, model, own)


def _view(
    graph: OpGraph,
    parts: Sequence[kernel.Kernel],
    label: str,
    model: CostModel,
    resources: Resources | None,
) -> KernelView:
    assert isinstance(model, Learned | Roofline)
    row = extraction.extract(graph, parts, model.peaks, rates=model.rates, resources=resources)
    if isinstance(model, Roofline):
        names = ["compute_us", "memory_us", "device_dispatch_us"]
        names += asdict(resources) if resources else ()
        shown = tuple(Feature(name, getattr(row, name), 0.0) for name in names)
        return KernelView(label, row.prior_us, row.prior_us, 0.0, shown)
    (prediction,) = model.kernels([row])
    factors = model.contributions(row)
    known = [name for name in factors if math.isfinite(getattr(row, name))]
    ordered = sorted(known, key=lambda name: -abs(factors[name] - 1.0))[:_SHOWN]
    shown = tuple(Feature(name, float(getattr(row, name)), factors[name]) for name in ordered)
    return KernelView(label, prediction.us, row.prior_us, prediction.error, shown)
