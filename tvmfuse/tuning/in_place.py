"""Measure candidates for fusion in their place in the model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from tvmfuse._pipeline import Planned
from tvmfuse.cost.data import CALL_US
from tvmfuse.errors import TvmFuseError
from tvmfuse.frontend import Signature
from tvmfuse.plan import Candidate, FusionPlan, Group, RunTime
from tvmfuse.planner.cycles import Dependencies
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.targets import Target
from tvmfuse.tuning import variants

_ROUNDS = 9
_SHARE_OF_DOUBT = 0.05  # what is left of it, once measured


class InPlace:
    """Builds the model with some candidates fused and with none, and times its kernels.

    Candidates that do not overlap share a build. A build that would not be done within
    the budget, by how long the one before took, is not begun.

    Parameters
    ----------
    planned : Planned
        The module; only candidates of its function ``main`` are measured.
    target : Target
        This machine.
    signature : Signature
        Of the model.
    """

    def __init__(self, planned: Planned, target: Target, *, signature: Signature) -> None:
        self._planned = planned
        self._target = target
        self._signature = signature

    def __call__(
        self, candidates: Sequence[Candidate], *, budget_us: float
    ) -> list[RunTime | None]:
        """Return the measured run times of candidates; None for what time did not allow."""
        end = time.perf_counter() + budget_us / 1e6
        open_ = [i for i, c in enumerate(candidates) if c.function == "main" and not c.recomputes]
        times: dict[tuple[int, ...], float] = {}
        longest = 0.0
        for chosen in [[], *self._parts(candidates, open_)]:
            start = time.perf_counter()
            if start + longest >= end:
                break
            try:
                times |= self._times([candidates[i] for i in chosen])
            except (TvmFuseError, *variants.FAILURES):
                continue  # those of this build keep their predictions
            longest = max(longest, time.perf_counter() - start)
        return [_run_time(candidate, times) for candidate in candidates]

    def _parts(self, candidates: Sequence[Candidate], open_: Sequence[int]) -> list[list[int]]:
        """Part candidates into plans, each with as many as fit."""
        dependencies = Dependencies(self._planned.graphs["main"])
        parts: list[list[int]] = []
        for i in open_:
            for part in parts:
                others = [candidates[j] for j in part]
                taken = {binding for other in others for binding in other.bindings}
                if taken.isdisjoint(candidates[i].bindings) and not dependencies.cycles(
                    [*others, candidates[i]]
                ):
                    part.append(i)
                    break
            else:
                parts.append([i])
        return parts

    def _times(self, fused: Sequence[Candidate]) -> dict[tuple[int, ...], float]:
        """Return the median time of each kernel of a plan, by what it computes."""
        plan = FusionPlan(tuple(Group(candidate, RunTime(0.0, 0.0)) for candidate in fused))
        built = variants.build(
            self._planned, {"plan": plan}, self._target, signature=self._signature
        )
        session, taken = built.sessions["plan"], variants.Times()
        feeds = random_inputs(self._signature.inputs)
        for _ in range(_ROUNDS):
            taken.add_round(session, feeds)
        return {
            place: statistics.median(taken.kernels_us[name]) + CALL_US
            for name, info in built.kernels.items()
            if name in taken.kernels_us
            for place in info.places
            if place
        }


def _run_time(candidate: Candidate, times: Mapping[tuple[int, ...], float]) -> RunTime | None:
    parts = [times.get((op.binding,)) for op in candidate.graph.ops if op.kind != "view"]
    fused = times.get(candidate.bindings)
    if fused is None or any(part is None for part in parts):
        return None
    apart = sum(part for part in parts if part is not None)
    return RunTime(fused, apart, _SHARE_OF_DOUBT * apart)
