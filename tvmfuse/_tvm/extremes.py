"""Maxima that keep NaN, in two instructions of AVX-512.

LLVM has ``llvm.maximum`` (IEEE 754-2019), which also tells 0.0 from -0.0. An Arm processor has it
as one instruction and for AVX2 LLVM writes five; for AVX-512 it writes eight that wait for each
other's masks. What NumPy and ONNX ask for is less: NaN is kept, and either zero will do. An x86
maximum returns its second operand where one of them is NaN: so it is made only where the first
one is a number, under a mask, and nothing else is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_INTRINSIC = tvm.ir.Op.get("tirx.call_llvm_pure_intrin")
_KINDS = ("float32", "float64")
_PLAIN: dict[int, Callable[[Any, Any], Any]] = {
    tvm.target.codegen.llvm_lookup_intrinsic_id("llvm.maximum"): tirx.Max,
    tvm.target.codegen.llvm_lookup_intrinsic_id("llvm.minimum"): tirx.Min,
}


def shortened(body: Any, target: Any) -> Any:
    """Return a statement, lowered for ``target``, whose maxima and minima are short ones."""
    if not tvm.target.codegen.target_has_features("avx512f", target):
        return body
    return tvm_ffi.structural_map(body, (tvm.ir.Call, _shortened), order="post")


def _shortened(call: Any) -> Any:
    plain = _PLAIN.get(int(call.args[0])) if call.op.same_as(_INTRINSIC) else None
    if plain is None:
        return call
    kind = tvm.DataType(str(call.ty.dtype))
    element = str(kind).partition("x")[0]
    if element not in _KINDS:
        return call
    before, value = call.args[1:]
    # In a reduction the first is new in each step. Masks of the second, which several windows
    # read, would all be kept, and there are not so many registers.
    name = tirx.Var("v", before.ty)
    infinity = tirx.const(math.inf, element)
    if kind.lanes > 1:
        infinity = tirx.Broadcast(infinity, kind.lanes)
    kept = tirx.Select(name <= infinity, plain(name, value), name)
    return tirx.Let(name, before, kept)
