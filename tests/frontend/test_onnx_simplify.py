"""What the clean-up before TVM's importer must do, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmfuse._tvm.onnx import supported_operators
from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model
from tvmfuse.frontend.onnx_simplify import simplify


def simplified(model):
    return simplify(model, "model", supported_operators())


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_batch_norm_is_not_folded_into_a_convolution(parse):
    model = parse(
        """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {2.0}, float[1] s = {3.0}, float[1] b = {1.0}, float[1] m = {0.5},
         float[1] v = {1.0}>
        { c = Conv(x, w) n = BatchNormalization(c, s, b, m, v) y = Relu(n) }"""
    )
    assert operators(simplified(model)) == ["Conv", "BatchNormalization", "Relu"]


def test_matmul_and_add_stay_two_operators(parse):
    model = parse(
        "g (float[2,2] x) => (float[2,2] y)"
        "<float[2,2] w = {1.0,2.0,3.0,4.0}, float[2] b = {1.0,2.0}>"
        "{ m = MatMul(x, w) y = Add(m, b) }"
    )
    assert operators(simplified(model)) == ["MatMul", "Add"]


def test_shape_arithmetic_is_folded(parse):
    model = parse(
        """g (float[2,3,8] x) => (float[2,24] y)
        <int64 zero = {0}, int64[1] rest = {-1}, int64[1] axis = {0}>
        { s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, axis) t = Concat<axis=0>(u, rest)
          y = Reshape(x, t) }"""
    )
    assert operators(simplified(model)) == ["Reshape"]


def test_if_on_a_constant_keeps_one_branch(parse):
    model = parse(
        """g (float[2] x) => (float[2] y) <bool c = {1}>
        { y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                     else_branch = e () => (float[2] b) { b = Abs(x) }> }"""
    )
    assert operators(simplified(model)) == ["Neg"]


IF = """g (float[2] x, bool{condition} c) => (float[2] y, float z)
<float one = {{1.0}}, float two = {{2.0}}>
{{ y, z = If(c) <
    then_branch = t () => (float[2] a, float b) {{ h = Neg(x) a = Exp(h) b = Identity(one) }},
    else_branch = e () => (float[2] a, float b) {{ h = Abs(x) a = Sqrt(h) b = Identity(two) }}
> }}"""


@pytest.mark.parametrize("condition", ["", "[1]"])
def test_if_at_run_time_chooses_between_both_results(condition, parse, run):
    model = import_model(parse(IF.format(condition=condition)))
    x = np.array([-4, 9], "f4")
    shape = () if not condition else (1,)
    for choice, y, z in ((True, np.exp(-x), 1), (False, np.sqrt(np.abs(x)), 2)):
        found = run(model, {"x": x, "c": np.full(shape, choice)})
        np.testing.assert_allclose(found["y"], y, rtol=1e-5)
        assert found["z"].shape == ()
        assert found["z"] == z


def test_nested_if_at_run_time_chooses_the_right_result(parse, run):
    model = parse(
        """g (float[2] x, bool c, bool d) => (float[2] y) { y = If(c) <
        then_branch = t () => (float[2] a) { a = If(d) <
            then_branch = tt () => (float[2] b) { b = Neg(x) },
            else_branch = te () => (float[2] b) { b = Abs(x) }> },
        else_branch = e () => (float[2] a) { a = Add(x, x) }> }"""
    )
    imported = import_model(model)
    x = np.array([-1, 3], "f4")
    for c, d, right in ((1, 1, -x), (1, 0, np.abs(x)), (0, 1, x + x)):
        found = run(imported, {"x": x, "c": np.array(bool(c)), "d": np.array(bool(d))})
        np.testing.assert_array_equal(found["y"], right)


def test_if_whose_results_differ_in_shape_is_refused(parse):
    model = parse(
        """g (float[4] x, bool c) => (float[n] y) <int64[1] i = {0}> { y = If(c) <
        then_branch = t () => (float[4] a) { a = Neg(x) },
        else_branch = e () => (float[1] a) { a = Gather(x, i) }> }"""
    )
    with pytest.raises(ModelError, match=r"branches of node 'y' \(If\).*\[4\].*\[1\]"):
        import_model(model)


def test_old_opset_is_converted(parse):
    model = parse("g (float[1,4] x) => (float[4] y) { y = Squeeze<axes=[0]>(x) }", opset=9)
    result = simplified(model)
    assert result.opset_import[0].version == 17
    assert len(result.graph.node[0].input) == 2


def test_functions_of_the_model_are_inlined(run):
    function = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="local")],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
    )
    np.testing.assert_array_equal(run(import_model(model), {"x": np.ones(2, "f4")})["y"], [2, 2])


@pytest.mark.parametrize(
    ("graph", "right"),
    [
        ("g (float[3] x) => (float[3] y) { y = Celu<alpha=2.0>(x) }",
         lambda x: np.maximum(x, 0) + np.minimum(0, 2 * (np.exp(x / 2) - 1))),
        ("g (float[3] x) => (float[3] y) { y = Swish(x) }", lambda x: x / (1 + np.exp(-x))),
    ],
    ids=["Celu", "Swish"],
)  # fmt: skip
def test_operator_without_converter_is_replaced_by_its_definition(graph, right, parse, run):
    x = np.array([-2, 0.5, 3], "f4")
    found = run(import_model(parse(graph, opset=24)), {"x": x})["y"]
    np.testing.assert_allclose(found, right(x), rtol=1e-5, atol=1e-6)


def test_attention_of_onnx_is_not_taken_for_that_of_microsoft(parse, run):
    model = parse(
        "g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v, float[4,4] m)"
        " => (float[1,2,4,8] y) { y = Attention(q, k, v, m) }",
        opset=23,
    )
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 2, 4, 8), dtype="f4") for _ in range(3))
    m = generator.standard_normal((4, 4), dtype="f4")
    scores = q @ k.swapaxes(2, 3) / np.sqrt(8) + m
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = weights / weights.sum(-1, keepdims=True) @ v
    found = run(import_model(model), {"q": q, "k": k, "v": v, "m": m})["y"]
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_large_weights_are_folded_too():
    """They are taken out of the model for a while, and must be back for the folding."""
    weight = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    result = simplified(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert operators(result) == ["MatMul"]
    (folded,) = result.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(folded), weight.T)
    assert [value.name for value in result.graph.input] == ["x"]


def test_nothing_is_printed_when_folding_fails(parse, capfd, caplog):
    """ONNX's own evaluator cannot compute this GatherElements; TVM does it later."""
    data = ",".join(str(float(k)) for k in range(100))
    model = parse(
        f"g (float[1,2] x) => (float[1,2] y) <float[1,100] d = {{{data}}}, int64[1,2] i = {{3,0}}>"
        "{ c = GatherElements<axis=1>(d, i) y = Add(x, c) }"
    )
    assert operators(simplified(model)) == ["GatherElements", "Add"]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_result_is_a_valid_model(parse):
    result = simplified(parse(IF.format(condition="")))
    onnx.checker.check_model(result, full_check=True)
