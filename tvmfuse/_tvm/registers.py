"""Keep accumulators where LLVM can hold them in registers.

TVM 0.27 leaves memory of under 1 KiB on the stack and takes all else from its runtime,
at every entry of the loop that uses it; for memory of one vector type it counts the lanes
twice, so that 16 floats are too many. LLVM cannot tell that nobody else reads what the
runtime gave: it writes all accumulators back, and at times spills others for that.
Memory of scope "local" stays on the stack in the pipeline that stands here.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvmfuse._tvm.extremes import shortened
from tvmfuse._tvm.streaming import streamed

PIPELINE = "tvmfuse"
_STAYS = "disable_lower_builtin"
_MAX_BYTES = 1 << 16  # threads have a few megabytes of stack


def register() -> None:
    """Offer the pipeline to ``tvm.compile(..., tir_pipeline=PIPELINE)``."""
    tirx.register_tir_pipeline(PIPELINE, _pipeline)


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finish_host, finish_device = tirx.get_tir_pipeline("s_tir")
    return tvm.transform.Sequential([lower, _keep_on_stack]), finish_host, finish_device


@tvm.transform.module_pass(opt_level=0, name="tvmfuse.keep_on_stack")
def _keep_on_stack(mod: Any, _context: Any) -> Any:
    return tvm.IRModule({var: _kept(f) for var, f in mod.functions.items()}, attrs=mod.attrs)


def _kept(function: Any) -> Any:
    if not isinstance(function, tirx.PrimFunc):
        return function
    target = (function.attrs or {}).get("target")
    if target is None or target.kind.name != "llvm":
        return function
    body = shortened(streamed(function.body), target)
    body = tvm_ffi.structural_map(body, (tirx.AllocBuffer, _marked))
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def _marked(statement: Any) -> Any:
    buffer = statement.buffer
    if str(buffer.scope()) != "local":
        return statement
    extents = [int(d) for d in buffer.shape if isinstance(d, int | tirx.IntImm)]
    kind = tvm.DataType(str(buffer.dtype))
    n_bytes = math.prod(extents) * kind.itemsize * kind.lanes
    if len(extents) != len(buffer.shape) or n_bytes > _MAX_BYTES:
        return statement
    return tirx.AllocBuffer(
        buffer, {**dict(statement.annotations.items()), _STAYS: tirx.const(1, "bool")}
    )
