"""Plans in which several kernels may compute an operator, against brute force."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.problems import candidate
from tvmfuse.plan import Candidate, FunctionGraph, FusionPlan, RunTime
from tvmfuse.planner import choose
from tvmfuse.planner.cycles import Dependencies


@dataclass(frozen=True)
class Costs:
    """A cost model: what each operator takes alone, and each group fused."""

    alone: tuple[float, ...]
    fused: dict[tuple[tuple[int, ...], tuple[int, ...]], float]

    def predict(self, candidate: Candidate) -> RunTime:
        apart = sum(self.alone[i] for i in candidate.provides)
        key = candidate.bindings, candidate.recomputes
        return RunTime(self.fused.get(key, apart), apart)


@dataclass(frozen=True)
class Problem:
    graph: FunctionGraph
    candidates: tuple[Candidate, ...]
    costs: Costs

    def plan(self) -> FusionPlan:
        return choose({"main": self.graph}, self.candidates, self.costs)


def results(deps: Sequence[Sequence[int]]) -> tuple[int, ...]:
    read = {r for reads in deps for r in reads}
    return tuple(i for i in range(len(deps)) if i not in read)


def feeding(deps: Sequence[Sequence[int]], inside: set[int], ends: set[int]) -> set[int]:
    """Return the ends and all inside that they are computed from."""
    found, open_ = set(ends), list(ends)
    while open_:
        for read in deps[open_.pop()]:
            if read in inside and read not in found:
                found.add(read)
                open_.append(read)
    return found


@st.composite
def problems(draw):
    n = draw(st.integers(3, 7))
    deps = [draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set() for i in range(n)]
    program = FunctionGraph("main", tuple(tuple(sorted(d)) for d in deps))
    fused = {}
    candidates = []
    for _ in range(draw(st.integers(1, 6))):
        inside = draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=4))
        copied = feeding(deps, inside, draw(st.sets(st.sampled_from(sorted(inside)), max_size=2)))
        if copied == inside:
            continue
        group = candidate(sorted(inside), recomputes=sorted(copied))
        if Dependencies(program).way_back(group) is not None:
            continue
        if (group.bindings, group.recomputes) not in fused:
            fused[group.bindings, group.recomputes] = float(draw(st.integers(1, 20)))
            candidates.append(group)
    alone = tuple(float(draw(st.integers(1, 9))) for _ in range(n))
    ends = set(results(deps)) | draw(st.sets(st.integers(0, n - 1), max_size=1))
    graph = replace(program, results=tuple(ends))
    return Problem(graph, tuple(candidates), Costs(alone, fused))


def cost_us(problem: Problem, chosen: Sequence[Candidate]) -> float | None:
    """Run the program with these groups: what it takes, or None where it cannot be."""
    deps, ends = problem.graph.deps, set(problem.graph.results)
    maker: dict[int, int] = {}
    kernels = [(set(c.bindings), set(c.provides)) for c in chosen]
    hidden: set[int] = set()
    for i, (inside, given_) in enumerate(kernels):
        for binding in given_:
            if binding in maker:
                return None
            maker[binding] = i
            readers = {r for r, reads in enumerate(deps) if binding in reads}
            if binding not in ends and readers <= inside:
                hidden.add(binding)
    for binding in range(len(deps)):
        if binding not in maker:
            maker[binding] = len(kernels)
            kernels.append(({binding}, {binding}))
    reads = [{r for b in inside for r in deps[b]} - inside for inside, _ in kernels]
    needed = set(range(len(chosen))) | {maker[b] for b in ends}
    open_ = list(needed)
    while open_:
        for read in reads[open_.pop()]:
            if read in hidden:
                return None
            if maker[read] not in needed:
                needed.add(maker[read])
                open_.append(maker[read])
    waiting = set(needed)
    while waiting:
        free = {k for k in waiting if not {maker[r] for r in reads[k]} & waiting}
        if not free:
            return None
        waiting -= free
    groups = sum(problem.costs.fused[c.bindings, c.recomputes] for c in chosen)
    singles = sum(
        problem.costs.alone[b]
        for k, (_, given_) in enumerate(kernels)
        if k in needed and k >= len(chosen)
        for b in given_
    )
    return groups + singles


@settings(max_examples=300, deadline=None)
@given(problems())
def test_plan_with_recomputation_is_valid_and_optimal(problem):
    plans = (
        cost_us(problem, groups)
        for size in range(len(problem.candidates) + 1)
        for groups in itertools.combinations(problem.candidates, size)
    )
    best = min(cost for cost in plans if cost is not None)
    found = problem.plan()
    assert cost_us(problem, [group.candidate for group in found.groups]) == best
    assert found.gap_us == 0
    assert len(found.groups) + len(found.rejections) == len(problem.candidates)


def test_cheap_operator_is_computed_twice_rather_than_written():
    # 0 feeds 1 and 2; both groups take it along, and its own kernel is gone.
    graph = FunctionGraph("main", ((), (0,), (0,)), results=(1, 2))
    groups = tuple(candidate((0, reader), recomputes=(0,)) for reader in (1, 2))
    costs = Costs((5.0, 5.0, 5.0), {(g.bindings, (0,)): 6.0 for g in groups})
    found = choose({"main": graph}, groups, costs)
    assert [group.candidate for group in found.groups] == list(groups)
    assert found.saved_us == -2.0  # that of 0 itself comes on top


def test_operator_that_is_a_result_keeps_its_kernel():
    graph = FunctionGraph("main", ((), (0,), (0,)), results=(0, 1, 2))
    groups = tuple(candidate((0, reader), recomputes=(0,)) for reader in (1, 2))
    costs = Costs((5.0, 5.0, 5.0), {(g.bindings, (0,)): 6.0 for g in groups})
    assert choose({"main": graph}, groups, costs).groups == ()


def test_long_chain_of_groups_that_exclude_one_another_is_proven_optimal():
    # In each block one group hides the first value, and two that overlap would read it.
    deps, groups = [], []
    for at in range(0, 4 * 80, 4):
        deps += [(at - 1,) if at else (), (at,), (at + 1,), (at + 2,)]
        groups += [
            candidate((at, at + 1)),
            candidate((at + 1, at + 2), recomputes=(at + 1,)),
            candidate((at + 1, at + 2, at + 3), recomputes=(at + 1,)),
        ]
        if at:
            groups.append(candidate((at - 1, at)))
    graph = FunctionGraph("main", tuple(deps), results=(len(deps) - 1, *range(1, len(deps), 4)))
    fused = {(g.bindings, g.recomputes): len(g.provides) * 5.0 - 3.0 for g in groups}
    found = choose({"main": graph}, groups, Costs((5.0,) * len(deps), fused))
    assert found.gap_us == 0
