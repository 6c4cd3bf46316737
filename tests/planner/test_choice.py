"""The planner against brute force, and the sentences that it says."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.problems import Table, candidate, chosen, is_acyclic, plan, reason, row
from tvmfuse.errors import CostModelError, PlanMismatchError
from tvmfuse.plan import FunctionGraph, FusionPlan
from tvmfuse.planner import choose, search, selection


@st.composite
def problems(draw):
    n = draw(st.integers(2, 9))
    deps = [draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(n)]
    groups = draw(
        st.lists(st.sets(st.integers(0, n - 1), min_size=1, max_size=4), max_size=9).map(
            lambda sets: list(dict.fromkeys(tuple(sorted(s)) for s in sets))
        )
    )
    saved = {group: float(draw(st.integers(-3, 20))) for group in groups}
    return [sorted(d) for d in deps], saved


def best_by_brute_force(deps, saved):
    best = 0.0
    for size in range(len(saved) + 1):
        for groups in itertools.combinations(saved, size):
            members = [b for group in groups for b in group]
            if len(members) == len(set(members)) and is_acyclic(deps, groups):
                best = max(best, sum(saved[g] for g in groups))
    return best


@settings(max_examples=1000, deadline=None)
@given(problems())
def test_plan_is_disjoint_acyclic_optimal_and_complete(problem):
    deps, saved = problem
    result = plan(deps, saved)
    groups = chosen(result)
    members = [b for group in groups for b in group]
    assert len(members) == len(set(members))
    assert is_acyclic(deps, groups)
    assert sum(saved[g] for g in groups) == best_by_brute_force(deps, saved)
    assert result.saved_us >= 0
    assert sorted([*groups, *(r.bindings for r in result.rejections)]) == sorted(saved)
    assert all(r.reason and r.stage == "plan" for r in result.rejections)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_greedy_fallback_is_disjoint_acyclic_and_complete(problem):
    deps, saved = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "MAX_EXACT_ITEMS", 1)
        patch.setattr(search, "_MAX_ROUNDS", 1)
        result = plan(deps, saved)
    groups = chosen(result)
    members = [b for group in groups for b in group]
    assert len(members) == len(set(members))
    assert is_acyclic(deps, groups)
    assert all(saved[group] > 0 for group in groups)
    assert sorted([*groups, *(r.bindings for r in result.rejections)]) == sorted(saved)


@settings(max_examples=50, deadline=None)
@given(problems())
def test_same_input_gives_same_plan(problem):
    assert plan(*problem) == plan(*problem)


def test_two_small_groups_beat_the_large_one_they_overlap():
    result = plan(row(4), {(1, 2): 7.0, (0, 1): 5.0, (2, 3): 5.0})
    assert chosen(result) == [(0, 1), (2, 3)]
    assert reason(result, (1, 2)) == (
        "its operators go to op0 + op1 [p] and op2 + op3 [p], saving 10.0 µs instead of 7.00 µs"
    )
    (refused,) = result.rejections
    assert refused.time is not None
    assert refused.time.saved_us == pytest.approx(7.0)


def test_slower_when_fused_is_rejected_with_both_times():
    result = plan(row(2), {(0, 1): -1.5})
    assert result.groups == ()
    assert reason(result, (0, 1)) == "predicted 10.0 µs fused against 8.50 µs apart"


def test_saving_nothing_is_not_worth_a_kernel():
    assert plan(row(2), {(0, 1): 0.0}).groups == ()


def test_two_groups_that_feed_each_other_are_not_both_chosen():
    # 0 → 2 and 1 → 3: fusing 0 with 3 and 1 with 2 makes each wait for the other.
    deps = [[], [], [0], [1]]
    result = plan(deps, {(0, 3): 4.0, (1, 2): 5.0})
    assert chosen(result) == [(1, 2)]
    assert reason(result, (0, 3)) == "would close a cycle with op1 + op2 [p]"


def test_cycle_through_an_unfused_operator_is_seen():
    # 0 → 2 → 5 and 1 → 3 → 4: the way from one group to the other leads over 2 and 3.
    deps = [[], [], [0], [1], [3], [2]]
    result = plan(deps, {(0, 4): 4.0, (1, 5): 5.0})
    assert chosen(result) == [(1, 5)]


def test_cycle_of_three_groups_costs_only_the_cheapest():
    deps = [[], [], [], [0], [1], [2]]
    result = plan(deps, {(0, 4): 3.0, (1, 5): 2.0, (2, 3): 1.0})
    assert chosen(result) == [(0, 4), (1, 5)]


def test_forbidding_a_cycle_spares_groups_that_do_not_close_it():
    deps = [[], [], [0], [1], [0]]
    result = plan(deps, {(0, 3): 10.0, (1, 2): 9.0, (0, 4): 8.0})
    assert chosen(result) == [(0, 4), (1, 2)]


def test_variants_of_a_cycle_are_forbidden_together():
    # Every pair of a long and a long variant is cyclic; the only way out is a short one.
    n = 40
    deps = [[], [], [0], [1]] + [[2] if i % 2 == 0 else [3] for i in range(n)]
    tails = [[4 + i for i in range(side, n, 2)] for side in (0, 1)]
    saved = {(0, 3, *tails[1][:k]): 10.0 + k for k in range(20)}
    saved |= {(1, 2, *tails[0][:k]): 10.0 + k for k in range(20)}
    result = plan(deps, saved)
    assert len(result.groups) == 1
    assert result.saved_us == 29.0


def test_group_with_a_way_back_is_refused():
    graph = FunctionGraph("main", ((), (0,), (1,)), labels=("conv", "shape", "add"))
    table = Table({("p", (0, 2)): 5.0})
    result = choose({"main": graph}, [candidate((0, 2))], table)
    assert reason(result, (0, 2)) == (
        "a value leaves it and comes back through shape, which would close a cycle"
    )


def test_tie_goes_to_the_earlier_candidate():
    graph = FunctionGraph("main", ((), (0,)))
    table = Table({("named", (0, 1)): 5.0, ("generic", (0, 1)): 5.0})
    for order in (("named", "generic"), ("generic", "named")):
        found = choose({"main": graph}, [candidate((0, 1), pattern=p) for p in order], table)
        assert [g.candidate.pattern for g in found.groups] == [order[0]]


def test_tiny_saving_beside_a_large_one_is_taken():
    result = plan(row(6), {(0, 1): 1e9, (1, 2): 1e8, (2, 3): 1e-3, (4, 5): 1e-3})
    assert chosen(result) == [(0, 1), (2, 3), (4, 5)]


def test_functions_are_planned_apart():
    graphs = {name: FunctionGraph(name, ((), (0,))) for name in ("a", "b")}
    found = choose(
        graphs, [candidate((0, 1), function=f) for f in "ba"], Table({("p", (0, 1)): 1.0})
    )
    assert [g.candidate.function for g in found.groups] == ["a", "b"]


def test_no_candidates_give_an_empty_plan():
    assert choose({"main": FunctionGraph("main", ())}, [], Table({})) == FusionPlan()


@pytest.mark.parametrize("bindings", [(0, 7), (-1, 0), ()])
def test_candidate_outside_its_function_is_refused(bindings):
    with pytest.raises(PlanMismatchError, match="has 2"):
        plan(row(2), {bindings: 1.0})


def test_candidate_of_an_unknown_function_is_refused():
    with pytest.raises(PlanMismatchError, match="'other'"):
        choose({}, [candidate((0, 1), function="other")], Table({}))


def test_cost_model_without_a_finite_answer_is_refused():
    with pytest.raises(CostModelError, match="Table must predict finite times"):
        plan(row(2), {(0, 1): float("nan")})


def test_greedy_choice_says_so(monkeypatch):
    # Each two of three overlap: the relaxation takes half of each.
    monkeypatch.setattr(selection, "MAX_EXACT_ITEMS", 1)
    result = plan([[], [], []], {(0, 1): 5.0, (1, 2): 6.0, (0, 2): 5.0})
    assert chosen(result) == [(1, 2)]
    assert reason(result, (0, 1)).endswith("too many candidates overlap for an exact choice)")


def test_ten_thousand_candidates_are_planned():
    n, longest = 2503, 5
    saved = {
        tuple(range(a, a + k)): 1.0 + (a * 7919 + k * 104729) % 1000 / 100 * k
        for a in range(n)
        for k in range(2, longest + 1)
        if a + k <= n
    }
    assert len(saved) > 9_990
    result = plan(row(n), saved)
    assert len(result.groups) + len(result.rejections) == len(saved)
