"""Relax modules that are awkward but well formed, on which TVM's passes were publicly wrong."""
# ruff: noqa: N805, N806, N812, RET504  (as TVMScript is written)

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvmfuse import testing
from tvmfuse._pipeline import pipeline, prepare
from tvmfuse._tvm import relax, tvm
from tvmfuse.targets import resolve

X, Z = (testing.random_array((4,), "float32", seed=seed) for seed in (0, 1))


def machine(mod: Any) -> Any:
    """Compile a module by all stages."""
    target = resolve("cpu")
    executable = tvm.compile(mod, target.tvm(), relax_pipeline=pipeline(target))
    return relax.VirtualMachine(executable, tvm.cpu())


def test_a_parameter_may_be_a_nested_tuple() -> None:
    @I.ir_module
    class Nested:
        @R.function
        def main(
            p: R.Tuple(R.Tensor((4,), "float32"), R.Tuple(R.Tensor((4,), "float32"))),
        ) -> R.Tensor((4,), "float32"):
            with R.dataflow():
                u = p[1]
                v = u[0]
                a = p[0]
                w = R.add(a, v)
                R.output(w)
            return w

    x, z = map(tvm.runtime.tensor, (X, Z))
    testing.assert_close(machine(Nested)["main"]((x, (z,))).numpy(), X.astype("f8") + Z)


def test_a_symbolic_size_is_bound_before_it_is_used() -> None:
    @I.ir_module
    class Symbolic:
        @T.prim_func(private=True, s_tir=True)
        def more(a: T.handle, b: T.handle):
            n = T.int64()
            A = T.match_buffer(a, (n, 3))
            B = T.match_buffer(b, (n, 3))
            for i, j in T.grid(n, 3):
                with T.sblock("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + T.float32(1)

        @R.function
        def main(
            x: R.Tensor(("m", 3), "float32"), y: R.Tensor(dtype="float32", ndim=2)
        ) -> R.Tensor(dtype="float32", ndim=2):
            m = T.int64()
            k = T.int64()
            cls = Symbolic
            with R.dataflow():
                a = R.call_tir(cls.more, (x,), out_ty=R.Tensor((m, 3), "float32"))
                z = R.match_cast(y, R.Tensor((k, 3), "float32"))
                b = R.call_tir(cls.more, (z,), out_ty=R.Tensor((k, 3), "float32"))
                c = R.concat((a, b), axis=0)
                R.output(c)
            return c

    x, y = testing.random_array((2, 3), "float32"), testing.random_array((5, 3), "float32", seed=1)
    found = machine(Symbolic)["main"](*map(tvm.runtime.tensor, (x, y)))
    testing.assert_close(found.numpy(), np.concatenate([x, y]).astype("f8") + 1)


def test_weights_may_be_transformed_beforehand_twice() -> None:
    @I.ir_module
    class Lifted:
        @R.function
        def main(x: R.Tensor((4,), "float32"), w: R.Tensor((4,), "float32")) -> R.Tuple(
            R.Tensor((4,), "float32"), R.Tensor((4,), "float32")
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                w2 = R.multiply(w, R.const(2.0))
                y = R.add(x, w2)
                R.output(y, w2)
            return (y, w2)

    lift = relax.transform.LiftTransformParams()
    functions = machine(lift(lift(Lifted)))
    weights = functions["main_transform_params"]([tvm.runtime.tensor(Z)])
    y, w2 = functions["main"](tvm.runtime.tensor(X), *weights)
    testing.assert_close(y.numpy(), X + 2.0 * Z.astype("f8"))
    testing.assert_close(w2.numpy(), 2.0 * Z.astype("f8"))


def test_a_function_may_have_the_name_of_a_group() -> None:
    @I.ir_module
    class Named:
        @R.function(private=True)
        def add_relu_a(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.multiply(x, R.const(5.0))
            return y

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Named
            with R.dataflow():
                a = R.add(x, x)
                b = R.nn.relu(a)
                c = cls.add_relu_a(b)
                R.output(c)
            return c

    found = machine(Named)["main"](tvm.runtime.tensor(X))
    testing.assert_close(found.numpy(), 5.0 * np.maximum(2.0 * X.astype("f8"), 0))


def test_rows_are_taken_by_their_index_on_a_gpu() -> None:
    @I.ir_module
    class Taken:
        @R.function
        def main(x: R.Tensor((4, 4), "float16"), i: R.Tensor((1,), "int32")) -> R.Tensor(
            (1, 4), "float16"
        ):
            with R.dataflow():
                a = R.add(x, R.const(1.0, "float16"))
                y = R.take(a, i, axis=0)
                R.output(y)
            return y

    kernels = prepare(Taken, resolve("cuda:sm_80")).schedules.kernels
    texts = [kernel.function.script() for name, kernel in kernels.items() if "take" in name]
    assert texts
    for text in texts:  # a schedule of TVM's once read row 0 always (apache/tvm#20421)
        stores = [line for line in text.splitlines() if "] = " in line]
        assert any("i[" in line for line in stores), text
