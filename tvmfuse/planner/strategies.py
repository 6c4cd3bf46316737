"""Ways of choosing: the optimal one, and the heuristics of other compilers beside it.

The heuristics choose among the same legal candidates and by the same times, so that
what differs is the choice alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, OpGraph
from tvmfuse.planner.problem import Problem
from tvmfuse.planner.search import best
from tvmfuse.planner.selection import Selection

Strategy = Callable[[Problem], Selection]
"""Returns the chosen items of a problem."""

# What an op may be followed by in TVM's FuseOps: its op pattern kinds.
_CHAINED = frozenset({"elementwise", "broadcast", "injective", "view"})
_AFTER_PRODUCT = frozenset({"elementwise", "broadcast", "view"})
_PRODUCTS = frozenset({"matmul", "conv"})
_REDUCING = frozenset({"reduction", "pooling"})


def strategy(name: str) -> Strategy:
    """Return the way of choosing of a name.

    Raises
    ------
    CostModelError
        There is none of that name.
    """
    if name not in STRATEGIES:
        raise CostModelError(f"planner: knows {', '.join(STRATEGIES)}, but was asked for {name!r}")
    return STRATEGIES[name]


def nothing(_problem: Problem) -> Selection:
    """Fuse nothing."""
    return Selection(frozenset())


def everything(problem: Problem) -> Selection:
    """Fuse whatever may be fused, the largest groups first, whatever it costs."""
    return _greedily(problem, lambda i: float(len(problem.items[i].candidate.provides)))


def saved_bytes(problem: Problem) -> Selection:
    """Take the groups first that spare most traffic: PyTorch Inductor's score.

    Inductor scores a pair by the bytes of the buffers that both touch; for a group that
    is what its operators touch apart, less what they touch together.
    """
    saved = [float(_spared_bytes(item.candidate.graph)) for item in problem.items]
    return _greedily(problem, lambda i: saved[i])


def saved_time(problem: Problem) -> Selection:
    """Take the groups first that save most time: XLA's priority fusion."""
    return _greedily(problem, lambda i: problem.items[i].time.saved_us)


def fuse_ops(problem: Problem) -> Selection:
    """Take the largest groups that the rules of TVM's FuseOps would form.

    Elementwise operators and moves follow one another and go into a reduction that ends
    the group; a product takes the elementwise operators after it; no group has two
    reductions or products, or several results.
    """
    return _greedily(
        problem,
        lambda i: (
            float(len(problem.items[i].candidate.bindings))
            if _is_fused_by_tvm(problem.items[i].candidate)
            else 0.0
        ),
    )


@dataclass(frozen=True)
class Sampled:
    """Take groups at random while they fit: partly fused programs, to learn from.

    Parameters
    ----------
    seed : int
        Chooses the plan.
    share : float
        Of the groups that fit, how many are taken.
    """

    seed: int
    share: float = 0.7

    def __call__(self, problem: Problem) -> Selection:
        """Return the choice."""
        chance = random.Random(f"{self.seed} {problem.graph.name}")
        draws = [chance.random() for _ in problem.items]
        keys = [1.0 + chance.random() if draw < self.share else 0.0 for draw in draws]
        return _greedily(problem, lambda i: keys[i])


def _greedily(problem: Problem, score: Callable[[int], float]) -> Selection:
    """Take items by score while they fit; the earlier of equals, none without a score."""
    scores = {i: score(i) for i in range(len(problem.items))}
    open_ = sorted((i for i in scores if scores[i] > 0), key=lambda i: (-scores[i], i))
    chosen: set[int] = set()
    taken: set[int] = set()
    for i in open_:
        candidate = problem.items[i].candidate
        # A heuristic never computes a value twice.
        if candidate.recomputes or not taken.isdisjoint(candidate.bindings):
            continue
        fuller = {*chosen, i}
        if not problem.cycles(fuller) and not problem.need(fuller).excess_bytes:
            chosen.add(i)
            taken.update(candidate.bindings)
    return Selection(frozenset(chosen))


def _spared_bytes(graph: OpGraph) -> int:
    touched = {i for op in graph.ops for i in (*op.inputs, *op.outputs)}
    apart = sum(_bytes(graph, {*op.inputs, *op.outputs}) for op in graph.ops if op.kind != "view")
    made = {i for op in graph.ops for i in op.outputs}
    return apart - _bytes(graph, (touched - made) | set(graph.outputs))


def _bytes(graph: OpGraph, tensors: Iterable[int]) -> int:
    return sum(graph.tensors[i].n_bytes for i in tensors)


def _is_fused_by_tvm(candidate: Candidate) -> bool:
    graph = candidate.graph
    if len(graph.outputs) > 1:
        return False
    kinds = [op.kind for op in graph.ops]
    heavy = [i for i, kind in enumerate(kinds) if kind not in _CHAINED]
    if not heavy:
        return True
    first, *others = heavy
    if others:
        return False
    before, after = set(kinds[:first]), set(kinds[first + 1 :])
    if kinds[first] in _PRODUCTS:
        return before <= {"view"} and after <= _AFTER_PRODUCT
    return kinds[first] in _REDUCING and before <= _CHAINED and after <= {"view"}


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "optimal": best,
        "none": nothing,
        "fuse-ops": fuse_ops,
        "saved-bytes": saved_bytes,
        "saved-time": saved_time,
        "everything": everything,
    }
)
"""Every way of choosing, by name."""
