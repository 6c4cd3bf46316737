"""One graph, read as a pattern and as a computation."""

import pytest

from tvmfuse import testing
from tvmfuse.errors import PatternError
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.trace import trace

X = Operand((3, 4))


def found(pattern, graph, position=-1, **operands):
    """Match ``pattern`` at a binding of the function that ``graph`` builds."""
    mod, _ = testing.build(Case("", operands or {"x": X, "y": X}), graph, "float32")
    flow = Dataflow.of("main", mod["main"])
    traced = trace(pattern)
    position = range(len(flow.bindings))[position]
    return traced.match(flow, position, flow.before(position, traced.depth))


def scaled_sum(op, a, b):
    return op.multiply(op.add(a, b), op.const(2.0))


def test_operands_are_bound_by_the_names_of_parameters():
    match = found(scaled_sum, lambda op, x, y: scaled_sum(op, x, op.exp(y)))
    assert match.members == (1, 2)
    assert {name: str(operand.name) for name, operand in match.operands.items()} == {
        "a": "x",
        "b": "lv",
    }


def test_operands_of_commutative_operators_match_in_both_orders():
    def swapped(op, x, y):
        return op.multiply(op.const(2.0), op.add(y, x))

    assert found(scaled_sum, swapped)


def test_operands_of_other_operators_match_in_one_order():
    def difference(op, a, b):
        return op.subtract(op.exp(a), b)

    assert found(difference, lambda op, x, y: op.subtract(op.exp(x), y))
    assert not found(difference, lambda op, x, y: op.subtract(y, op.exp(x)))


def test_constant_must_have_its_value():
    def other(op, x, y):
        return op.multiply(op.add(x, y), op.const(2.5))

    assert not found(scaled_sum, other)


def test_constant_may_have_any_value_where_the_graph_says_so():
    def pattern(op, a):
        return op.multiply(a, op.any_const(2.0))

    assert found(pattern, lambda op, x: op.multiply(x, op.const(7.0)), x=X)
    assert not found(pattern, lambda op, x, y: op.multiply(x, y))


def test_operand_that_is_used_twice_must_be_one_value():
    def square(op, a):
        return op.multiply(op.exp(a), op.exp(a))

    assert found(square, lambda op, x, y: op.multiply(op.exp(x), op.exp(x)))
    assert not found(square, lambda op, x, y: op.multiply(op.exp(x), op.exp(y)))


def test_attributes_are_free():
    def pattern(op, a):
        return op.exp(op.sum(a, axis=[0]))

    assert found(pattern, lambda op, x: op.exp(op.sum(x, axis=[1], keepdims=True)), x=X)


def test_match_ends_at_its_root_only():
    assert not found(scaled_sum, lambda op, x, y: op.exp(scaled_sum(op, x, y)))
    assert found(scaled_sum, lambda op, x, y: op.exp(scaled_sum(op, x, y)), position=1)


def test_graph_must_end_in_an_operator():
    with pytest.raises(PatternError, match="must return the result of an operator"):
        trace(lambda op, a: a)
