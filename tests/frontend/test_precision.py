"""The floating type that a module computes in."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmfuse._tvm import relax
from tvmfuse.frontend import import_model
from tvmfuse.frontend.precision import precision


@I.ir_module
class Halves:
    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):  # noqa: N805
        with R.dataflow():
            a = R.astype(x, "float16")
            b = R.exp(a)
            c = R.astype(b, "float32")
            R.output(c)
        return c


@I.ir_module
class Whole:
    @R.function
    def main(x: R.Tensor((2, 4), "int32")) -> R.Tensor((2, 4), "int32"):  # noqa: N805
        with R.dataflow():
            a = R.add(x, x)
            R.output(a)
        return a


@I.ir_module
class Split:
    @R.function
    def main(x: R.Tensor((2, 4), "float64")) -> R.Tensor((2, 2), "float64"):  # noqa: N805
        with R.dataflow():
            a = R.split(x, 2, axis=1)
            b = a[0]
            R.output(b)
        return b


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((2,), "float32"), p: R.Tensor((), "bool")) -> R.Tensor((2,), "float32"):  # noqa: N805
        if p:
            h = R.astype(x, "bfloat16")
            y = R.astype(h, "float32")
        else:
            y = R.add(x, x)
        return y


@pytest.mark.parametrize(
    ("module", "found"),
    [(Halves, "float16"), (Whole, ""), (Split, "float64"), (Branches, "bfloat16")],
)
def test_the_coarsest_type_of_a_result_is_found(module, found):
    assert precision(module) == found


def test_weights_kept_in_halves_are_no_computation_in_halves():
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    weight = relax.const(np.ones((4, 4), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(weight))
            wide = builder.emit(relax.op.astype(turned, "float32"))
            y = builder.emit_output(relax.op.matmul(x, wide))
        builder.emit_func_output(y)
    assert import_model(builder.get()).signature.precision == "float32"
