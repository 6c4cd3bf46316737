"""The one file that knows the order of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvmfuse._pipeline.fallback import unchained, without_groups
from tvmfuse._pipeline.options import Options, Planned, Prepared
from tvmfuse._pipeline.stages import Stages
from tvmfuse._tvm.unrolled import unroll
from tvmfuse.cost import chained, shipped
from tvmfuse.kernels import legalize, recurrent, scan
from tvmfuse.passes import codegen
from tvmfuse.passes.canonicalise import canonicalise, settle_empty
from tvmfuse.passes.collect import collect
from tvmfuse.passes.emit import emitters
from tvmfuse.passes.layout import layout
from tvmfuse.passes.lower import lower
from tvmfuse.passes.partition import partition
from tvmfuse.passes.schedule import machine_of, schedule
from tvmfuse.plan import Candidate, CostModel, FusionPlan, Records, Rejection
from tvmfuse.planner import choose
from tvmfuse.targets import Target


def plan(
    mod: Any, target: Target, *, options: Options | None = None, stages: Stages | None = None
) -> Planned:
    """Find what may be fused in a module and choose what to fuse.

    Parameters
    ----------
    mod : tvm.IRModule
        Relax operators.
    target : Target
        The device.
    options : Options, optional
        What to look for and how to judge it.

    Returns
    -------
    Planned
        The module in canonical form, to which the plan refers.
    """
    options = options or Options()
    stages = stages or Stages(verify=options.verify)
    with stages.stage("canonicalise"):
        mod = settle_empty(mod)
        mod = unroll(mod, but=partial(_has_kernel, is_cpu=target.rules == "cpu"))
        own = scan.rules(machine_of(target)) if target.rules == "cpu" else {}
        mod = canonicalise(codegen.dispatch_libraries(mod, target.tvm(), own=own))
    stages.returned("canonicalise", mod)
    with stages.stage("collect"):
        found = collect(mod, options.registry)
    with stages.stage("plan"):
        model, notes = _cost_model(options, target)
        candidates, unscheduled = _schedulable(found.candidates, target)
        candidates = candidates if options.fuse else ()
        unfused = Planned(mod, FusionPlan(), found.graphs, model, options.registry)
        chosen = choose(
            found.graphs,
            candidates,
            model,
            strategy=options.strategy,
            max_memory_bytes=options.max_memory_bytes,
            measure=options.measure and options.measure(unfused, target),
            budget_us=options.measure_us,
        )
        rejected = (*found.rejections, *unscheduled, *chosen.rejections)
        chosen = replace(chosen, rejections=rejected if options.fuse else (), notes=notes)
    return replace(unfused, plan=chosen)


def _schedulable(
    candidates: Sequence[Candidate], target: Target
) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """Part candidates into those that the target's rules can schedule, and refusals."""
    if target.rules == "cpu":
        return tuple(candidates), ()
    chains = [c for c in candidates if c.family == chained.FAMILY]
    reason = f"a kernel of two anchors is scheduled on CPUs only, not on {target.spec}"
    refused = (Rejection(c.pattern, c.function, c.bindings, "collect", reason) for c in chains)
    return tuple(c for c in candidates if c.family != chained.FAMILY), tuple(refused)


def _has_kernel(layer: Any, *, is_cpu: bool) -> bool:
    """Whether a recurrent layer can stay one operator: only CPUs have a kernel for it."""
    return is_cpu and recurrent.fits(layer)


def _cost_model(options: Options, target: Target) -> tuple[CostModel, tuple[str, ...]]:
    """Return what predicts times, and what there is to say about it."""
    if options.cost_model is not None:
        return options.cost_model, options.notes
    found = shipped.best(target.cost_family, target.peaks)
    return found.model, (*options.notes, found.note)


def prepare(
    mod: Any, target: Target, *, options: Options | None = None, stages: Stages | None = None
) -> Prepared:
    """Plan, fuse, lower and schedule a module: all but code generation.

    Raises
    ------
    LoweringError
        A single operator cannot be lowered; a group that cannot falls back to its parts.
    """
    options = options or Options()
    stages = stages or Stages(verify=options.verify)
    planned = plan(mod, target, options=options, stages=stages)
    return realize(planned, planned.plan, target, records=options.records, stages=stages)


def realize(
    planned: Planned,
    chosen: FusionPlan,
    target: Target,
    *,
    records: Records | None = None,
    stages: Stages | None = None,
) -> Prepared:
    """Fuse what was chosen, lower and schedule it.

    Parameters
    ----------
    planned : Planned
        A module, of one function or more.
    chosen : FusionPlan
        What to fuse in them.
    target : Target
        The device.
    records : Records, optional
        Tuned decisions for kernels.
    """
    stages = stages or Stages(None)
    tvm_target, is_cpu = target.tvm(), target.rules == "cpu"
    rejections, own = chosen.rejections, emitters(planned.registry)
    with stages.stage("partition"):
        mod = partition(planned.module, chosen)
    stages.returned("partition", mod)
    if is_cpu:
        with stages.stage("layout"):
            laid = layout(mod, machine_of(target), own=own)
            mod, rejections = laid.module, (*rejections, *laid.rejections)
        stages.returned("layout", mod)
    with stages.stage("lower"):
        rules = legalize.rules(machine_of(target)) if is_cpu else {}
        lowered = lower(mod, tvm_target, rules, own=own)
        mod = codegen.lower_views(lowered.module, tvm_target)
    stages.returned("lower", mod)
    with stages.stage("schedule"):
        schedules = schedule(mod, target, records=records)
    stages.returned("schedule", schedules.module)
    if unfit := unchained(lowered, schedules):
        kept = without_groups(chosen, unfit)
        return realize(planned, kept, target, records=records, stages=stages)
    rejections = (*rejections, *lowered.rejections)
    return Prepared(schedules.module, replace(chosen, rejections=rejections), lowered, schedules)
