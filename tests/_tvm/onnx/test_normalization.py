from __future__ import annotations

import numpy as np
import pytest

from tests.passes.canonical import operators_of
from tvmfuse import testing
from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise

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


IMAGE = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")


def instance_norm(x, scale, offset):
    centred = x - x.mean((2, 3), keepdims=True, dtype="float64")
    normal = centred / np.sqrt((centred**2).mean((2, 3), keepdims=True) + 1e-5)
    return normal * np.reshape(scale, (3, 1, 1)) + np.reshape(offset, (3, 1, 1))


def test_instance_norm_is_one_operator(parse):
    model = parse(
        "g (float[2,3,4,5] x) => (float[2,3,4,5] y)"
        "<float[3] s = {1.0,2.0,3.0}, float[3] b = {0.5,0.0,-0.5}>"
        "{ y = InstanceNormalization(x, s, b) }"
    )
    module = canonicalise(import_model(model).module)
    assert operators_of(module) == {"nn.group_norm": 1}
    executable = testing.compile_plainly(module)
    (found,) = testing.run(executable, [IMAGE])
    testing.assert_close(found, instance_norm(IMAGE, [1, 2, 3], [0.5, 0, -0.5]))
