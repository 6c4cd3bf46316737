"""What the graph of a named pattern says is all needed: each value inside, each number."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tvmfuse import testing
from tvmfuse.patterns.base import Case, Pattern
from tvmfuse.patterns.registry import builtin

NAMED = [pattern for pattern in builtin().patterns if isinstance(pattern, Pattern)]
CASES = [
    pytest.param(pattern, case, id=f"{pattern.name}-{case.name}")
    for pattern in NAMED
    for case in pattern.cases
    if case.graph is None
]


class Spy:
    """Stands in for ``relax.op``: notes what each call returns, and may change one number."""

    def __init__(self, target: Any, results: list[Any], numbers: list[float], wrong: int) -> None:
        self._target, self._results = target, results
        self._numbers, self._wrong = numbers, wrong

    def __getattr__(self, name: str) -> Any:
        if name in ("const", "any_const"):
            return self._number if name == "const" else getattr(self._target, name)
        return Spy(getattr(self._target, name), self._results, self._numbers, self._wrong)

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        self._results.append(self._target(*args, **attributes))
        return self._results[-1]

    def _number(self, value: float) -> Any:
        self._numbers.append(value)
        return self._target.const(value + (len(self._numbers) - 1 == self._wrong))


def spied(pattern: Pattern, case: Case, *, returned: int = -1, wrong: int = -1) -> Any:
    """Build a case, one value inside returned too, or one number wrong; count both."""
    results: list[Any] = []
    numbers: list[float] = []

    def graph(op: Any, **given: Any) -> Any:
        result = pattern.graph(Spy(op, results, numbers, wrong), **given)
        return (result, results[returned]) if returned >= 0 else result

    graph.__signature__ = inspect.signature(pattern.graph)  # type: ignore[attr-defined]
    mod, _ = testing.build(case, graph, "float32")
    return mod, len(results), len(numbers)


def inside(pattern: Pattern, case: Case) -> Iterator[Any]:
    """Yield a module for each value inside, in which that is returned as well."""
    _, n_values, _ = spied(pattern, case)
    yield from (spied(pattern, case, returned=at)[0] for at in range(n_values - 1))


@pytest.mark.parametrize(("pattern", "case"), CASES)
def test_no_value_inside_is_lost_where_it_is_a_result(pattern: Pattern, case: Case) -> None:
    modules = list(inside(pattern, case))
    assert modules
    for mod in modules:
        for (candidate,) in testing.covers_of_everything(pattern, mod):
            assert pattern.is_multi_output
            assert len(candidate.graph.outputs) == 2


def test_every_number_must_be_what_the_graph_says() -> None:
    numbers = [
        (pattern, case, number)
        for pattern in NAMED
        for case in pattern.cases
        if case.graph is None
        for number in range(spied(pattern, case)[2])
    ]
    assert numbers
    for pattern, case, number in numbers:
        mod, *_ = spied(pattern, case, wrong=number)
        assert not testing.covers_of_everything(pattern, mod), f"{pattern.name}, {case.name}"
