"""Replace ``If`` on a run-time condition by a choice between two results.

Both branches are computed, and ``Where`` takes one result or the other. A
graph without control flow can be fused as a whole; ONNX operators have no side
effects, so only time is lost.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from tvmfuse.errors import ModelError


def select_branches(graph: ir.Graph, name: str) -> bool:
    """Replace every ``If`` of ``graph``, also those inside branches; tell if there was one.

    Parameters
    ----------
    graph : onnx_ir.Graph
        Changed in place. Shapes have been inferred in it.
    name : str
        What the model is called in messages.

    Raises
    ------
    ModelError
        The branches of an ``If`` return different shapes or types.
    """
    found = [n for n in graph if n.op_type == "If" and n.domain in ("", "ai.onnx")]
    for node in found:
        _select(graph, node, name)
    return bool(found)


def _select(graph: ir.Graph, node: ir.Node, name: str) -> None:
    branches = [node.attributes[key].as_graph() for key in ("then_branch", "else_branch")]
    for branch in branches:
        select_branches(branch, name)
    results = list(zip(branches[0].outputs, branches[1].outputs, strict=True))
    for pair in results:
        _check_alike(node, *pair, name=name)
    for branch in branches:
        _inline(graph, node, branch)
    # A condition may have the shape (1,), which would add an axis to a scalar.
    condition = ir.Node("", "Squeeze", [node.inputs[0]])
    choices = [ir.Node("", "Where", [condition.outputs[0], *pair]) for pair in results]
    for choice, output, (left, _) in zip(choices, node.outputs, results, strict=True):
        chosen = choice.outputs[0]
        chosen.name, chosen.type, chosen.shape = output.name, left.type, left.shape
    graph.insert_before(node, [condition, *choices])
    ir.convenience.replace_all_uses_with(
        node.outputs, [choice.outputs[0] for choice in choices], replace_graph_outputs=True
    )
    graph.remove(node, safe=True)


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    """Move what is in ``branch`` before ``node``."""
    branch.outputs.clear()
    for key in list(branch.initializers):
        value = branch.initializers.pop(key)
        value.name = f"{node.name or node.outputs[0].name}/{branch.name}/{key}"
        graph.register_initializer(value)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)


def _check_alike(node: ir.Node, left: Any, right: Any, *, name: str) -> None:
    if left.dtype == right.dtype and _static(left) is not None and _static(left) == _static(right):
        return
    raise ModelError(
        f"{name}: the branches of node {node.name or node.outputs[0].name!r} (If) must return "
        f"the same known shape and type, but they return {_describe(left)} and {_describe(right)}: "
        "fix the condition before exporting"
    )


def _static(value: Any) -> tuple[int, ...] | None:
    if value.shape is None or not value.shape.is_static():
        return None
    return tuple(value.shape)


def _describe(value: Any) -> str:
    return f"{value.dtype}{'' if value.shape is None else value.shape}"
