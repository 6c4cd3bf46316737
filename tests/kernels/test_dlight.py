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


def legalised(
    body: Callable[[relax.Var], relax.Expr], shape: tuple[int, ...], *others: relax.Var
) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x, *others]):
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
    body: Callable[[relax.Var], relax.Expr], target: Target
) -> None:
    mod, failed = dlight.schedule(legalised(body, (20, 20)), target)
    assert failed == ()
    assert all(func.attrs["tirx.is_scheduled"] for func in kernels(mod))
    _generate(mod, target)


def test_scheduled_function_and_given_module_stay_as_they_are(target: Target) -> None:
    mod = legalised(BODIES["softmax"], (8, 8))
    (plain,) = kernels(mod)
    (scheduled,) = kernels(dlight.schedule(mod, target)[0])
    assert "tirx.is_scheduled" not in kernels(mod)[0].attrs
    assert not tvm_ffi.structural_equal(plain, scheduled)
    (again,) = kernels(dlight.schedule(tvm.IRModule({"f": scheduled}), target)[0])
    assert tvm_ffi.structural_equal(again, scheduled)


def test_rule_that_makes_what_cannot_be_lowered_gives_way_to_plain_threads(target: Target) -> None:
    weight = relax.Var("w", relax.TensorType((8, 2, 3, 3), "float32"))
    grouped = legalised(lambda x: op.nn.conv2d(x, weight, groups=4), (1, 8, 10, 10), weight)
    mod, failed = dlight.schedule(grouped, target)
    assert failed == ("conv2d",)
    _generate(mod, target)


def test_function_that_no_rule_takes_is_an_error_with_its_name(target: Target) -> None:
    @tvm.script.tirx.prim_func
    def opaque(a: tvm.script.tirx.handle) -> None:
        tvm.script.tirx.evaluate(0)

    with pytest.raises(LoweringError, match="cannot map opaque to GPU threads"):
        dlight.schedule(tvm.IRModule({"opaque": opaque}), target)


def _generate(mod: tvm.IRModule, target: Target) -> None:
    """Generate the text of all kernels; to compile CUDA's is not the point here."""
    with pytest.MonkeyPatch.context() as patch, target.tvm() as tvm_target:
        patch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")
        executable = tvm.compile(mod, tvm_target)
    assert executable.mod.imports[0].imports[0].kind == target.kind
