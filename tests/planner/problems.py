"""Small planning problems, and a cost model that knows the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmfuse.plan import (
    Candidate,
    FunctionGraph,
    FusionPlan,
    OpGraph,
    OpNode,
    RunTime,
    TensorInfo,
)
from tvmfuse.planner import choose

FUSED_US = 10.0


class Table:
    """A cost model that knows the saved time of every candidate."""

    def __init__(
        self, saved_us: Mapping[tuple[str, tuple[int, ...]], float], *, doubt_us: float = 0.0
    ) -> None:
        self.saved_us = saved_us
        self.doubt_us = doubt_us

    def predict(self, candidate: Candidate) -> RunTime:
        saved = self.saved_us[candidate.pattern, candidate.bindings]
        return RunTime(FUSED_US, FUSED_US + saved, self.doubt_us)


def candidate(
    bindings: Sequence[int],
    *,
    pattern: str = "p",
    function: str = "main",
    recomputes: Sequence[int] = (),
    kind: Any = "elementwise",
) -> Candidate:
    tensor = TensorInfo((4,), "float32")
    ops = tuple(OpNode(f"relax.op{b}", kind, (0,), (1,), 4, b) for b in bindings)
    graph = OpGraph((tensor, tensor), ops, (0,), (1,))
    return Candidate(pattern, "elementwise", function, tuple(bindings), graph, tuple(recomputes))


def plan(
    deps: Sequence[Sequence[int]],
    saved: Mapping[tuple[int, ...], float],
    *,
    doubt_us: float = 0.0,
    **options: Any,
) -> FusionPlan:
    graph = FunctionGraph("main", tuple(map(tuple, deps)))
    table = Table({("p", b): value for b, value in saved.items()}, doubt_us=doubt_us)
    return choose({"main": graph}, [candidate(b) for b in saved], table, **options)


def chosen(result: FusionPlan) -> list[tuple[int, ...]]:
    return [group.candidate.bindings for group in result.groups]


def reason(result: FusionPlan, bindings: tuple[int, ...]) -> str:
    (found,) = [r.reason for r in result.rejections if r.bindings == bindings]
    return found


def row(n: int) -> list[list[int]]:
    return [[i - 1] if i else [] for i in range(n)]


def is_acyclic(deps: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> bool:
    """Contract the groups and peel off nodes without predecessors."""
    owner = {b: i for i, group in enumerate(groups, start=len(deps)) for b in group}
    node = [owner.get(b, b) for b in range(len(deps))]
    edges = {(node[r], node[b]) for b, reads in enumerate(deps) for r in reads}
    edges = {(a, b) for a, b in edges if a != b}
    left = set(node)
    while left:
        free = left - {b for a, b in edges if a in left}
        if not free:
            return False
        left -= free
    return True
