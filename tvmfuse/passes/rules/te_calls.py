"""Turn kernels that an importer emitted back into the operators that they compute.

TVM's importers write some operators (the bounds of ONNX ``Clip``, for one) as
calls of ready-made loop nests, which no pattern can see into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import relax, topi, tvm, tvm_ffi
from tvmfuse.passes.rewrite import Rule
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow


def operator_for_te_call(mod: Any) -> Rule:
    """Return a rule that rewrites a call of a TE kernel in ``mod`` as an operator call.

    A kernel is recognised by its whole body: it must be structurally equal to the one
    that TVM makes of the operator for the same operands.
    """
    kernels = {var: f for var, f in mod.functions.items() if not isinstance(f, relax.Function)}
    recognised: dict[Any, Callable[..., Any] | None] = {}

    def rule(flow: Dataflow, position: int) -> Any:
        if flow.operators[position] != "relax.call_tir":
            return None
        call = flow.value(position)
        var, operands = call.args[0], list(call.args[1].fields)
        if len(operands) > 2 or not isinstance(call.ty, relax.TensorType):
            return None
        if var not in recognised:
            find = _operator if len(operands) == 2 else _padding
            recognised[var] = find(kernels[var], operands, call)
        operator = recognised[var]
        return operator(*operands) if operator else None

    return rule


def _operator(kernel: Any, operands: list[Any], _call: Any) -> Callable[..., Any] | None:
    if not _stretch_to_each_other(*(operators.shape(operand) or () for operand in operands)):
        return None  # not elementwise: an einsum, say
    known = ((topi.maximum, relax.op.maximum), (topi.minimum, relax.op.minimum))
    for compute, operator in known:
        if tvm_ffi.structural_equal(_te_kernel(compute, operands), kernel):
            return operator
    return None


def _padding(kernel: Any, operands: list[Any], call: Any) -> Callable[..., Any] | None:
    """Recognise padding by zeros so that a window strides over the image as ONNX's SAME_… ask.

    What is added to an axis is shared out to its two sides, and the odd one goes behind
    (SAME_UPPER) or in front (SAME_LOWER).
    """
    before, after = operators.shape(operands[0]), operators.shape(call)
    if before is None or after is None or len(before) != len(after):
        return None
    if not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    added = [int(b) - int(a) for a, b in zip(before, after, strict=True)]
    if min(added, default=0) < 0 or not any(added):
        return None
    for is_lower in (False, True):
        front = [(n + is_lower) // 2 for n in added]
        back = [n - first for n, first in zip(added, front, strict=True)]
        if tvm_ffi.structural_equal(
            _te_kernel(lambda x, f=front, b=back: topi.nn.pad(x, f, b, 0.0), operands), kernel
        ):
            widths = [width for pair in zip(front, back, strict=True) for width in pair]
            return lambda x: relax.op.nn.pad(x, widths, "constant", 0.0)
    return None


def _stretch_to_each_other(a: Sequence[int | str], b: Sequence[int | str]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _te_kernel(compute: Callable[..., Any], operands: list[Any]) -> Any:
    block = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", operand.ty) for i, operand in enumerate(operands)]
    with block.function("main", params):
        block.emit_func_output(block.emit_te(compute, *params))
    module = block.get()
    return next(f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
