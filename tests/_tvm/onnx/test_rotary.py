"""Rotary embeddings equal ONNX's reference, and com.microsoft's what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tvmfuse import testing
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.registry import Registry
from tvmfuse.patterns.rope import Rope

RNG = np.random.default_rng(0)
HEADS = RNG.standard_normal((2, 3, 5, 8)).astype("float32")
ROWS = RNG.standard_normal((2, 5, 24)).astype("float32")
POSITIONS = np.array([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]])


def table(width, *, rows=9):
    return RNG.standard_normal((rows, width)).astype("float32")


def run(model, feeds):
    module = canonicalise(import_model(model).module)
    found = collect(module, Registry((Rope(),))).candidates
    assert any(len(c.graph.outputs) == 1 for c in found), "no rotation was found"
    inputs = [feeds[value.name] for value in model.graph.input]
    return testing.run(testing.compile_plainly(module), inputs)[0]


@pytest.mark.parametrize(
    ("x", "half", "attributes"),
    [
        (HEADS, 4, "interleaved=0"),
        (HEADS, 4, "interleaved=1"),
        (HEADS, 2, "rotary_embedding_dim=4"),
        (ROWS, 4, "num_heads=3"),
    ],
)
@pytest.mark.parametrize("has_positions", [True, False])
def test_onnx_operator_equals_its_reference(parse, x, half, attributes, has_positions):
    feeds = {"x": x, "c": table(half), "s": table(half), "p": POSITIONS}
    if not has_positions:
        feeds |= {name: feeds[name][POSITIONS] for name in "cs"}
        del feeds["p"]
    types = ", ".join(
        f"{'int64' if name == 'p' else 'float'}{list(value.shape)} {name}"
        for name, value in feeds.items()
    )
    model = parse(
        f"g ({types}) => (float{list(x.shape)} y)"
        f"{{ y = RotaryEmbedding<{attributes}>({', '.join(feeds)}) }}",
        opset=23,
    )
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    testing.assert_close(run(model, feeds), expected.astype("float64"))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [POSITIONS, np.array([3])])
def test_microsoft_operator_equals_onnx_runtime(parse, interleaved, positions):
    feeds = {"x": ROWS, "p": positions, "c": table(4), "s": table(4)}
    types = ", ".join(
        f"{'int64' if name == 'p' else 'float'}{list(value.shape)} {name}"
        for name, value in feeds.items()
    )
    model = parse(
        f"g ({types}) => (float[2,5,24] y)"
        f"{{ y = com.microsoft.RotaryEmbedding<interleaved={interleaved}>(x, p, c, s) }}"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, feeds)
    testing.assert_close(run(model, feeds), expected.astype("float64"))
