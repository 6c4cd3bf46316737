"""What the tests of canonical modules share."""

from collections import Counter

import numpy as np

from tvmfuse import testing
from tvmfuse._tvm import relax, tvm_ffi
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.dataflow import Dataflow

X = Operand((2, 6, 5, 7))


def constant(*shape, spread=1.0):
    return Operand(shape, is_constant=True, spread=spread)


def built(graph, dtype="float32", **operands):
    return testing.build(Case("", operands), graph, dtype)


def operators_of(mod):
    flow = Dataflow.of("main", mod["main"])
    return Counter(name.removeprefix("relax.") for name in flow.operators if name)


def inputs_of(mod, values):
    return [values[str(param.name)] for param in mod["main"].params]


def assert_same_numbers(mod, values, dtype="float32"):
    """Canonicalise, compare with the module as it was, and return the operators left."""
    canonical = canonicalise(mod)
    relax.analysis.well_formed(canonical)
    inputs = inputs_of(mod, values)
    before = testing.run(testing.compile_plainly(mod), inputs)
    after = testing.run(testing.compile_plainly(canonical), inputs)
    for expected, actual in zip(before, after, strict=True):
        assert actual.dtype == expected.dtype
        testing.assert_close(actual, expected, dtype=dtype)
    assert tvm_ffi.structural_equal(canonicalise(canonical), canonical)
    return operators_of(canonical)


def normalised(op, y, statistics, **attrs):
    return op.nn.batch_norm(
        y, *statistics, **{"axis": 1, "epsilon": 1e-3, "training": False, **attrs}
    )[0]


def statistics(channels, dtype="float32", **given):
    """Return gamma, beta, mean and variance as constants."""
    values = {
        "gamma": testing.random_array((channels,), "float64", seed=11),
        "beta": testing.random_array((channels,), "float64", seed=12),
        "mean": testing.random_array((channels,), "float64", seed=13),
        "variance": testing.random_array((channels,), "float64", seed=14) ** 2,
        **{name: np.asarray(value, "float64") for name, value in given.items()},
    }
    return [relax.const(value.astype(dtype), dtype) for value in values.values()]
