"""An optional fusion that cannot be built falls back to its parts, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmfuse import Session, _pipeline, target
from tvmfuse._tvm import relax, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.frontend import import_model
from tvmfuse.kernels import blocks, conv, families

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
