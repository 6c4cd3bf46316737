from __future__ import annotations

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
