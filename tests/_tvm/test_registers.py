"""Accumulators stay on the stack, where LLVM can promote them to registers."""

from __future__ import annotations

from typing import Any

import pytest

from tvmfuse._tvm import registers, te, tvm
from tvmfuse.kernels import families, gemm
from tvmfuse.kernels.tiling import Machine
from tvmfuse.targets import resolve


@pytest.fixture(scope="module")
def product() -> Any:
    machine = Machine(lanes=16, registers=32, cores=2, l2_bytes=1 << 20)
    x, panels = te.placeholder((48, 32), name="x"), te.placeholder((2, 32, 32), name="panels")
    function = te.create_prim_func([x, panels, gemm.emit_packed(x, panels, 64, machine)])
    return families.schedule(function, machine).function.with_attr("global_symbol", "main")


def calls_the_runtime_for_memory(function: Any, pipeline: str) -> bool:
    built = tvm.compile(
        tvm.IRModule({"main": function}), resolve("cpu:x86-64-v4").tvm(), tir_pipeline=pipeline
    )
    return "TVMBackendAllocWorkspace" in built.mod.inspect_source("ll")


def test_accumulators_need_no_memory_of_the_runtime(product: Any) -> None:
    assert not calls_the_runtime_for_memory(product, registers.PIPELINE)


def test_tvm_still_takes_it_there(product: Any) -> None:
    assert calls_the_runtime_for_memory(product, "default")
