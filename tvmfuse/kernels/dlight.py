"""GPU schedules by the rules of TVM's dlight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmfuse._tvm import tirx, tvm
from tvmfuse._tvm.imports import import_tensor_intrinsics
from tvmfuse._tvm.names import with_plain_names
from tvmfuse.errors import LoweringError
from tvmfuse.targets import Target

if TYPE_CHECKING:
    from tvm.s_tir.dlight.base import ScheduleRule

# A rule that does not fit often fails instead of declining: an assertion, a schedule
# primitive that refuses (RuntimeError), or an attribute, index or key that is not there.
# Or it makes what cannot be lowered: for a grouped convolution, a reduction across
# threads that TVM then refuses (ValueError).
_RULE_FAILURES = (
    RuntimeError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def schedule(mod: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """Bind every kernel that is not scheduled yet to the threads of a GPU.

    Parameters
    ----------
    mod : tvm.IRModule
        Fused and legalised; each ``PrimFunc`` becomes one launch, or one per loop
        nest that no rule can join.
    target : Target
        A GPU.

    Returns
    -------
    tvm.IRModule
        The scheduled module; the given one stays as it is.
    tuple of str
        Names of the functions for which a rule failed, and which got the plain
        mapping of loops to threads instead.

    Raises
    ------
    LoweringError
        A function cannot even be mapped plainly.
    """
    # The rules for matrix units import these; unless done so, it takes minutes.
    import_tensor_intrinsics()
    from tvm.s_tir.dlight import gpu

    plain = gpu.Fallback()
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), plain)
    scheduled = tvm.IRModule(mod.functions, attrs=mod.attrs)
    failed = []
    with target.tvm():
        for var, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            func = with_plain_names(func)
            try:
                scheduled[var] = func if _is_scheduled(func) else _apply(rules, func)
            except _RULE_FAILURES:
                failed.append(var.name_hint)
                scheduled[var] = _apply_plain(plain, func, name=var.name_hint)
    return scheduled, tuple(failed)


def _apply(rules: tuple[ScheduleRule, ...], func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Schedule a function by the first rule that does not decline, and try to lower it."""
    from tvm.s_tir import dlight

    func = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))["main"]
    if not _is_scheduled(func):
        raise ValueError("its blocks do not form plain loop nests")
    target = tvm.target.Target.current()
    lower, _, _ = tirx.get_default_tir_pipeline(target)
    named = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lower(tirx.transform.BindTarget(target)(named))
    return func


def _apply_plain(rule: ScheduleRule, func: tirx.PrimFunc, *, name: str) -> tirx.PrimFunc:
    try:
        return _apply((rule,), func)
    except _RULE_FAILURES as error:
        reason = str(error).strip().partition("\n")[0]
        raise LoweringError(f"dlight: cannot map {name} to GPU threads: {reason}") from error


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", default=False))
