from __future__ import annotations

import numpy as np
import pytest

POW = "g ({base}[3] x, {exponent}[3] e) => ({base}[3] y) {{ y = Pow(x, e) }}"
EQUAL = "g (bool[4] a, bool[4] b) => (bool[4] y) { y = Equal(a, b) }"
MEAN = "g (int32[2,3] x) => (int32[2] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }"


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        ("int32", "int64"),
        ("int32", "int32"),
        ("float", "int64"),
        ("int64", "float"),
        ("float", "float"),
    ],
)
def test_power_has_the_type_of_its_base(base, exponent, parse, run):
    types = {"float": np.float32, "int32": np.int32, "int64": np.int64}
    x = np.array([2, 3, 9], types[base])
    e = np.array([3, 2, 1], types[exponent])
    (found,) = run(parse(POW.format(base=base, exponent=exponent)), {"x": x, "e": e})
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, [8, 9, 9], rtol=1e-6)


def test_tvm_still_refuses_a_power_of_two_types(parse, run_by_tvm):
    values = {"x": np.ones(3, np.int32), "e": np.ones(3, np.int64)}
    with pytest.raises(TypeError):
        run_by_tvm(parse(POW.format(base="int32", exponent="int64")), values)


def test_tvm_still_cannot_compile_a_power_of_integers(parse, run_by_tvm):
    values = {"x": np.ones(3, np.int32), "e": np.ones(3, np.int32)}
    with pytest.raises(RuntimeError, match="power only applies to float"):
        run_by_tvm(parse(POW.format(base="int32", exponent="int32")), values)


TRUTHS = {"a": np.array([0, 0, 1, 1], bool), "b": np.array([0, 1, 0, 1], bool)}


def test_booleans_are_equal_where_they_agree(parse, run):
    np.testing.assert_array_equal(run(parse(EQUAL), TRUTHS)[0], [True, False, False, True])


def test_tvm_still_cannot_compare_booleans(parse, run_by_tvm):
    with pytest.raises(RuntimeError):
        run_by_tvm(parse(EQUAL), TRUTHS)


def test_mean_of_integers_is_an_integer(parse, run):
    (found,) = run(parse(MEAN), {"x": np.array([[1, 2, 3], [4, 4, 7]], np.int32)})
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [2, 5])


def test_mean_of_all_integers_is_a_scalar(parse, run):
    model = parse("g (int64[2,2] x) => (int64 y) { y = ReduceMean<keepdims=0>(x) }")
    assert run(model, {"x": np.array([[1, -2], [-3, -4]])})[0] == -2


def test_tvm_still_widens_the_mean_of_integers(parse, run_by_tvm):
    assert run_by_tvm(parse(MEAN), {"x": np.ones((2, 3), np.int32)})[0].dtype == np.int64
