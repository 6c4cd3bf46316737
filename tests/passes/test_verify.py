"""Kernels are one in more than name, and broken modules are told by the stage that broke them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES
from tvmfuse import _pipeline, testing
from tvmfuse._tvm import relax, s_tir, te, tirx, topi, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import families
from tvmfuse.passes import verify
from tvmfuse.passes.verify import KernelFacts, is_one_kernel, kernel_facts
from tvmfuse.targets import resolve

op = relax.op


def two_steps() -> Any:
    """Return a schedule of two blocks of 64 x 32 floats, each with its own loops."""
    x = te.placeholder((64, 32), name="x")
    middle = te.compute(x.shape, lambda *i: x[i] + 1, name="middle")
    last = te.compute(x.shape, lambda *i: middle[i] * middle[i], name="last")
    return s_tir.Schedule(te.create_prim_func([x, last]))


def facts_of(sch: Any) -> KernelFacts:
    return kernel_facts(sch.mod["main"])


def mean_of_all(x: Any) -> Any:
    total = topi.sum(x)
    return te.compute((), lambda: total() / tirx.const(64 * 32, x.dtype))


class TestKernelFacts:
    def test_unfused_steps_are_two_nests_with_the_whole_tensor_between_them(self) -> None:
        facts = facts_of(two_steps())
        assert facts == KernelFacts(loop_nests=2, scratch_bytes=64 * 32 * 4)
        assert not is_one_kernel(facts)

    def test_two_parallel_nests_are_two_regions(self) -> None:
        sch = two_steps()
        for name in ("middle", "last"):
            sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
        assert facts_of(sch).parallel_regions == 2

    def test_a_step_within_the_row_holds_one_row(self) -> None:
        sch = two_steps()
        row, _ = sch.get_loops(sch.get_sblock("last"))
        sch.compute_at(sch.get_sblock("middle"), row)
        sch.parallel(row)
        facts = facts_of(sch)
        assert facts == KernelFacts(parallel_regions=1, loop_nests=1, task_bytes=32 * 4)
        assert is_one_kernel(facts)

    def test_an_inlined_step_holds_nothing(self) -> None:
        sch = two_steps()
        sch.compute_inline(sch.get_sblock("middle"))
        assert facts_of(sch) == KernelFacts(loop_nests=1)

    def test_registers_are_no_memory(self) -> None:
        sch = two_steps()
        row, _ = sch.get_loops(sch.get_sblock("last"))
        sch.compute_at(sch.get_sblock("middle"), row)
        sch.set_scope(sch.get_sblock("middle"), 0, "local")
        assert facts_of(sch).task_bytes == 0

    def test_a_parallel_loop_within_a_serial_one_starts_at_every_step(self) -> None:
        sch = two_steps()
        sch.compute_inline(sch.get_sblock("middle"))
        sch.parallel(sch.get_loops(sch.get_sblock("last"))[1])
        facts = facts_of(sch)
        assert facts.parallel_regions == 64
        assert not is_one_kernel(facts)

    def test_a_single_row_is_still_one_nest(self) -> None:
        x = te.placeholder((1, 32), name="x")
        middle = te.compute(x.shape, lambda *i: x[i] + 1, name="middle")
        last = te.compute(x.shape, lambda *i: middle[i] * middle[i], name="last")
        sch = s_tir.Schedule(te.create_prim_func([x, last]))
        sch.compute_at(sch.get_sblock("middle"), sch.get_loops(sch.get_sblock("last"))[0])
        assert facts_of(sch) == KernelFacts(loop_nests=1, task_bytes=32 * 4)

    def test_threads_of_a_gpu_are_one_launch(self) -> None:
        sch = two_steps()
        sch.compute_inline(sch.get_sblock("middle"))
        row, column = sch.get_loops(sch.get_sblock("last"))
        sch.bind(row, "blockIdx.x")
        sch.bind(column, "threadIdx.x")
        assert facts_of(sch) == KernelFacts(parallel_regions=1, loop_nests=1)

    def test_the_reduction_to_one_number_may_hold_it(self) -> None:
        x = te.placeholder((64, 32), name="x")
        scheduled = families.schedule(te.create_prim_func([x, mean_of_all(x)]), MACHINES["8 lanes"])
        facts = kernel_facts(scheduled.function)
        assert facts.scratch_bytes == 4
        assert is_one_kernel(facts)

    def test_declared_intermediates_are_allowed(self) -> None:
        facts = KernelFacts(parallel_regions=1, loop_nests=1, scratch_bytes=256)
        assert not is_one_kernel(facts)
        assert is_one_kernel(facts, declared_bytes=256)


class TestCheck:
    def test_a_well_formed_module_passes(self) -> None:
        mod = graphs.module(op.nn.relu, (2, 3))
        mod["kernel"] = two_steps().mod["main"]
        verify.check(mod, "lower")

    def test_an_undefined_variable_is_told_in_one_line_with_the_stage(self) -> None:
        mod = graphs.module(op.nn.relu, (2, 3))
        main = mod["main"]
        stray = relax.Var("stray", relax.TensorType((2, 3), "float32"))
        mod["main"] = relax.Function([stray], main.body, main.ret_ty, attrs=main.attrs)
        with pytest.raises(LoweringError, match="layout returned one that is not") as caught:
            verify.check(mod, "layout")
        assert "\n" not in str(caught.value)

    def test_a_broken_kernel_is_told(self) -> None:
        x, y = (tirx.decl_buffer((4,), "float32", name=name) for name in "xy")
        i = tirx.Var("i", "int32")
        body = tirx.BufferStore(y, tirx.BufferLoad(x, [i]), [0])  # nothing defines i
        mod = tvm.IRModule({"main": tirx.PrimFunc([x, y], body)})
        with pytest.raises(LoweringError, match="schedule returned one that is not"):
            verify.check(mod, "schedule")


def constant(*shape: int, seed: int = 1) -> Any:
    return relax.const(testing.random_array(shape, "float32", seed=seed))


def conv_block(x: Any) -> Any:
    y = op.nn.conv2d(x, constant(32, 16, 3, 3), padding=1)
    scale, shift, mean = (constant(32, seed=s) for s in (2, 3, 4))
    variance = relax.const(np.linspace(0.5, 2, 32, dtype="float32"))
    normal = op.nn.batch_norm(y, scale, shift, mean, variance, axis=1, training=False)[0]
    return op.nn.relu(op.add(normal, op.nn.conv2d(x, constant(32, 16, 1, 1, seed=5))))


GROUPS = {
    "conv, batch norm, add, relu": (conv_block, (1, 16, 14, 14), 2),
    "matmul, bias, gelu": (
        lambda x: op.nn.gelu(op.add(op.matmul(x, constant(64, 96)), constant(96))),
        (50, 64),
        1,
    ),
    "softmax": (lambda x: op.nn.softmax(x, -1), (40, 500), 1),
    "add, layer norm": (
        lambda x: op.nn.layer_norm(
            op.add(x, constant(300, 64)), constant(64), constant(64, seed=2), [-1]
        ),
        (300, 64),
        1,
    ),
    "elementwise chain": (
        lambda x: op.multiply(op.sigmoid(op.add(x, constant(1, 90))), op.tanh(x)),
        (300, 90),
        1,
    ),
    "attention of one head": (
        lambda x: op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(x)), -1), x),
        (60, 32),
        4,
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_fused_group_is_one_kernel_on_a_cpu(name: str) -> None:
    graph, shape, count = GROUPS[name]
    prepared = _pipeline.prepare(graphs.module(graph, shape), resolve("cpu"))
    computing = {
        kernel: scheduled
        for kernel, scheduled in prepared.schedules.kernels.items()
        if prepared.lowered.origins[kernel].pattern != "layout"
    }
    assert len(computing) <= count
    for kernel, scheduled in computing.items():
        assert scheduled.note == ""
        assert is_one_kernel(kernel_facts(scheduled.function)), kernel


def test_merged_loop_nests_are_no_fusion() -> None:
    x = te.placeholder((40, 50), name="x")
    scheduled = s_tir.Schedule(te.create_prim_func([x, topi.nn.softmax(x)]))
    assert not is_one_kernel(kernel_facts(scheduled.mod["main"]))
