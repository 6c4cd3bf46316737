"""Formulas of known operators are those operators."""

import pytest

from tests.passes.canonical import X, assert_same_numbers, built, constant
from tvmfuse._tvm import tvm_ffi
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand


def halved_first(op, x, inner):
    return op.multiply(op.multiply(op.const(0.5), x), inner)


def halved_last(op, x, inner):
    return op.multiply(op.multiply(x, inner), op.const(0.5))


def halved_inside(op, x, inner):
    return op.multiply(op.multiply(op.const(0.5), inner), x)


class TestFormulas:
    @pytest.mark.parametrize("halved", [halved_first, halved_last, halved_inside])
    def test_gelu(self, halved):
        def graph(op, x):
            inner = op.erf(op.divide(x, op.const(1.4142135)))
            return halved(op, x, op.add(op.const(1.0), inner))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.gelu": 1}

    @pytest.mark.parametrize("halved", [halved_first, halved_last, halved_inside])
    def test_gelu_by_tanh(self, halved):
        def graph(op, x):
            cube = op.multiply(op.power(x, op.const(3.0)), op.const(0.044715))
            inner = op.tanh(op.multiply(op.const(0.79788456), op.add(x, cube)))
            return halved(op, x, op.add(inner, op.const(1.0)))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.gelu_tanh": 1}

    def test_gelu_by_tanh_of_other_products(self):
        def graph(op, x):
            cube = op.multiply(x, op.multiply(x, op.multiply(op.const(0.044715), x)))
            inner = op.tanh(op.multiply(op.const(0.79788456), op.add(x, cube)))
            return halved_inside(op, x, op.add(inner, op.const(1.0)))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.gelu_tanh": 1}

    def test_gelu_by_factored_tanh(self):
        def graph(op, x):
            factor = op.add(op.const(1.0), op.multiply(op.const(0.044715), op.multiply(x, x)))
            inner = op.tanh(op.multiply(op.multiply(x, op.const(0.79788456)), factor))
            return halved_last(op, x, op.add(inner, op.const(1.0)))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.gelu_tanh": 1}

    def test_gelu_of_another_slope_stays(self):
        def graph(op, x):
            inner = op.erf(op.divide(x, op.const(1.5)))
            return halved_last(op, x, op.add(inner, op.const(1.0)))

        mod, values = built(graph, x=X)
        assert "nn.gelu" not in assert_same_numbers(mod, values)

    def test_silu(self):
        mod, values = built(lambda op, x: op.multiply(op.sigmoid(x), x), x=X)
        assert assert_same_numbers(mod, values) == {"nn.silu": 1}

    def test_product_with_the_sigmoid_of_another_stays(self):
        mod, values = built(lambda op, x, y: op.multiply(op.sigmoid(x), y), x=X, y=X)
        assert assert_same_numbers(mod, values) == {"sigmoid": 1, "multiply": 1}

    def test_hard_swish_has_one_form(self):
        def of_onnx(op, x):
            clipped = op.clip(op.add(x, op.const(3.0)), 0, 6)
            return op.multiply(x, op.divide(clipped, op.const(6.0)))

        def of_torch(op, x):
            clipped = op.minimum(op.nn.relu(op.add(x, op.const(3.0))), op.const(6.0))
            return op.divide(op.multiply(x, clipped), op.const(6.0))

        expected = {"multiply": 2, "add": 1, "clip": 1}
        mods = []
        for graph in (of_onnx, of_torch):
            mod, values = built(graph, x=X)
            assert assert_same_numbers(mod, values) == expected
            mods.append(canonicalise(mod))
        assert tvm_ffi.structural_equal(*mods)

    def layer_norm(self, op, x, gamma, beta, *, axis=-1):
        centred = op.subtract(x, op.mean(x, axis=[axis], keepdims=True))
        variance = op.mean(op.power(centred, op.const(2.0)), axis=[axis], keepdims=True)
        deviation = op.sqrt(op.add(variance, op.const(1e-5)))
        return op.add(op.multiply(op.divide(centred, deviation), gamma), beta)

    def test_layer_norm(self):
        mod, values = built(self.layer_norm, x=X, gamma=constant(7), beta=constant(7))
        assert assert_same_numbers(mod, values) == {"nn.layer_norm": 1}

    def test_gain_that_is_stretched_stays_outside_of_the_norm(self):
        mod, values = built(
            self.layer_norm, x=Operand((3, 4, 1)), gamma=constant(2), beta=constant(2)
        )
        left = {"nn.layer_norm": 1, "multiply": 1, "add": 1}
        assert assert_same_numbers(mod, values) == left

    def test_layer_norm_without_gain_and_offset(self):
        def graph(op, x):
            centred = op.subtract(x, op.mean(x, axis=[-1], keepdims=True))
            variance = op.mean(op.multiply(centred, centred), axis=[-1], keepdims=True)
            return op.divide(centred, op.sqrt(op.add(variance, op.const(1e-5))))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.layer_norm": 1}

    def test_norm_whose_epsilon_is_computed_stays(self):
        def graph(op, x, epsilon):
            mean = op.mean(op.multiply(x, x), axis=[-1], keepdims=True)
            return op.multiply(x, op.rsqrt(op.add(mean, op.abs(epsilon))))

        mod, values = built(graph, x=X, epsilon=Operand(()))
        assert "nn.rms_norm" not in assert_same_numbers(mod, values)

    def test_norm_over_another_axis_stays(self):
        def graph(op, x, gamma, beta):
            return self.layer_norm(op, x, gamma, beta, axis=1)

        mod, values = built(graph, x=Operand((2, 5, 5)), gamma=constant(5), beta=constant(5))
        assert "nn.layer_norm" not in assert_same_numbers(mod, values)

    def test_rms_norm(self):
        def graph(op, x, gamma):
            mean = op.mean(op.multiply(x, x), axis=[-1], keepdims=True)
            return op.multiply(op.multiply(x, op.rsqrt(op.add(mean, op.const(1e-6)))), gamma)

        mod, values = built(graph, x=X, gamma=Operand((7,)))
        assert assert_same_numbers(mod, values) == {"nn.rms_norm": 1}

    @pytest.mark.parametrize("has_gain", [True, False])
    def test_rms_norm_by_a_reciprocal_of_a_root(self, has_gain):
        def graph(op, x, gamma):
            mean = op.mean(op.power(x, op.const(2.0)), axis=[-1], keepdims=True)
            inverse = op.divide(op.const(1.0), op.sqrt(op.add(mean, op.const(1e-6))))
            normed = op.multiply(x, inverse)
            return op.multiply(gamma, normed) if has_gain else normed

        mod, values = built(graph, x=X, gamma=constant(7))
        assert assert_same_numbers(mod, values) == {"nn.rms_norm": 1}
