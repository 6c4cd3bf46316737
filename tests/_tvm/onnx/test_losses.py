"""Losses of classifiers equal NumPy, whatever they weigh, ignore or reduce."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.passes.canonical import operators_of
from tvmfuse import testing
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise

X = np.random.default_rng(0).standard_normal((2, 4, 3)).astype("float32")
LABELS = np.array([[0, 3, 2], [2, 1, 0]])
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.25])


def loss(logarithms, *, weighted, ignored, reduction):
    weights = WEIGHTS[LABELS] if weighted else np.ones(LABELS.shape)
    weights = np.where(ignored == LABELS, 0, weights)
    picked = -np.take_along_axis(logarithms, LABELS[:, None], 1)[:, 0] * weights
    return {
        "none": picked,
        "sum": picked.sum(),
        "mean": picked.sum() / weights.sum(),
    }[reduction]


def run(model, inputs):
    module = canonicalise(import_model(model).module)
    return testing.run(testing.compile_plainly(module), inputs), operators_of(module)


@pytest.mark.parametrize(
    ("weighted", "ignored", "reduction"),
    [*product((False, True), (None, 2), ("mean",)), (True, 2, "sum"), (True, 2, "none")],
)
def test_softmax_cross_entropy_equals_numpy(parse, weighted, ignored, reduction):
    shape = "[2,3]" if reduction == "none" else ""
    attributes = f'reduction="{reduction}"' + (f", ignore_index={ignored}" if ignored else "")
    model = parse(
        f"g (float[2,4,3] x, int64[2,3] t) => (float{shape} y)"
        "<float[4] w = {1.0,0.5,2.0,0.25}>"
        f"{{ y = SoftmaxCrossEntropyLoss<{attributes}>(x, t{', w' if weighted else ''}) }}"
    )
    exact = X.astype("float64") - np.log(np.exp(X.astype("float64")).sum(1, keepdims=True))
    (found,), left = run(model, [X, LABELS])
    expected = loss(exact, weighted=weighted, ignored=ignored, reduction=reduction)
    testing.assert_close(found, np.asarray(expected))
    assert "nn.nll_loss" not in left


def test_logarithms_are_the_second_output(parse):
    model = parse(
        "g (float[2,4,3] x, int64[2,3] t) => (float y, float[2,4,3] p)"
        "{ y, p = SoftmaxCrossEntropyLoss(x, t) }"
    )
    (_, logarithms), _ = run(model, [X, LABELS])
    np.testing.assert_allclose(np.exp(logarithms).sum(1), 1, rtol=1e-5)


def test_negative_log_likelihood_equals_numpy(parse):
    model = parse(
        "g (float[2,4,3] x, int64[2,3] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }"
    )
    (found,), _ = run(model, [X, LABELS])
    expected = loss(X.astype("float64"), weighted=False, ignored=None, reduction="mean")
    testing.assert_close(found, np.asarray(expected))


def test_label_beside_the_classes_reads_nothing_beside_them(parse):
    model = parse(
        "g (float[2,4,3] x, int64[2,3] t) => (float[2,3] y)"
        '{ y = NegativeLogLikelihoodLoss<reduction="none">(x, t) }'
    )
    (found,), _ = run(model, [X, LABELS + 10**9])
    testing.assert_close(found, -X[:, 3].astype("float64"))
