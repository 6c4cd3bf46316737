"""A dataflow pattern of TVM's is used as FuseOpsByPattern would use it."""

from __future__ import annotations

from typing import Any

from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.dpl import Wrapped
from tvmfuse.patterns.registry import Registry

is_op, wildcard = relax.dpl.is_op, relax.dpl.wildcard


def network(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    for _ in range(3):
        x = op.nn.relu(op.add(op.matmul(x, weight), bias))
    return x


def dense() -> dict[str, Any]:
    """Return a product, an optional bias and an activation, with its parts by name."""
    product = is_op("relax.matmul")(wildcard(), wildcard())
    biased = is_op("relax.add")(product, wildcard()) | product
    return {"root": is_op("relax.nn.relu")(biased), "product": product}


def module() -> Any:
    shapes = {"x": Operand((4, 4)), "weight": Operand((4, 4)), "bias": Operand((4,))}
    return testing.build(Case("", shapes), network, "float32")[0]


def test_every_place_is_found_and_the_family_is_that_of_the_product() -> None:
    pattern = Wrapped("mine.dense", dense()["root"])
    found = collect(module(), Registry((pattern,))).candidates
    assert [c.bindings for c in found] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert {c.family for c in found} == {"matmul"}


def test_its_check_sees_what_tvm_would_show_it() -> None:
    parts = dense()
    seen: list[Any] = []

    def check(context: Any) -> bool:
        seen.append(context)
        return len(seen) != 2

    given = relax.transform.FusionPattern(
        "mine.dense", parts["root"], {"product": parts["product"]}, check
    )
    found = collect(module(), Registry((Wrapped.of(given),)))
    assert [c.bindings for c in found.candidates] == [(0, 1, 2), (6, 7, 8)]
    assert [r.reason for r in found.rejections] == ["its check says no"]
    first = seen[0]
    assert first.matched_expr.op.name == "relax.nn.relu"
    assert first.annotated_expr["product"].op.name == "relax.matmul"
    assert len(first.matched_bindings) == 3
    root = first.value_to_bound_var[first.matched_expr]
    assert [user.name for user in first.var_usages[root]] == ["lv3"]


def test_a_tuple_is_taken_apart_inside() -> None:
    def graph(op: Any, x: Any) -> Any:
        return op.exp(op.split(x, 2, axis=1)[0])

    split = is_op("relax.split")(wildcard())
    pattern = Wrapped("mine.split", is_op("relax.exp")(relax.dpl.is_tuple_get_item(split, 0)))
    mod, _ = testing.build(Case("", {"x": Operand((4, 4))}), graph, "float32")
    (candidate,) = collect(mod, Registry((pattern,))).candidates
    assert len(candidate.bindings) == 3


def test_with_a_graph_and_a_reference_it_keeps_the_contract() -> None:
    def reference(x: Any, weight: Any, bias: Any) -> Any:
        return (x @ weight + bias).clip(0)

    def graph(op: Any, x: Any, weight: Any, bias: Any) -> Any:
        return op.nn.relu(op.add(op.matmul(x, weight), bias))

    shapes = {"x": Operand((4, 4)), "weight": Operand((4, 4)), "bias": Operand((4,))}
    pattern = Wrapped(
        "mine.dense",
        dense()["root"],
        cases=(Case("biased", shapes, graph=graph, reference=reference),),
    )
    testing.check_pattern(pattern)
