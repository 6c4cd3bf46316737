"""Each condition of each pattern has a graph that fails only that one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.patterns.conditions import Condition, conditions, functions
from tvmfuse import testing
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.base import Case, Generator
from tvmfuse.patterns.registry import Registry, builtin

PATTERNS = builtin().patterns
BY_FUNCTION = {
    function: [pattern for pattern in PATTERNS if function in functions(pattern)]
    for function in dict.fromkeys(f for pattern in PATTERNS for f in functions(pattern))
}
CONDITIONS = [c for function in BY_FUNCTION for c in conditions(function)]

# What only saves work: another condition refuses the same. Why, by the name of each.
SHORTCUTS = {
    "siblings.Siblings.find: len(siblings) > 1": "one anchor has no free sibling",
    "level._joined: len(anchors) > 1": "one anchor has no free sibling",
    "elementwise._parts: read in members": "what is no member is of another stage",
    "elementwise._delayed: position in members": "parts grow by members only",
    "prologue.leading: read not in members": "a set holds a member once",
    "rope._ends: not (end in flow.escaping)": "what is returned is no part of what follows",
    "rope._ends: not (not is_join and flow.operators[user] not in (*_ARITHMETIC, _RESHAPE))": (
        "what follows another operator does not reach the slices"
    ),
}


@dataclass(frozen=True, eq=False)
class Example:
    """A graph that a pattern is tested on."""

    pattern: Generator
    case: Case

    @cached_property
    def module(self) -> Any:
        return testing.build(self.case, testing.graph_of(self.pattern, self.case), "float32")[0]

    @cached_property
    def usual(self) -> Outcome:
        return self.outcome()

    def outcome(self) -> Outcome:
        collected = collect(self.module, Registry((self.pattern,)))
        return Outcome(
            matched=frozenset((c.bindings, c.recomputes) for c in collected.candidates),
            refused=frozenset((r.bindings, r.reason) for r in collected.rejections),
        )


@dataclass(frozen=True)
class Outcome:
    """The bindings that a pattern may fuse in a graph, and those that it may not."""

    matched: frozenset[Any]
    refused: frozenset[Any]

    @property
    def is_failure(self) -> bool:
        return any(not bindings for bindings, _ in self.refused)


EXAMPLES = {p: [Example(p, case) for case in (*p.near_misses, *p.cases)] for p in PATTERNS}


def matters(condition: Condition, pattern: Generator) -> bool:
    """Tell whether some graph is matched, or matched otherwise, with a condition waived."""
    for example in EXAMPLES[pattern]:
        usual, now = example.usual, example.outcome()
        is_new = condition.is_about_leaks and bool(now.refused - usual.refused)
        if now.matched != usual.matched or now.is_failure or is_new:
            return True
    return False


def is_needed(condition: Condition) -> bool:
    patterns = BY_FUNCTION[condition.function]
    for pattern in patterns:
        assert not any(example.usual.is_failure for example in EXAMPLES[pattern])
    with condition.waived():
        return any(matters(condition, pattern) for pattern in patterns)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_some_graph_fails_only_this_condition(condition: Condition) -> None:
    assert is_needed(condition) != (condition.name in SHORTCUTS)


def test_every_shortcut_is_a_condition() -> None:
    assert {condition.name for condition in CONDITIONS} >= set(SHORTCUTS)
