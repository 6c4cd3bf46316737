from __future__ import annotations

import numpy as np
import pytest

from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

NORM = """g (float[2,3] x) => (float[2,3] y{outputs})
<float[3] s = {{1.0,2.0,3.0}}, float[3] b = {{0.5,0.5,0.5}}>
{{ y{names} = LayerNormalization(x, s, b) }}"""
X = np.array([[1, 2, 6], [0, 0, 3]], "float32")


def test_layer_norm_gives_the_right_values(parse, run):
    centred = X - X.mean(1, keepdims=True)
    right = centred / np.sqrt(X.var(1, keepdims=True) + 1e-5) * [1, 2, 3] + 0.5
    (found,) = run(parse(NORM.format(outputs="", names="")), {"x": X})
    np.testing.assert_allclose(found, right, rtol=1e-5)


def test_unused_mean_is_no_obstacle(parse, run):
    model = parse(NORM.format(outputs="", names=", mean, deviation"))
    assert len(run(model, {"x": X})) == 1


def test_mean_as_a_result_is_refused(parse):
    with pytest.raises(ModelError, match="Mean"):
        import_model(parse(NORM.format(outputs=", float[2,1] mean", names=", mean")))


def test_tvm_still_makes_the_mean_up(parse, run_by_tvm):
    model = parse(NORM.format(outputs=", float[2,1] mean", names=", mean"))
    np.testing.assert_array_equal(run_by_tvm(model, {"x": X})[1], 0)
