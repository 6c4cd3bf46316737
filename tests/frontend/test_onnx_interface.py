"""Names, order, shapes and types of inputs and outputs, and the odd graphs that are legal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmfuse._tvm import relax
from tvmfuse.errors import ModelError
from tvmfuse.frontend import TensorSpec, import_model


def input_names(module):
    return [param.name for param in module["main"].params]


def test_names_order_shapes_and_types_stay_as_in_the_file(run):
    def value(name, dtype, shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    nodes = [
        helper.make_node("Add", ["b.c", "x:0"], ["/top/Add.1"]),
        helper.make_node("Cast", ["0"], ["-"], to=TensorProto.INT32),
    ]
    inputs = [
        value("x:0", TensorProto.FLOAT, [2, 3]),
        value("0", TensorProto.INT64, []),
        value("b.c", TensorProto.FLOAT, [3]),
    ]
    outputs = [value("-", TensorProto.INT32, []), value("/top/Add.1", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "named", inputs, outputs)
    model = import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))

    assert model.name == "named"
    assert model.signature.inputs == (
        TensorSpec("x:0", (2, 3), "float32"),
        TensorSpec("0", (), "int64"),
        TensorSpec("b.c", (3,), "float32"),
    )
    assert model.signature.outputs == (
        TensorSpec("-", (), "int32"),
        TensorSpec("/top/Add.1", (2, 3), "float32"),
    )
    given = {"x:0": np.ones((2, 3), "f4"), "0": np.array(7), "b.c": np.arange(3, dtype="f4")}
    found = run(model, given)
    np.testing.assert_array_equal(found["-"], np.int32(7))
    np.testing.assert_array_equal(found["/top/Add.1"], given["x:0"] + given["b.c"])


def test_variables_are_named_after_the_values_they_hold(parse):
    graph = parse("g (float[2,3] x) => (float[2,3] y) { stage1_out = Neg(x) y = Abs(stage1_out) }")
    bindings = import_model(graph).module["main"].body.blocks[0].bindings
    assert [binding.var.name for binding in bindings][:2] == ["stage1_out", "y"]


def test_model_is_called_after_its_file(tmp_path, parse):
    path = tmp_path / "net.v1.onnx"
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), path)
    assert import_model(path).name == "net.v1"
    assert import_model(str(path)).signature.inputs[0].name == "x"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (float[2,3] x) => (float[2,3] x) { }", {"x": lambda x: x}),
        ("g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }", {"y": lambda x: x}),
        (
            "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Neg(x) z = Identity(y) }",
            {"y": np.negative, "z": np.negative},
        ),
        (
            "g (float[2,3] x) => (float[2,3] y, float[2,3] x) { y = Neg(x) }",
            {"y": np.negative, "x": lambda x: x},
        ),
        (
            "g (float[2,3] x) => (float[2] c) <float[2] c = {1.0, 2.0}> { }",
            {"c": lambda _: np.array([1, 2], "f4")},
        ),
        ("g (float[2,3] x) => (float[2,3] y) { y = Dropout(x) }", {"y": lambda x: x}),
    ],
    ids=["no nodes", "straight through", "one value twice", "input and result", "constant",
         "dropout"],
)  # fmt: skip
def test_graph_that_hardly_computes_gives_its_values(graph, expected, parse, run):
    x = np.arange(6, dtype="f4").reshape(2, 3)
    found = run(import_model(parse(graph)), {"x": x})
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        np.testing.assert_array_equal(found[name], right(x))


def test_same_output_listed_twice_is_returned_twice(parse, run):
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.output.append(model.graph.output[0])
    imported = import_model(model)
    assert [spec.name for spec in imported.signature.outputs] == ["y", "y"]
    np.testing.assert_array_equal(run(imported, {"x": np.ones(2, "f4")})["y"], [-1, -1])


def test_graph_without_inputs_is_imported(parse, run):
    model = import_model(parse("g () => (float[2] y) <float[2] c = {1.0, 2.0}> { y = Neg(c) }"))
    assert model.signature.inputs == ()
    np.testing.assert_array_equal(run(model, {})["y"], [-1, -2])


@pytest.mark.parametrize("ir_version", [3, 10])
def test_initializer_that_is_an_input_too_becomes_a_constant(ir_version, parse, run):
    model = parse(
        "g (float[2] x, float[2] w) => (float[2] y) { y = Mul(x, w) }",
        opset=9,
        ir_version=ir_version,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], "f4"), "w"))
    imported = import_model(model)
    assert input_names(imported.module) == ["x"]
    np.testing.assert_array_equal(run(imported, {"x": np.ones(2, "f4")})["y"], [3, 4])


def test_source_is_not_changed(parse):
    model = parse("g (float[n] x, float[2] w) => (float[n] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, "f4"), "w"))
    before = model.SerializeToString(deterministic=True)
    import_model(model, shapes={"x": (2,)})
    assert model.SerializeToString(deterministic=True) == before


def test_named_extent_is_bound_wherever_it_stands(parse):
    model = parse("g (float[batch,3] a, float[batch,3] b) => (float[batch,3] y) { y = Add(a, b) }")
    signature = import_model(model, shapes={"a": (5, 3)}).signature
    assert [spec.shape for spec in (*signature.inputs, *signature.outputs)] == [(5, 3)] * 3


def test_extents_that_share_a_meaningless_name_may_differ(parse):
    model = parse("g (float[1,u,u] x) => (float[1,u,u] y) { y = Neg(x) }")
    for dim in model.graph.input[0].type.tensor_type.shape.dim[1:]:
        dim.dim_param = "?"
    assert import_model(model, shapes={"x": (1, 4, 6)}).signature.outputs[0].shape == (1, 4, 6)


def test_input_of_unknown_rank_is_bound_by_a_shape(parse):
    model = parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert import_model(model, shapes={"x": (2, 3)}).signature.outputs[0].shape == (2, 3)


def test_stale_shapes_of_results_are_ignored(parse, run):
    model = parse("g (float[n,3] x) => (float[1,3] y) <float[1,3] t> { t = Neg(x) y = Abs(t) }")
    found = run(import_model(model, shapes={"x": (2, 3)}), {"x": np.full((2, 3), -2, "f4")})
    np.testing.assert_array_equal(found["y"], np.full((2, 3), 2))


def test_every_open_input_is_named_with_an_example(parse):
    model = parse("g (float[n,3] a, float[2] b, float[m] c) => (float[n,3] y) { y = Neg(a) }")
    with pytest.raises(ModelError) as caught:
        import_model(model)
    assert "a[n,3], c[m]" in str(caught.value)
    assert "--shape 'a=1,3'" in str(caught.value)


CLASSIFIER = """
g (float[2,3] x) => (float[2,4] y)
<float[3,4] weight = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,10.0,11.0,12.0},
 float[4] bias = {1.0,2.0,3.0,4.0}, int64[2] shape = {2,-1}, float scale = {2.0},
 float[2] unused = {0.0,0.0}>
{ r = Reshape(x, shape) h = MatMul(r, weight) b = Add(h, bias) y = Mul(b, scale) }
"""


def test_weights_are_constants_by_default(parse):
    main = import_model(parse(CLASSIFIER)).module["main"]
    assert [param.name for param in main.params] == ["x"]
    assert "params" not in main.attrs


def test_kept_weights_follow_the_inputs_with_their_values(parse, run):
    kept = import_model(parse(CLASSIFIER), keep_params=True)
    main = kept.module["main"]

    assert relax.analysis.well_formed(kept.module) is None
    assert [param.name for param in main.params] == ["x", "weight", "bias"]
    assert int(main.attrs["num_input"]) == 1
    assert [spec.name for spec in kept.signature.inputs] == ["x"]
    bound = import_model(kept.module)
    x = np.arange(6, dtype="f4").reshape(2, 3)
    weight, bias = np.arange(1, 13, dtype="f4").reshape(3, 4), np.arange(1, 5, dtype="f4")
    (found,) = run(bound, {"x": x}).values()
    np.testing.assert_array_equal(found, (x @ weight + bias) * 2)
