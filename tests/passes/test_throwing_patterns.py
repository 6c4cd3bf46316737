"""A pattern that throws is dropped and named, and the model still compiles."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse import testing
from tvmfuse._pipeline import Options, prepare
from tvmfuse._tvm import relax
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.base import Generator, Match, Pattern
from tvmfuse.patterns.registry import Registry, builtin
from tvmfuse.report.contract import AlwaysFuse
from tvmfuse.targets import resolve

PATTERNS = builtin().patterns
NAMED = [pattern for pattern in PATTERNS if isinstance(pattern, Pattern)]


class SurpriseError(Exception):
    """Is no error that Python or TVM knows."""


def broken(pattern: Generator, method: str) -> Generator:
    """Return ``pattern`` with one method that throws."""

    def throw(*_args: Any, **_options: Any) -> Any:
        raise SurpriseError(f"in {method}")

    twin = copy.copy(pattern)
    vars(twin).pop("_traced", None)
    twin.__class__ = type(type(pattern).__name__, (type(pattern),), {method: throw})
    return twin


def methods(pattern: Generator) -> tuple[str, ...]:
    if not isinstance(pattern, Pattern):
        return ("find",)
    has_check = type(pattern).check is not Pattern.check
    return ("find", "graph", "options", *(("check",) if has_check else ()))


def places() -> list[Any]:
    return [
        pytest.param(pattern, method, id=f"{pattern.name}-{method}")
        for pattern in PATTERNS
        for method in methods(pattern)
    ]


@pytest.mark.parametrize(("pattern", "method"), places())
def test_it_is_dropped_and_named_and_the_others_still_look(pattern: Any, method: str) -> None:
    case = pattern.cases[0]
    mod, _ = testing.build(case, testing.graph_of(pattern, case), "float32")
    others = [other for other in PATTERNS if other is not pattern]
    found = collect(mod, Registry((broken(pattern, method), *others)))
    (fault,) = [r for r in found.rejections if "SurpriseError" in r.reason]
    assert (fault.pattern, fault.bindings) == (pattern.name, ())
    assert fault.reason == f"the pattern failed: SurpriseError: in {method}"
    assert pattern.name not in {candidate.pattern for candidate in found.candidates}
    assert {c.pattern for c in found.candidates} == {
        c.pattern for c in collect(mod, Registry(tuple(others))).candidates
    }


def test_a_model_compiles_when_every_pattern_throws() -> None:
    registry = Registry(tuple(broken(pattern, methods(pattern)[-1]) for pattern in PATTERNS))
    mod = graphs.module(
        lambda x, weight: relax.op.nn.softmax(relax.op.nn.relu(relax.op.matmul(x, weight))),
        (4, 8),
        (8, 16),
    )
    x, weight = (testing.random_array(shape, "float32") for shape in ((4, 8), (8, 16)))
    compiled = graphs.compiled(mod, options=Options(registry=registry))
    assert not compiled.plan.groups
    assert "epilogue" in {r.pattern for r in compiled.plan.rejections}
    (result,) = graphs.run(compiled, x, weight)
    raised = np.exp(np.maximum(x @ weight, 0).astype("float64"))
    testing.assert_close(result, raised / raised.sum(-1, keepdims=True))


@pytest.mark.parametrize("pattern", NAMED, ids=lambda pattern: pattern.name)
def test_a_kernel_that_cannot_be_written_is_its_parts_again(pattern: Pattern) -> None:
    case = pattern.cases[0]
    mod, _ = testing.build(case, testing.graph_of(pattern, case), "float32")
    registry = Registry((broken(pattern, "lower"),))
    prepared = prepare(
        mod, resolve("cpu"), options=Options(registry=registry, cost_model=AlwaysFuse())
    )
    (fault,) = [r for r in prepared.plan.rejections if r.stage == "lower"]
    assert fault.pattern == pattern.name
    assert "SurpriseError: in lower" in fault.reason
    assert pattern.name not in {origin.pattern for origin in prepared.lowered.origins.values()}


class Nonsense(Generator):
    """Finds what no function has."""

    name = "nonsense"

    def __init__(self, found: Any) -> None:
        self.found = found

    def find(self, flow: Any, taken: Any) -> Any:
        yield self.found


@pytest.mark.parametrize(
    "found",
    [
        None,
        "a match",
        Match((), "elementwise"),
        Match((1, 0), "elementwise"),
        Match((0, 0), "elementwise"),
        Match((-1, 0), "elementwise"),
        Match((0, 99), "elementwise"),
        Match(("lv", "gv"), "elementwise"),  # type: ignore[arg-type]
    ],
)
def test_a_match_that_is_none_is_named(found: Any) -> None:
    mod = graphs.module(lambda x: relax.op.exp(relax.op.tanh(x)), (4, 4))
    collected = collect(mod, Registry((Nonsense(found), *PATTERNS)))
    assert [c.pattern for c in collected.candidates] == ["elementwise"]
    (fault,) = [r for r in collected.rejections if r.pattern == "nonsense"]
    assert fault.reason.startswith("the pattern failed: ")
