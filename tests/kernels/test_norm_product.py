"""Rows that are normalised by the product that reads them."""

import numpy as np
import pytest

from tvmfuse import testing
from tvmfuse._pipeline import pipeline, prepare
from tvmfuse._tvm import tvm
from tvmfuse.passes.verify import is_one_kernel, kernel_facts
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.norm_linear import NormLinear
from tvmfuse.patterns.references import layer_norm, rms_norm
from tvmfuse.targets import resolve

# Rows that no tile divides, in several tasks; a mean far above the spread of the rows.
SHAPES = [(128, 96, 80), (1, 127, 64, 200), (3, 7, 40, 33), (5, 8, 1)]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_it_is_one_kernel_for_any_extents_and_right(sizes, norm):
    *lead, k, n = sizes

    def graph(op, x, gamma, beta, weight):
        parameters = (gamma, beta) if norm == "layer_norm" else (gamma,)
        normal = getattr(op.nn, norm)(x, *parameters, axes=[-1], epsilon=1e-5)
        return op.matmul(normal, weight)

    parameter = Operand((k,), is_constant=True)
    weight = Operand((k, n), is_constant=True, spread=k**-0.5)
    operands = {"x": Operand((*lead, k)), "gamma": parameter, "beta": parameter, "weight": weight}
    mod, values = testing.build(Case("", operands), graph, "float32")
    values["x"] += 50.0
    ((candidate,),) = testing.covers_of_everything(NormLinear(), mod)
    assert candidate.family == "matmul"
    target = resolve("cpu")
    prepared = prepare(mod, target)
    (kernel,) = prepared.schedules.kernels.values()
    assert (kernel.family, kernel.note) == ("gemm", "")
    assert is_one_kernel(kernel_facts(kernel.function))
    executable = tvm.compile(mod, target.tvm(), relax_pipeline=pipeline(target))
    (found,) = testing.run(executable, [values["x"]])
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    parameters = [exact["gamma"], *([exact["beta"]] if norm == "layer_norm" else [])]
    normal = (layer_norm if norm == "layer_norm" else rms_norm)(exact["x"], *parameters)
    testing.assert_close(found, normal @ exact["weight"])
