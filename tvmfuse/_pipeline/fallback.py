"""Give up a fusion whose kernel did not come out as it was planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmfuse.cost import chained
from tvmfuse.kernels import blocks, families
from tvmfuse.passes.lower import Lowered
from tvmfuse.passes.schedule import Schedules
from tvmfuse.plan import FusionPlan, Rejection

Place = tuple[int, ...]


def unchained(lowered: Lowered, schedules: Schedules) -> Mapping[Place, str]:
    """Return the groups of two anchors whose schedule failed, and why.

    Any other schedule would store all that lies between the two, and take its time for it.
    """
    return {
        place: kernel.note
        for name, kernel in schedules.kernels.items()
        if kernel.note and kernel.family != chained.FAMILY and name in schedules.sources
        if blocks.is_made_of_blocks(schedules.sources[name])
        if families.family_of(schedules.sources[name]) == chained.FAMILY
        for place in lowered.origins[name].places
    }


def without_groups(plan: FusionPlan, reasons: Mapping[Place, str]) -> FusionPlan:
    """Return a plan without some of its groups.

    Parameters
    ----------
    plan : FusionPlan
        What was chosen.
    reasons : Mapping of tuple of int to str
        The bindings of each group to leave out, and why.
    """
    broken = [g.candidate for g in plan.groups if g.candidate.bindings in reasons]
    rejected = [
        Rejection(c.pattern, c.function, c.bindings, "lower", reasons[c.bindings]) for c in broken
    ]
    kept = tuple(g for g in plan.groups if g.candidate not in broken)
    return replace(plan, groups=kept, rejections=(*plan.rejections, *rejected))
