from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

X = np.arange(12, dtype="float32").reshape(4, 3)
RUN_TIME = "g (float[4,3] x, int64[2,2] i) => (float[a,b,c] y) { y = Gather<axis=%d>(x, i) }"


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_takes_places_from_either_end(axis, parse, run):
    indices = np.array([[0, -1], [-3, 2]])
    (found,) = run(parse(RUN_TIME % axis), {"x": X, "i": indices})
    np.testing.assert_array_equal(found, np.take(X, indices, axis))


def test_gather_by_a_constant_takes_places_from_either_end(parse, run):
    model = parse("g (float[4,3] x) => (float[2,3] y) <int32[2] i = {-1,1}> { y = Gather(x, i) }")
    np.testing.assert_array_equal(run(model, {"x": X})[0], X[[-1, 1]])


def test_gather_from_a_constant_by_a_constant_is_folded(parse, run):
    model = parse("g (float[2] x) => (float[2] y) <float[2] t = {5.0,7.0}, int64 i = {-1}>"
                  "{ s = Gather(t, i) y = Mul(x, s) }")  # fmt: skip
    np.testing.assert_array_equal(run(model, {"x": np.ones(2, "f4")})[0], [7, 7])


def test_gather_never_reads_outside_at_run_time(parse, run):
    (found,) = run(parse(RUN_TIME % 0), {"x": X, "i": np.array([[10**9, 4], [-5, -(10**9)]])})
    np.testing.assert_array_equal(found, X[[[3, 3], [0, 0]]])


def test_gather_elements_by_a_constant_takes_places_from_either_end(parse, run):
    model = parse("g (float[4,3] x) => (float[1,3] y) <int64[1,3] i = {-1,0,1}>"
                  "{ y = GatherElements<axis=0>(x, i) }")  # fmt: skip
    np.testing.assert_array_equal(run(model, {"x": X})[0], [[9, 1, 5]])


BEYOND = "g (float[4,3] x) => (float[1,3] y) <int64[1] i = {4}> { y = Gather(x, i) }"


def test_constant_index_beyond_the_end_is_refused(parse):
    with pytest.raises(ModelError, match="index 4 is outside of 4 elements"):
        import_model(parse(BEYOND))


def test_tvm_still_takes_a_constant_index_beyond_the_end(parse):
    assert "take" in from_onnx(parse(BEYOND)).script()


@pytest.mark.parametrize("axis", [0, -1])
def test_one_hot_has_the_type_of_its_values(axis, parse, run):
    model = parse("g (int64[4] i) => (float[a,b] y) <int64[1] d = {3}, float[2] v = {-1.0,2.5}>"
                  f"{{ y = OneHot<axis={axis}>(i, d, v) }}")  # fmt: skip
    (found,) = run(model, {"i": np.array([0, -1, 3, -4])})  # the last two are outside
    expected = np.where(np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]), 2.5, -1.0)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected if axis else expected.T)


def test_top_k_in_any_order_is_sorted(parse, run):
    model = parse("g (float[1,4] x) => (float[1,2] y, int64[1,2] i) <int64[1] k = {2}>"
                  "{ y, i = TopK<sorted=0>(x, k) }")  # fmt: skip
    values, places = run(model, {"x": np.array([[3, 9, 1, 5]], "f4")})
    assert (values.tolist(), places.tolist()) == ([[9, 5]], [[1, 3]])


@pytest.mark.parametrize(("axis", "expected"), [("<axis=0>", X[[0, 2]]), ("", X.ravel()[[0, 2]])])
def test_compress_by_a_constant_has_a_known_shape(axis, expected, parse, run):
    model = parse("g (float[4,3] x) => (float[a,b] y) <bool[3] c = {1,0,1}>"
                  f"{{ z = Compress{axis}(x, c) y = Neg(z) }}")  # fmt: skip
    np.testing.assert_array_equal(run(model, {"x": X})[0], -expected)
