"""Weights of small integers in groups stay as they are stored, in one form."""

import numpy as np
import pytest

from tests.passes.canonical import assert_same_numbers, built, constant
from tvmfuse._pipeline import prepare
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.targets import resolve

X = Operand((3, 32))
ROWS = {"q": (2, 16, 8), "parameters": (2, 1, 8)}  # along the sum first
COLUMNS = {"q": (8, 2, 16), "parameters": (8, 2, 1)}


def product(op, x, q, scale, zero):
    wide = op.multiply(op.subtract(op.astype(q, "float32"), op.astype(zero, "float32")), scale)
    if int(q.ty.shape[0]) == 2:
        return op.matmul(x, op.reshape(wide, (32, 8)))
    return op.matmul(x, op.permute_dims(op.reshape(wide, (8, 32))))


def operands(shapes, *, dtype="int8", bounds=(-8, 8)):
    def integers(shape):
        return Operand(shape, is_constant=True, dtype=dtype, bounds=bounds)

    scale = constant(*shapes["parameters"])
    return {"x": X, "q": integers(shapes["q"]), "scale": scale, "zero": integers(scale.shape)}


def stored(mod):
    """Return the integers that the canonical module holds."""
    flow = Dataflow.of("main", canonicalise(mod)["main"])
    (at,) = (i for i, name in enumerate(flow.operators) if name == "relax.astype")
    return flow.value(at).args[0].value.numpy()


@pytest.mark.parametrize("shapes", [ROWS, COLUMNS])
@pytest.mark.parametrize(
    ("dtype", "bounds", "wanted"),
    [
        ("int8", (-8, 8), "uint8"),
        ("uint8", (0, 16), "uint8"),
        ("int8", (-128, 128), "int8"),
        ("uint8", (0, 256), "int8"),
    ],
)
def test_integers_are_kept(shapes, dtype, bounds, wanted):
    mod, values = built(product, **operands(shapes, dtype=dtype, bounds=bounds))
    left = assert_same_numbers(mod, values)
    assert left == {"astype": 1, "multiply": 1, "add": 1, "reshape": 1, "matmul": 1}
    integers = stored(mod)
    assert (integers.shape, str(integers.dtype)) == (ROWS["q"], wanted)
    assert wanted == "int8" or integers.max() <= 15


def test_scale_of_each_row_is_folded():
    given = operands({"q": (2, 16, 8), "parameters": (2, 16, 1)})
    mod, values = built(product, **given)
    assert assert_same_numbers(mod, values) == {"matmul": 1}


def test_kernel_holds_half_a_byte_for_each_weight():
    mod, _ = built(product, **operands(ROWS))
    prepared = prepare(mod, resolve("cpu"))
    (kernel,) = prepared.schedules.kernels.values()
    (packed,) = (p for p in kernel.function.params if str(p.ty.dtype) == "uint8")
    assert np.prod([int(d) for d in packed.ty.shape][:3]) * 8 <= 32 * 8
