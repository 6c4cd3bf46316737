from __future__ import annotations

from tests import graphs
from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.labels import flattened, label_of, with_label


def test_a_label_survives_the_passes_that_rename_its_variable() -> None:
    mod = graphs.module(lambda x: relax.op.exp(relax.op.tanh(x)), (4, 4))
    (block,) = mod["main"].body.blocks
    labelled = [
        relax.VarBinding(b.var, with_label(b.value, f"/layer.{i}/Op"))
        for i, b in enumerate(block.bindings)
    ]
    body = relax.SeqExpr([relax.DataflowBlock(labelled)], mod["main"].body.body)
    mod["main"] = relax.Function(mod["main"].params, body, mod["main"].ret_ty)
    renamed = tvm.transform.Sequential(
        [relax.transform.Normalize(), relax.transform.ToNonDataflow()]
    )(mod)
    found = [label_of(b) for block in renamed["main"].body.blocks for b in block.bindings]
    assert found[:2] == ["/layer.0/Op", "/layer.1/Op"]


def test_without_a_label_the_variable_names_a_binding() -> None:
    (block,) = graphs.module(lambda x: relax.op.exp(x), (4, 4))["main"].body.blocks
    assert [label_of(binding) for binding in block.bindings] == [
        str(binding.var.name) for binding in block.bindings
    ]


def test_nested_calls_get_the_label_and_shared_ones_stay_shared() -> None:
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    inner = with_label(relax.op.abs(x), "inner")
    shared = relax.op.exp(inner)
    bindings, call = flattened(relax.op.add(shared, shared), "outer", relax.DataflowVar)
    assert [label_of(binding) for binding in bindings] == ["inner", "outer"]
    assert [str(binding.value.op.name) for binding in bindings] == ["relax.abs", "relax.exp"]
    assert all(arg.same_as(bindings[1].var) for arg in call.args)
    assert str(bindings[1].var.ty) == str(x.ty)


def test_fields_of_tuples_are_bound() -> None:
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    parts = relax.op.split(x, 2)
    pair = relax.Tuple([relax.TupleGetItem(parts, 1), relax.TupleGetItem(parts, 0)])
    bindings, call = flattened(relax.op.concat(pair), "outer", relax.DataflowVar)
    assert len(bindings) == 3
    first, second = call.args[0].fields
    assert first.same_as(bindings[1].var)
    assert second.same_as(bindings[2].var)
