from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx import qualified, supported_operators
from tvmfuse._tvm.onnx.importer import identifier
from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

CONV = "g (float[1,3,4,4] x, float[2,5,3,3] w) => (float[a,b,c,d] y) { y = Conv(x, w) }"
EMPTY = "g (float[0,3] x) => (float[0,3] y) { y = Neg(x) }"


def test_failing_node_is_named_and_nothing_is_printed(parse, capfd):
    with pytest.raises(ModelError, match=r"g: node 'y' \(Conv\) cannot be imported: .*channel"):
        import_model(parse(CONV))
    assert capfd.readouterr() == ("", "")


def test_tvm_still_prints_and_names_no_node(parse, capfd):
    with pytest.raises(Exception, match="channel") as caught:
        from_onnx(parse(CONV))
    assert "'y'" not in str(caught.value)
    assert "Error converting operator" in capfd.readouterr().out


def test_empty_tensor_has_an_extent_of_zero(parse):
    assert import_model(parse(EMPTY)).signature.outputs[0].shape == (0, 3)


def test_tvm_still_takes_an_empty_tensor_for_a_dynamic_one(parse):
    (param,) = from_onnx(parse(EMPTY))["main"].params
    assert not isinstance(param.ty.shape[0], int)


def test_imported_module_is_well_formed_and_all_dataflow(parse):
    model = import_model(
        parse(
            "g (float[2,4] x) => (float[2,2] a, float[2,2] y)"
            "{ a, b = Split<axis=1, num_outputs=2>(x) y = Relu(b) }"
        )
    )
    assert relax.analysis.well_formed(model.module) is None
    assert all(isinstance(b, relax.DataflowBlock) for b in model.module["main"].body.blocks)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x", "x"), ("/a/b.1:0", "_a_b_1_0"), ("12", "v_12"), ("größe", "gr__e"), ("a b", "a_b")],
)
def test_any_name_becomes_an_identifier(name, expected):
    assert identifier(name) == expected


def test_operators_of_microsoft_are_told_from_those_of_onnx():
    assert qualified("ai.onnx", "Relu") == qualified("", "Relu") == "Relu"
    supported = supported_operators()
    assert "com.microsoft.Attention" in supported
    assert "Attention" not in supported
    assert "com.microsoft.FastGelu" in supported
    assert "FastGelu" not in supported


def test_a_shape_that_is_returned_is_a_constant_of_numbers(parse, run):
    model = parse("g (float[2,3] x) => (int64[2] s, int64 n) { s = Shape(x) n = Size(x) }")
    shape, size = run(model, {"x": np.zeros((2, 3), "f4")})
    assert (shape.tolist(), size, shape.dtype) == ([2, 3], 6, np.int64)


def test_scales_without_elements_are_no_scales(parse, run):
    model = parse("g (float[1,1,1,2] x) => (float[1,1,1,4] y) <float[0] no = {}, int64[4] s = "
                  '{1,1,1,4}> { y = Resize<mode="nearest">(x, no, no, s) }')  # fmt: skip
    (found,) = run(model, {"x": np.array([[[[3, 5]]]], "f4")})
    assert found.ravel().tolist() == [3, 3, 5, 5]


@pytest.mark.parametrize("k", [0, -2])
def test_a_matrix_like_another_is_a_constant(k, parse, run):
    model = parse(f"g (float[3,1] x) => (float[3,1] y) {{ e = EyeLike<k={k}>(x) y = Add(e, x) }}")
    (found,) = run(model, {"x": np.zeros((3, 1), "f4")})
    np.testing.assert_array_equal(found, np.eye(3, 1, k=k))
