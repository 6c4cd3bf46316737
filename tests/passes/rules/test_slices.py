"""A product that is only read in slices is computed in slices."""

from tests.passes.canonical import assert_same_numbers, built, constant
from tvmfuse.patterns.base import Operand

X = Operand((2, 5, 6))
WEIGHTS = {"weight": constant(6, 12, spread=0.4), "bias": constant(12)}


def projected(op, x, weight, bias):
    return op.add(op.matmul(x, weight), bias)


def columns(op, y, begin, end, axis=2):
    return op.strided_slice(y, [axis], [begin], [end], [1])


def test_fields_of_a_split_are_products_of_their_own():
    def graph(op, x, weight, bias):
        flat = projected(op, op.reshape(x, (10, 6)), weight, bias)
        parts = op.split(op.reshape(flat, (2, 5, 12)), 3, axis=-1)
        return parts[0], parts[1], parts[2]

    mod, values = built(graph, x=X, **WEIGHTS)
    left = assert_same_numbers(mod, values)
    assert (left["matmul"], left["add"], left["split"]) == (3, 3, 0)


def test_unequal_slices_are_products_of_their_own():
    def graph(op, x, weight, bias):
        y = projected(op, x, weight, bias)
        return columns(op, y, 0, 4), columns(op, y, 4, 2**31)

    mod, values = built(graph, x=X, **WEIGHTS)
    assert assert_same_numbers(mod, values) == {"matmul": 2, "add": 2}


def test_product_that_is_also_read_whole_stays_whole():
    def graph(op, x, weight, bias):
        y = projected(op, x, weight, bias)
        return columns(op, y, 0, 4), op.exp(y)

    mod, values = built(graph, x=X, **WEIGHTS)
    left = {"matmul": 1, "add": 1, "strided_slice": 1, "exp": 1}
    assert assert_same_numbers(mod, values) == left


def test_slice_of_rows_stays():
    def graph(op, x, weight, bias):
        return columns(op, projected(op, x, weight, bias), 0, 2, axis=1)

    mod, values = built(graph, x=X, **WEIGHTS)
    assert assert_same_numbers(mod, values) == {"matmul": 1, "add": 1, "strided_slice": 1}


def test_offset_that_varies_along_the_rows_stays():
    def graph(op, x, weight, bias):
        return columns(op, projected(op, x, weight, bias), 0, 4)

    weights = {**WEIGHTS, "bias": Operand((5, 12))}
    mod, values = built(graph, x=X, **weights)
    assert assert_same_numbers(mod, values) == {"matmul": 1, "add": 1, "strided_slice": 1}


def test_weight_that_another_product_reads_is_not_copied():
    def graph(op, x, weight, bias):
        y = projected(op, x, weight, bias)
        return columns(op, y, 0, 4), op.matmul(op.exp(x), weight)

    mod, values = built(graph, x=X, **WEIGHTS)
    assert assert_same_numbers(mod, values)["strided_slice"] == 1
