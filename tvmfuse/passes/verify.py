"""Check what the other passes promise: well-formed modules, and kernels that are one.

One kernel means one parallel region on a CPU, or one launch on a GPU, with no
intermediate result in global memory beyond what one task of it holds. A function
of several loop nests is several kernels under one name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax, s_tir, tirx, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.passes.codegen import one_line

_GLOBAL = "global"
_LAUNCH = "blockIdx"
_LINE_BYTES = 64  # a number that one step hands to the next is no tensor in memory


@dataclass(frozen=True)
class KernelFacts:
    """What a scheduled kernel does with threads and memory.

    Parameters
    ----------
    parallel_regions : int
        How often one run of it starts parallel work: parallel loops that stand in no
        other one, each times the steps of the serial loops around it. On a GPU, launches.
    loop_nests : int
        Loop nests that follow one another.
    scratch_bytes : int
        Intermediate results outside of all loop nests: whole tensors, in bytes.
    task_bytes : int
        Intermediate results in global memory within the loop nests, in bytes: what one
        task holds, in cache.
    """

    parallel_regions: int = 0
    loop_nests: int = 0
    scratch_bytes: int = 0
    task_bytes: int = 0

    def __add__(self, other: KernelFacts) -> KernelFacts:
        """Return the facts of two kernels that follow one another."""
        return KernelFacts(
            self.parallel_regions + other.parallel_regions,
            self.loop_nests + other.loop_nests,
            self.scratch_bytes + other.scratch_bytes,
            self.task_bytes + other.task_bytes,
        )


def is_one_kernel(facts: KernelFacts, *, declared_bytes: int = 0) -> bool:
    """Whether a kernel is one in more than name.

    Parameters
    ----------
    facts : KernelFacts
        Of the scheduled function.
    declared_bytes : int
        Size of the intermediate results that its pattern declares (a row statistic, say).
    """
    return (
        facts.parallel_regions <= 1
        and facts.loop_nests <= 1
        and facts.scratch_bytes <= max(declared_bytes, _LINE_BYTES)
    )


def kernel_facts(function: Any) -> KernelFacts:
    """Return what a scheduled kernel does with threads and memory.

    Parameters
    ----------
    function : tirx.PrimFunc
        Scheduled S-TIR.

    Returns
    -------
    KernelFacts
        Buffers count where TVM will allocate them, with the extent it will give them.
    """
    passes = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
    placed = tvm.transform.Sequential(passes)(tvm.IRModule({"main": function}))
    return _facts(placed["main"].body, is_outside=True, is_parallel=False)


def check(mod: Any, stage: str) -> None:
    """Refuse a module that is not well formed.

    Parameters
    ----------
    mod : tvm.IRModule
        What a stage returned.
    stage : str
        Its name.

    Raises
    ------
    LoweringError
        The stage broke the module.
    """
    try:
        relax.analysis.well_formed(mod)
        for function in mod.functions.values():
            if isinstance(function, tirx.PrimFunc):
                s_tir.analysis.verify_well_formed(function)
    except (RuntimeError, ValueError, TypeError) as error:  # what TVM's checks raise
        raise LoweringError(
            f"verify: every stage must return a well-formed module, but {stage} returned one "
            f"that is not: {one_line(error)}; please report it with the model"
        ) from error


def _facts(stmt: Any, *, is_outside: bool, is_parallel: bool) -> KernelFacts:
    """Gather the facts below a statement, outside of all loops or within a parallel one."""
    if isinstance(stmt, tirx.For):
        return _loop_facts(stmt, is_outside=is_outside, is_parallel=is_parallel)
    held = KernelFacts()
    if isinstance(stmt, s_tir.SBlockRealize):
        n_bytes = sum(_global_bytes(buffer) for buffer in stmt.block.alloc_buffers)
        held = KernelFacts(scratch_bytes=n_bytes) if is_outside else KernelFacts(task_bytes=n_bytes)
    return sum(
        (_facts(part, is_outside=is_outside, is_parallel=is_parallel) for part in _parts(stmt)),
        start=held,
    )


def _loop_facts(loop: Any, *, is_outside: bool, is_parallel: bool) -> KernelFacts:
    starts = not is_parallel and _is_parallel(loop)
    inner = _facts(loop.body, is_outside=False, is_parallel=is_parallel or starts)
    steps = int(loop.extent) if isinstance(loop.extent, int | tirx.IntImm) else 1
    return KernelFacts(
        parallel_regions=1 if starts else inner.parallel_regions * steps,
        loop_nests=1 if is_outside else 0,
        task_bytes=inner.task_bytes,
    )


def _parts(stmt: Any) -> list[Any]:
    if isinstance(stmt, tirx.SeqStmt):
        return list(stmt.seq)
    if isinstance(stmt, s_tir.SBlockRealize):
        return [stmt.block.body]
    if isinstance(stmt, tirx.IfThenElse):
        return [part for part in (stmt.then_case, stmt.else_case) if part is not None]
    return [stmt.body] if isinstance(stmt, tirx.AttrStmt) else []


def _is_parallel(loop: Any) -> bool:
    if int(loop.kind) == int(tirx.ForKind.PARALLEL):
        return True
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag).startswith(
        _LAUNCH
    )


def _global_bytes(buffer: Any) -> int:
    if str(buffer.scope()) != _GLOBAL:
        return 0
    elements = math.prod(int(d) if isinstance(d, int | tirx.IntImm) else 1 for d in buffer.shape)
    return elements * tvm.DataType(str(buffer.dtype)).itemsize
