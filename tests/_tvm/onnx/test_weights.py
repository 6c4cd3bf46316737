from __future__ import annotations

import contextlib
import io

import pytest
from tvm.relax.frontend.onnx import from_onnx

from tvmfuse.frontend import import_model

RESHAPED = """g (float[n,6] x) => (float[n,a,b] y)
<int64[3] s = {0,2,3}, float[3] w = {1.0,2.0,3.0}>
{ r = Reshape(x, s) y = Mul(r, w) }"""
FROM_SHAPE = """g (float[2,6] x) => (float[2,6] y)
<int64[1] i = {0}, int64[1] rest = {-1}, float[6] w = {1.0,2.0,3.0,4.0,5.0,6.0}>
{ s = Shape(x) n = Gather(s, i) t = Concat<axis=0>(n, rest) r = Reshape(x, t) y = Mul(r, w) }"""


@pytest.mark.parametrize("graph", [RESHAPED, FROM_SHAPE], ids=["constant", "from a shape"])
def test_shapes_are_no_parameters_but_weights_are(graph, parse):
    model = import_model(parse(graph), shapes={"x": (2, 6)}, keep_params=True)
    assert [param.name for param in model.module["main"].params] == ["x", "w"]


def test_tvm_still_loses_shapes_when_it_keeps_parameters(parse):
    with pytest.raises(TypeError, match="Reshape"), contextlib.redirect_stdout(io.StringIO()):
        from_onnx(parse(FROM_SHAPE), keep_params_in_input=True)
