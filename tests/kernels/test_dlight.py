from collections.abc import Callable

import pytest

from tvmfuse._tvm import relax, tirx, tvm, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import dlight
from tvmfuse.targets import Target, resolve

op = relax.op


@pytest.fixture(params=["cuda:sm_80", "metal:m1"])
def target(request: pytest.FixtureRequest) -> Target:
    return resolve(request.param)


def legalised(body: Callable[[relax.Var], relax.Expr], shape: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(body(x))
        builder.emit_func_output(y)
    return relax.transform.LegalizeOps()(builder.get())


def kernels(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


BODIES = {
    "matmul": lambda x: op.matmul(x, x),
    "softmax": lambda x: op.nn.softmax(x, axis=-1),
    "sum to a scalar": lambda x: op.sum(x),
    "transpose": lambda x: op.permute_dims(x),
    "concat": lambda x: op.concat([x, x], axis=0),
    "cumulative sum": lambda x: op.cumsum(x, axis=0),
    "argmax": lambda x: op.argmax(x, axis=1),
    "pad": lambda x: op.nn.pad(x, (0, 1, 1, 0)),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_every_kernel_is_bound_to_threads_and_generates_code(
    body: Callable[[relax.Var], relax.Expr], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod, failed = dlight.schedule(legalised(body, (20, 20)), target)
    assert failed == ()
    assert all(func.attrs["tirx.is_scheduled"] for func in kernels(mod))
    monkeypatch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # keep CUDA text as text
    with target.tvm() as tvm_target:
        assert tvm.compile(mod, tvm_target).mod.imports[0].imports[0].kind == target.kind


def test_scheduled_function_and_given_module_stay_as_they_are(target: Target) -> None:
    mod = legalised(BODIES["softmax"], (8, 8))
    (plain,) = kernels(mod)
    (scheduled,) = kernels(dlight.schedule(mod, target)[0])
    assert "tirx.is_scheduled" not in kernels(mod)[0].attrs
    assert not tvm_ffi.structural_equal(plain, scheduled)
    (again,) = kernels(dlight.schedule(tvm.IRModule({"f": scheduled}), target)[0])
    assert tvm_ffi.structural_equal(again, scheduled)


def test_rule_that_fails_is_reported_and_replaced_by_plain_threads(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm.s_tir.dlight import gpu

    def fail(*_: object) -> None:
        raise AssertionError("no such loop")

    monkeypatch.setattr(gpu.GeneralReduction, "apply", fail)
    monkeypatch.setattr(gpu.Reduction, "apply", fail)
    mod, failed = dlight.schedule(legalised(BODIES["softmax"], (8, 8)), target)
    (kernel,) = kernels(mod)
    assert failed == ("softmax",)
    assert kernel.attrs["tirx.is_scheduled"]


def test_function_that_no_rule_takes_is_an_error_with_its_name(target: Target) -> None:
    @tvm.script.tirx.prim_func
    def opaque(a: tvm.script.tirx.handle) -> None:
        tvm.script.tirx.evaluate(0)

    with pytest.raises(LoweringError, match="cannot map opaque to GPU threads"):
        dlight.schedule(tvm.IRModule({"opaque": opaque}), target)
