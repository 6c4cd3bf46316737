"""An optional fusion that cannot be built falls back to its parts, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmfuse import Session, _pipeline, target, testing
from tvmfuse._tvm import relax, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.frontend import import_model
from tvmfuse.kernels import blocks, conv, families
from tvmfuse.patterns.conv_pool import ConvPool
from tvmfuse.patterns.linear_linear import LinearLinear
from tvmfuse.patterns.registry import Registry
from tvmfuse.report.contract import AlwaysFuse

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(0, 0.2, (16, 16, 3, 3)).astype("float32")


def network() -> Any:
    """Return a convolution with an activation, and the same once more."""
    x = relax.Var("x", relax.TensorType((1, 16, 10, 10), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for _ in range(2):
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(WEIGHT), padding=1))
                y = builder.emit(relax.op.nn.relu(y))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def refuse_epilogues(sch: Any, machine: Any, choose: Any) -> None:
    """Schedule a convolution so that no code can be generated where something follows it."""
    is_alone = sch.get(blocks.outputs(sch)[0]).name_hint == "crop"
    conv.schedule(sch, machine, choose)
    if not is_alone:
        sch.annotate(sch.get_loops(blocks.outputs(sch)[0])[0], "pragma_import_llvm", "not LLVM")


@pytest.fixture
def model() -> Any:
    return import_model(network())


def test_a_fused_kernel_that_code_generation_refuses_falls_back(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Session.of(_pipeline.build(model, target("cpu")))
    monkeypatch.setitem(families.FAMILIES, "conv", refuse_epilogues)
    compiled = _pipeline.build(model, target("cpu"))
    fallen = [r for r in compiled.plan.rejections if r.stage == "lower"]
    assert len(fallen) == 2
    assert all(r.reason for r in fallen)
    assert "fallback" in {kernel.schedule for kernel in compiled.kernels}
    x = RNG.normal(size=(1, 16, 10, 10)).astype("float32")
    np.testing.assert_allclose(Session.of(compiled)(x), right(x), rtol=1e-5, atol=1e-5)


def test_a_single_operator_that_code_generation_refuses_is_one_error(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sch: Any, machine: Any, choose: Any) -> None:
        conv.schedule(sch, machine, choose)
        sch.annotate(sch.get_loops(blocks.outputs(sch)[0])[0], "pragma_import_llvm", "not LLVM")

    monkeypatch.setitem(families.FAMILIES, "conv", refuse)
    with pytest.raises(LoweringError, match="no code can be generated for cpu") as caught:
        _pipeline.build(model, target("cpu"))
    assert "\n" not in str(caught.value)


def test_tvm_is_left_in_order_after_a_fallback() -> None:
    assert tvm.target.Target.current(allow_none=True) is None


def refuse_chains(*_: Any) -> None:
    raise LoweringError("no chain today")


def test_two_anchors_that_cannot_be_scheduled_in_one_kernel_fall_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(WEIGHT), padding=1))
            out = builder.emit_output(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2)))
        builder.emit_func_output(out)
    model = import_model(builder.get())
    options = _pipeline.Options(registry=Registry((ConvPool(),)), cost_model=AlwaysFuse())
    chained = _pipeline.build(model, target("cpu"), options=options)
    assert "chained" in {kernel.family for kernel in chained.kernels}
    monkeypatch.setitem(families.FAMILIES, "chained", refuse_chains)
    apart = _pipeline.build(model, target("cpu"), options=options)
    assert "chained" not in {kernel.family for kernel in apart.kernels}
    (rejection,) = (r for r in apart.plan.rejections if r.stage == "lower")
    assert (rejection.pattern, rejection.bindings) == ("conv_pool", (0, 1))
    assert "no chain today" in rejection.reason
    values = RNG.normal(size=(1, 16, 8, 8)).astype("float32")
    np.testing.assert_allclose(
        Session.of(apart)(values), Session.of(chained)(values), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("pattern", [ConvPool(), LinearLinear()], ids=lambda p: p.name)
@pytest.mark.parametrize("device", ["cuda:sm_80", "metal:m1"])
def test_two_anchors_stay_two_kernels_on_a_gpu(device: str, pattern: Any) -> None:
    case = pattern.cases[0]
    mod, _ = testing.build(case, testing.graph_of(pattern, case), "float32")
    options = _pipeline.Options(registry=Registry((pattern,)), cost_model=AlwaysFuse())
    found = _pipeline.plan(mod, target(device), options=options).plan
    assert found.groups == ()
    assert device in found.rejections[0].reason
