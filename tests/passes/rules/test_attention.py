"""TVM's operator of attention is written out, so that it is recognised as any other."""

import numpy as np
import pytest

from tests.passes.canonical import built, inputs_of
from tvmfuse import _pipeline, testing
from tvmfuse._tvm import tvm
from tvmfuse.patterns.base import Operand
from tvmfuse.targets import resolve

OPERANDS = {
    "q": Operand((2, 5, 3, 4)),
    "k": Operand((2, 7, 3, 4)),
    "v": Operand((2, 7, 3, 6)),
    "bias": Operand((2, 3, 5, 7)),
}


def reference(q, k, v, bias, *, scale=None, causal_mask=None):
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5) + bias
    rows, keys = scores.shape[2:]
    offset = keys - rows if causal_mask == "BottomRight" else 0
    if causal_mask:
        scores = np.where(np.tril(np.ones((rows, keys), bool), offset), scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = powers.sum(-1, keepdims=True)
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    return np.einsum("bhij,bjhe->bihe", weights, v)


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 0.3}, {"causal_mask": "TopLeft"}, {"causal_mask": "BottomRight"}],
    ids=str,
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_one_kernel_and_right(options, has_bias):
    def graph(op, q, k, v, bias):
        return op.nn.attention(q, k, v, *([bias] if has_bias else []), **options)

    mod, values = built(graph, **OPERANDS)
    values["bias"][:, :, 2] = -np.inf
    target = resolve("cpu")
    groups = _pipeline.plan(mod, target).plan.groups
    assert [group.candidate.pattern for group in groups] == ["attention"]
    kernels = _pipeline.prepare(mod, target).schedules.kernels.values()
    assert [kernel.family for kernel in kernels] == ["attention"]
    executable = tvm.compile(mod, target.tvm(), relax_pipeline=_pipeline.pipeline(target))
    (found,) = testing.run(executable, inputs_of(mod, values))
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    exact["bias"] = exact["bias"] if has_bias else 0.0
    testing.assert_close(found, reference(**exact, **options))


def test_grouped_heads_stay_as_they_are():
    def graph(op, q, k, v):
        return op.nn.attention(q, k, v)

    grouped = {**OPERANDS, "q": Operand((2, 5, 6, 4))}
    mod, _ = built(graph, **grouped)
    assert not _pipeline.plan(mod, resolve("cpu")).plan.groups
