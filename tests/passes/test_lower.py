"""Equal groups share a kernel, and what cannot be fused falls back to its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax, te, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.passes.lower import Lowered, lower
from tvmfuse.passes.partition import partition
from tvmfuse.plan import Candidate, FusionPlan, Group, OpGraph, RunTime

op = relax.op

TARGET = tvm.target.Target("llvm")


def plan_of(*groups: tuple[int, ...]) -> FusionPlan:
    """Return the plan that makes one group of each set of bindings."""
    return FusionPlan(
        tuple(
            Group(
                Candidate("test", "generic", "main", group, OpGraph((), (), (), ())),
                RunTime(1.0, 2.0),
            )
            for group in groups
        )
    )


def lowered(mod: Any, *groups: tuple[int, ...], rules: Any = None) -> Lowered:
    return lower(partition(mod, plan_of(*groups)), TARGET, rules or {})


def callees(found: Lowered) -> list[str]:
    """Return the kernels that the lowered function calls, in order."""
    return [
        str(binding.value.args[0].name_hint)
        for block in found.module["main"].body.blocks
        for binding in block.bindings
    ]


def run(found: Lowered, *arrays: Any) -> Any:
    target = tvm.target.Target("llvm")
    pipeline = relax.get_default_pipeline(target)
    executable = tvm.compile(found.module, target, relax_pipeline=pipeline)
    return testing.run(executable, arrays)


def refuse(_builder: Any, call: Any) -> Any:
    raise ValueError(f"the rule for {call.op.name} refuses\nover several lines")


def chain(x: Any) -> Any:
    return op.exp(op.negative(op.tanh(x)))


X = testing.random_array((4, 6), "float32")


def test_a_group_becomes_one_kernel_with_its_origin() -> None:
    found = lowered(graphs.module(chain, X), (0, 1, 2))
    (name,) = callees(found)
    assert found.origins[name].pattern == "test"
    assert found.origins[name].operators == ("relax.tanh", "relax.negative", "relax.exp")
    assert found.origins[name].places == ((0, 1, 2),)
    assert found.rejections == ()
    testing.assert_close(run(found, X)[0], np.exp(-np.tanh(X.astype(np.float64))))


def test_operators_outside_of_groups_are_kernels_of_their_own() -> None:
    assert len(callees(lowered(graphs.module(chain, X)))) == 3


def test_equal_groups_share_one_kernel() -> None:
    def graph(x: Any) -> Any:
        for _ in range(3):
            x = op.negative(op.tanh(x))
        return x

    found = lowered(graphs.module(graph, X), (0, 1), (2, 3), (4, 5))
    assert len(set(callees(found))) == 1
    assert len(found.origins) == 1
    assert found.origins[callees(found)[0]].places == ((0, 1), (2, 3), (4, 5))
    exact = X.astype(np.float64)
    for _ in range(3):
        exact = -np.tanh(exact)
    testing.assert_close(run(found, X)[0], exact)


def test_groups_of_other_shapes_or_attributes_share_none() -> None:
    def graph(x: Any, y: Any) -> Any:
        return [op.nn.leakyrelu(x, 0.1), op.nn.leakyrelu(x, 0.2), op.nn.leakyrelu(y, 0.1)]

    found = lowered(graphs.module(graph, (4, 6), (4, 7)))
    assert len(set(callees(found))) == 3


def test_a_group_of_two_results_is_one_kernel() -> None:
    def graph(x: Any) -> Any:
        y = op.tanh(x)
        return [y, op.negative(y)]

    found = lowered(graphs.module(graph, X), (0, 1))
    calls = [
        binding.value
        for binding in found.module["main"].body.blocks[0].bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert len(calls) == 1
    first, second = run(found, X)
    np.testing.assert_array_equal(first, -second)


def test_a_group_that_cannot_be_lowered_is_dissolved_and_reported() -> None:
    # The rule refuses only what a group of several operators asks of it.
    seen: list[str] = []

    def refuse_once(builder: Any, call: Any) -> Any:
        seen.append(str(call.op.name))
        return refuse(builder, call) if len(seen) == 1 else _exp(builder, call)

    found = lowered(graphs.module(chain, X), (0, 1, 2), rules={"relax.exp": refuse_once})
    assert len(callees(found)) == 3
    (rejection,) = found.rejections
    assert (rejection.stage, rejection.pattern, rejection.bindings) == ("lower", "test", (0, 1, 2))
    assert rejection.reason
    assert "\n" not in rejection.reason
    testing.assert_close(run(found, X)[0], np.exp(-np.tanh(X.astype(np.float64))))


def test_other_groups_stay_when_one_is_dissolved() -> None:
    def graph(x: Any) -> Any:
        return op.tanh(op.negative(op.exp(op.sigmoid(x))))

    calls: list[int] = []

    def refuse_once(builder: Any, call: Any) -> Any:
        calls.append(1)
        return refuse(builder, call) if len(calls) == 1 else _exp(builder, call)

    found = lowered(graphs.module(graph, X), (0, 1), (2, 3), rules={"relax.exp": refuse_once})
    assert [r.bindings for r in found.rejections] == [(0, 1)]
    assert len(callees(found)) == 3


def test_a_single_operator_that_cannot_be_lowered_is_an_error_of_one_line() -> None:
    with pytest.raises(LoweringError, match=r"relax\.exp") as caught:
        lowered(graphs.module(chain, X), (0, 1, 2), rules={"relax.exp": refuse})
    assert "\n" not in str(caught.value)
    assert "llvm" in str(caught.value)


def test_deep_nests_of_approximated_functions_are_dissolved() -> None:
    def graph(x: Any) -> Any:
        for _ in range(6):
            x = op.tanh(x)
        return x

    (found,) = (graphs.compiled(graphs.module(graph, X)),)
    assert len(found.kernels) == 1, "six equal kernels are one"
    (rejection,) = [r for r in found.plan.rejections if r.stage == "lower"]
    assert rejection.bindings == tuple(range(6))
    exact = X.astype(np.float64)
    for _ in range(6):
        exact = np.tanh(exact)
    testing.assert_close(graphs.run(found, X)[0], exact)


def _exp(builder: Any, call: Any) -> Any:
    def emit(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: te.exp(x[i]), name="exp")

    return builder.call_te(emit, call.args[0])
