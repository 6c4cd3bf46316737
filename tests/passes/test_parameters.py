"""Weights are lifted in order, each once, and none is left in the code."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.passes.parameters import Lifted, lift_parameters

op = relax.op

X = testing.random_array((3, 4), "float32")
W = testing.random_array((4, 5), "float32", seed=1)
B = testing.random_array((5,), "float32", seed=2)


def linear(x: Any) -> Any:
    return op.add(op.matmul(x, relax.const(W)), relax.const(B))


def constants_of(mod: Any) -> list[Any]:
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def run(lifted: Lifted, *arrays: Any) -> list[Any]:
    target = tvm.target.Target("llvm")
    legal = relax.transform.LegalizeOps()(lifted.module)
    executable = tvm.compile(legal, target, relax_pipeline=relax.get_default_pipeline(target))
    params = tvm_ffi.convert([tvm.runtime.tensor(p) for p in lifted.params.values()])
    machine = relax.VirtualMachine(executable, tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, arrays), params)
    return [outputs.numpy()] if hasattr(outputs, "numpy") else [o.numpy() for o in outputs]


def test_weights_follow_the_inputs_as_one_tuple_in_order_of_use() -> None:
    lifted = lift_parameters(graphs.module(linear, X))
    assert [array.shape for array in lifted.params.values()] == [(4, 5), (5,)]
    np.testing.assert_array_equal(next(iter(lifted.params.values())), W)
    *inputs, params = lifted.module["main"].params
    assert len(inputs) == 1
    fields = [tuple(int(d) for d in field.shape) for field in params.ty.fields]
    assert fields == [(4, 5), (5,)]
    assert int(lifted.module["main"].attrs["num_input"]) == 1


def test_no_constant_is_left_and_the_numbers_stay() -> None:
    lifted = lift_parameters(graphs.module(linear, X))
    assert constants_of(lifted.module) == []
    relax.analysis.well_formed(lifted.module)
    testing.assert_close(run(lifted, X)[0], X.astype(np.float64) @ W + B)


def test_a_shared_weight_is_lifted_once() -> None:
    shared = relax.const(np.ones((4, 4), "float32"))
    mod = graphs.module(lambda x: op.matmul(op.matmul(x, shared), shared), X)
    lifted = lift_parameters(mod)
    assert len(lifted.params) == 1
    testing.assert_close(run(lifted, X)[0], X.astype(np.float64) @ np.ones((4, 4)) * 4)


def test_a_weight_that_is_a_result_is_lifted() -> None:
    lifted = lift_parameters(graphs.module(lambda x: [op.nn.relu(x), relax.const(B)], X))
    assert constants_of(lifted.module) == []
    np.testing.assert_array_equal(run(lifted, X)[1], B)


def test_a_model_without_weights_takes_an_empty_tuple() -> None:
    lifted = lift_parameters(graphs.module(op.nn.relu, X))
    assert lifted.params == {}
    assert len(lifted.module["main"].params) == 2
    np.testing.assert_array_equal(run(lifted, X)[0], np.maximum(X, 0))


def test_two_inputs_are_counted() -> None:
    lifted = lift_parameters(graphs.module(lambda x, y: linear(op.add(x, y)), X, X))
    assert int(lifted.module["main"].attrs["num_input"]) == 2
