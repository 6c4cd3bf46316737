"""Memory of functions with branches, which TVM 0.27 plans wrongly.

``StaticPlanBlockMemory`` lets the branches of an ``If`` share storage that is allocated in one
of them only, where they pass views of a tensor on: the program reads memory that was never
allocated (apache/tvm#20191). Without that pass each tensor is allocated when it is made.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax

_PLANNER = "StaticPlanBlockMemory"


def finalize_passes(mod: Any, target: Any) -> list[Any]:
    """Return TVM's last passes over ``mod``, without the plan of memory where it has branches."""
    passes = list(relax.pipeline.finalize_passes(target))
    if not any(map(_has_branches, mod.functions.values())):
        return passes
    return [each for each in passes if str(each.info.name) != _PLANNER]


def _has_branches(function: Any) -> bool:
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.If):
            found.append(expr)

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function, visit)
    return bool(found)
