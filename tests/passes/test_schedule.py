"""Every kernel leaves the stage marked, by the rules that its target names."""

from __future__ import annotations

from typing import Any

import pytest

from tests import graphs
from tvmfuse import _pipeline
from tvmfuse._tvm import relax, tirx
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.schedule import is_scheduled, machine_of, schedule
from tvmfuse.targets import resolve

op = relax.op


def graph(x: Any) -> Any:
    return op.nn.softmax(op.matmul(op.nn.relu(x), op.permute_dims(x)), -1)


def kernels_of(mod: Any) -> dict[str, Any]:
    return {
        str(var.name_hint): function
        for var, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        ("cpu", {"elementwise", "gemm", "reduction"}),
        ("cuda:sm_80", {"dlight"}),
        ("metal:m1", {"dlight"}),
    ],
)
def test_every_kernel_is_scheduled_and_told_of(spec: str, families: set[str]) -> None:
    prepared = _pipeline.prepare(
        graphs.module(graph, (40, 24)), resolve(spec), options=graphs.UNFUSED
    )
    functions = kernels_of(prepared.module)
    assert functions
    assert set(prepared.schedules.kernels) == set(functions)
    assert all(map(is_scheduled, functions.values()))
    assert {kernel.family for kernel in prepared.schedules.kernels.values()} >= families - {""}


def test_what_is_scheduled_already_stays_as_it_is() -> None:
    target = resolve("cpu")
    prepared = _pipeline.prepare(graphs.module(graph, (40, 24)), target)
    again = schedule(prepared.module, target)
    assert again.kernels == {}
    for name, function in kernels_of(prepared.module).items():
        assert kernels_of(again.module)[name].same_as(function)


def test_the_machine_is_that_of_the_target() -> None:
    target = graphs.on(Machine(lanes=8, registers=16, cores=3, l2_bytes=12345))
    found = machine_of(target)
    assert found == Machine(8, 16, 3, 12345, dot=found.dot)  # its instructions are the host's


def test_plain_llvm_counts_on_what_every_x86_has() -> None:
    machine = machine_of(resolve("cpu:x86-64"))
    assert (machine.lanes, machine.registers) == (4, 16)


def test_a_call_of_the_runtime_is_left_alone() -> None:
    def sorted_rows(x: Any) -> Any:
        return op.sort(x, axis=1)

    prepared = _pipeline.prepare(graphs.module(sorted_rows, (4, 9)), resolve("cpu"))
    assert all(
        kernel.family in ("", "elementwise") for kernel in prepared.schedules.kernels.values()
    )
