"""Recurrent layers written out in steps, as targets without a kernel for them get them."""

from __future__ import annotations

import pytest

from tests import recurrence
from tvmfuse import testing
from tvmfuse._pipeline import prepare
from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.recurrence import OPERATORS
from tvmfuse._tvm.unrolled import unroll
from tvmfuse.targets import resolve


@pytest.mark.parametrize("name", recurrence.VARIANTS)
def test_steps_compute_what_the_layer_does(name: str) -> None:
    layer = recurrence.layer(**{"steps": 3, **recurrence.VARIANTS[name]})
    steps = unroll(layer.module(), but=lambda _: False)
    assert not any(operator in steps.script() for operator in OPERATORS)
    executable = tvm.compile(relax.transform.LegalizeOps()(steps), tvm.target.Target("llvm"))
    for found, expected in zip(
        testing.run(executable, layer.inputs), layer.expected(), strict=True
    ):
        testing.assert_close(found, expected)


def test_what_has_a_kernel_stays_as_it_is() -> None:
    mod = recurrence.layer("lstm").module()
    assert "tvmfuse.lstm" in unroll(mod, but=lambda _: True).script()


def test_a_gpu_gets_steps() -> None:
    prepared = prepare(recurrence.layer("lstm", steps=2).module(), resolve("cuda:sm_80"))
    assert "tvmfuse.lstm" not in prepared.module.script()
    assert len(prepared.schedules.kernels) > 1


def test_a_module_with_layers_is_stored_and_read() -> None:
    mod = recurrence.layer("gru").module()
    assert tvm.ir.load_json(tvm.ir.save_json(mod)).script() == mod.script()
