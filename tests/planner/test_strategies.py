"""The heuristics beside the optimal planner: what each takes, and that all are legal."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.problems import Table, candidate, chosen, is_acyclic, plan, reason, row
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, FunctionGraph, OpGraph, OpNode, TensorInfo
from tvmfuse.planner import STRATEGIES, Sampled, choose, strategy

SAVED = {(1, 2): 7.0, (0, 1): 5.0, (2, 3): 5.0, (0, 1, 2): -1.0}


def by(name: str, saved=SAVED, n: int = 4) -> list[tuple[int, ...]]:
    return chosen(plan(row(n), saved, strategy=strategy(name)))


def test_each_takes_what_it_is_known_for():
    assert by("none") == []
    assert by("optimal") == [(0, 1), (2, 3)]
    assert by("saved-time") == [(1, 2)]
    assert by("everything") == [(0, 1, 2)]


def test_saved_bytes_follow_the_traffic():
    def chain(first: int, n_ops: int, size: int) -> Candidate:
        tensors = tuple(TensorInfo((size,), "float32") for _ in range(n_ops + 1))
        ops = tuple(
            OpNode("relax.exp", "elementwise", (i,), (i + 1,), size, first + i)
            for i in range(n_ops)
        )
        bindings = tuple(range(first, first + n_ops))
        return Candidate(
            "p", "elementwise", "main", bindings, OpGraph(tensors, ops, (0,), (n_ops,))
        )

    small, large = chain(0, 2, 10), chain(1, 2, 1000)
    table = Table({("p", (0, 1)): 9.0, ("p", (1, 2)): 1.0})
    graphs = {"main": FunctionGraph("main", ((), (0,), (1,)))}
    found = choose(graphs, [small, large], table, strategy=strategy("saved-bytes"))
    assert chosen(found) == [(1, 2)]


@pytest.mark.parametrize(
    ("kinds", "is_fused"),
    [
        (("elementwise", "injective", "broadcast"), True),
        (("conv", "broadcast", "elementwise"), True),
        (("conv", "injective"), False),
        (("elementwise", "conv"), False),
        (("elementwise", "reduction"), True),
        (("reduction", "elementwise"), False),
        (("matmul", "reduction"), False),
        (("matmul", "elementwise", "matmul"), False),
    ],
)
def test_fuse_ops_has_the_rules_of_tvm(kinds, is_fused):
    group = candidate(range(len(kinds)))
    ops = tuple(replace(op, kind=k) for op, k in zip(group.graph.ops, kinds, strict=True))
    group = replace(group, graph=replace(group.graph, ops=ops))
    graph = FunctionGraph("main", tuple(map(tuple, row(len(kinds)))))
    table = Table({("p", group.bindings): 1.0})
    found = choose({"main": graph}, [group], table, strategy=strategy("fuse-ops"))
    assert bool(found.groups) == is_fused


def test_plan_names_its_planner_and_says_what_it_left():
    found = plan(row(2), {(0, 1): 1.0}, strategy=strategy("none"))
    assert found.planner == "none"
    assert reason(found, (0, 1)).startswith("left out by the planner")


def test_no_heuristic_computes_a_value_twice():
    graph = FunctionGraph("main", ((), (0,), (0,)), results=(1, 2))
    group = candidate((0, 1), recomputes=(0,))
    table = Table({("p", (0, 1)): 5.0, ("single", (0,)): 1.0})
    for name in STRATEGIES:
        found = choose({"main": graph}, [group], table, strategy=strategy(name))
        assert bool(found.groups) == (name == "optimal")


def test_unknown_planner_is_named():
    with pytest.raises(CostModelError, match="but was asked for 'oracle'"):
        strategy("oracle")


groups_of = st.sets(st.integers(0, 7), min_size=2, max_size=4).map(lambda s: tuple(sorted(s)))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(groups_of, st.integers(-3, 20).map(float), max_size=8), st.integers(0, 99))
def test_every_plan_is_disjoint_and_acyclic(saved, seed):
    deps = [[], [], [0], [0, 1], [2], [3, 4], [1], [5, 6]]
    best = plan(deps, saved).saved_us
    for way in (*STRATEGIES.values(), Sampled(seed)):
        found = plan(deps, saved, strategy=way)
        members = [b for group in chosen(found) for b in group]
        assert len(members) == len(set(members))
        assert is_acyclic(deps, chosen(found))
        assert found.saved_us <= best
        assert plan(deps, saved, strategy=way) == found
