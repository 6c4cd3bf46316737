"""How much memory a plan takes, and plans that must not take more."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.problems import Table, candidate, chosen, is_acyclic, row
from tvmfuse.errors import MemoryLimitError
from tvmfuse.plan import FunctionGraph
from tvmfuse.planner import STRATEGIES, choose
from tvmfuse.planner.memory import need

# 0 and 1 are large, 2 and 3 reduce one each, 4 adds those up.
TWO_BRANCHES = FunctionGraph(
    "main", ((), (), (0,), (1,), (2, 3)), n_bytes=(100, 100, 1, 1, 1), results=(4,)
)


def test_values_live_from_their_kernel_to_the_last_reader():
    chain = FunctionGraph("main", ((), (0,), (1,)), n_bytes=(8, 4, 2), results=(2,))
    assert need(chain, []).peak_bytes == 12
    assert need(chain, [candidate((0, 1))]).peak_bytes == 6
    assert need(chain, [candidate((0, 1, 2))]).peak_bytes == 2


def test_view_keeps_what_it_shows():
    # 1 is a view of 0, read after 2 is made.
    graph = FunctionGraph("main", ((), (0,), (), (1, 2)), n_bytes=(8, 0, 16, 1), results=(3,))
    assert need(graph, []).peak_bytes == 25


def test_result_lives_to_the_end():
    graph = FunctionGraph("main", ((), (), ()), n_bytes=(8, 8, 8), results=(0, 2))
    assert need(graph, []).peak_bytes == 16


def test_value_that_every_reader_computes_itself_takes_no_memory():
    graph = FunctionGraph("main", ((), (0,), (0,)), n_bytes=(100, 1, 1), results=(1, 2))
    copies = [candidate((0, reader), recomputes=(0,)) for reader in (1, 2)]
    assert need(graph, copies).peak_bytes == 2
    assert need(graph, copies[:1]).peak_bytes == 102


def test_group_that_keeps_two_large_values_alive_is_left_out():
    together, apart = candidate((2, 3)), candidate((0, 2))
    saved = {("p", (2, 3)): 9.0, ("p", (0, 2)): 1.0}
    graphs = {"main": TWO_BRANCHES}
    free = choose(graphs, [together, apart], Table(saved))
    assert chosen(free) == [(2, 3)]
    tight = choose(graphs, [together, apart], Table(saved), max_memory_bytes=150)
    assert chosen(tight) == [(0, 2)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_limit_that_no_plan_keeps_is_an_error(name):
    with pytest.raises(MemoryLimitError, match="allow more"):
        choose(
            {"main": replace(TWO_BRANCHES, n_bytes=(1 << 30,) * 5)},
            [candidate((2, 3))],
            Table({("p", (2, 3)): 1.0}),
            strategy=STRATEGIES[name],
            max_memory_bytes=1 << 20,
        )


@st.composite
def problems(draw):
    n = draw(st.integers(3, 7))
    deps = [draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set() for i in range(n)]
    sizes = tuple(draw(st.integers(0, 9)) for _ in range(n))
    read = set().union(*deps)
    graph = FunctionGraph(
        "main",
        tuple(tuple(sorted(d)) for d in deps),
        n_bytes=sizes,
        results=tuple(i for i in range(n) if i not in read),
    )
    members = st.sets(st.integers(0, n - 1), min_size=2, max_size=4)
    groups = draw(st.lists(members, min_size=1, max_size=5))
    saved = {tuple(sorted(group)): float(draw(st.integers(1, 20))) for group in groups}
    return graph, saved, draw(st.integers(0, 30))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_plan_within_memory_is_optimal(problem):
    graph, saved, limit = problem
    best = None
    for size in range(len(saved) + 1):
        for groups in itertools.combinations(saved, size):
            members = [b for group in groups for b in group]
            if len(members) != len(set(members)) or not is_acyclic(graph.deps, groups):
                continue
            if need(graph, [candidate(group) for group in groups]).peak_bytes <= limit:
                best = max(best or 0.0, sum(saved[group] for group in groups))
    table = Table({("p", group): value for group, value in saved.items()})
    candidates = [candidate(group) for group in saved]
    if best is None:
        with pytest.raises(MemoryLimitError):
            choose({"main": graph}, candidates, table, max_memory_bytes=limit)
        return
    found = choose({"main": graph}, candidates, table, max_memory_bytes=limit)
    assert found.saved_us == best
    assert found.gap_us == 0


def test_many_groups_are_fitted_into_memory():
    n = 90
    deps = row(n)
    graph = FunctionGraph(
        "main",
        tuple(map(tuple, deps)),
        n_bytes=tuple(1 + i % 7 for i in range(n)),
        results=(n - 1,),
    )
    saved = {(i, i + 1): 1.0 + i % 5 for i in range(n - 1)}
    table = Table({("p", group): value for group, value in saved.items()})
    limit = 11
    assert need(graph, []).peak_bytes > limit
    found = choose(
        {"main": graph}, [candidate(group) for group in saved], table, max_memory_bytes=limit
    )
    assert need(graph, [group.candidate for group in found.groups]).peak_bytes <= limit
    assert found.saved_us > 0
