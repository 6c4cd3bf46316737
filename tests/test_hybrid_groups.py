"""Siblings and what stands before and behind them share kernels: hybrid groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from tvmfuse import Session, _pipeline, target, testing
from tvmfuse.frontend import import_model
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.references import layer_norm, rms_norm
from tvmfuse.report.contract import AlwaysFuse

FORMS = Path(__file__).parent / "cases" / "attention"
ROWS, WIDTH, HEADS = 24, 32, 4


def weight(n: int, k: int = WIDTH) -> Operand:
    return Operand((k, n), is_constant=True, spread=k**-0.5)


def of_width(width: int = WIDTH) -> Operand:
    return Operand((width,), is_constant=True)


def kernels_of(operands: dict[str, Operand], graph: Any, reference: Any) -> list[str]:
    """Return the patterns of a compiled graph's kernels, and check its numbers."""
    mod, values = testing.build(Case("", operands), graph, "float32")
    options = _pipeline.Options(cost_model=AlwaysFuse())
    compiled = _pipeline.build(import_model(mod), target("cpu"), options=options)
    found = Session.of(compiled)(values["x"])
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    testing.assert_close(found, reference(**exact))
    assert not [r for r in compiled.plan.rejections if r.stage == "lower"]
    assert len(compiled.kernels) == len(compiled.plan.groups)
    return [group.candidate.pattern for group in compiled.plan.groups]


def test_a_norm_its_query_key_and_value_and_their_attention_are_two_kernels() -> None:
    def heads(op: Any, y: Any) -> Any:
        return op.permute_dims(op.reshape(y, (1, ROWS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def graph(op: Any, x: Any, gamma: Any, beta: Any, q: Any, k: Any, v: Any) -> Any:
        y = op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-5)
        query, key, value = (heads(op, op.matmul(y, w)) for w in (q, k, v))
        scores = op.matmul(query, op.permute_dims(key, (0, 1, 3, 2)))
        return op.matmul(op.nn.softmax(scores, axis=-1), value)

    def reference(x: Any, gamma: Any, beta: Any, q: Any, k: Any, v: Any) -> Any:
        y = layer_norm(x, gamma, beta)
        query, key, value = (
            (y @ w).reshape(1, ROWS, HEADS, -1).transpose(0, 2, 1, 3) for w in (q, k, v)
        )
        return softmax(query @ key.transpose(0, 1, 3, 2), axis=-1) @ value

    operands = {
        "x": Operand((1, ROWS, WIDTH)),
        "gamma": of_width(),
        "beta": of_width(),
        **{name: weight(WIDTH) for name in "qkv"},
    }
    assert kernels_of(operands, graph, reference) == ["norm_linear", "attention"]


def test_a_norm_with_gate_and_up_and_their_product_is_one_kernel() -> None:
    def graph(op: Any, x: Any, gamma: Any, gate: Any, up: Any) -> Any:
        y = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=1e-5)
        return op.multiply(op.nn.silu(op.matmul(y, gate)), op.matmul(y, up))

    def reference(x: Any, gamma: Any, gate: Any, up: Any) -> Any:
        y = rms_norm(x, gamma)
        opened = y @ gate
        return opened * expit(opened) * (y @ up)

    operands = {"x": Operand((1, ROWS, WIDTH)), "gamma": of_width()}
    operands |= {"gate": weight(80), "up": weight(80)}
    assert kernels_of(operands, graph, reference) == ["norm_linear"]


@pytest.mark.parametrize(
    ("form", "projections"),
    [
        ("vit_sdpa_op18", "norm_linear"),
        ("gpt2_sdpa_op18", "norm_linear"),
        ("whisper_sdpa_op18", "norm_linear"),
        ("bert_sdpa_op18", "siblings"),
    ],
)
def test_attention_reads_query_key_and_value_where_one_kernel_leaves_them(
    form: str, projections: str
) -> None:
    planned = _pipeline.plan(import_model(FORMS / f"{form}.onnx").module, target("cpu"))
    graph = planned.graphs["main"]
    by_pattern = {group.candidate.pattern: group.candidate for group in planned.plan.groups[::-1]}
    inside = by_pattern["attention"].bindings

    def without_views(position: int) -> int:
        while graph.ops[position] == "relax.reshape":
            (position,) = graph.deps[position]
        return position

    read = {without_views(i) for member in inside for i in graph.deps[member] if i not in inside}
    assert len(read & set(by_pattern[projections].bindings)) == 3
