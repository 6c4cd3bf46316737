"""A small kernel of two blocks, under many names."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import s_tir, te, tvm
from tvmfuse.store import keys


def scale_shift(
    *,
    rows: int = 64,
    factor: float = 2.0,
    dtype: str = "float32",
    names: str = "ABC",
    indices: tuple[str, str] = ("i", "j"),
    is_swapped: bool = False,
) -> Any:
    """Return ``factor * x + 1``, or with the two swapped, for x of (rows, 16)."""

    def elementwise(source: Any, name: str, *, is_scale: bool) -> Any:
        def element(i: Any, j: Any) -> Any:
            constant = tvm.tirx.const(factor if is_scale else 1.0, dtype)
            return source[i, j] * constant if is_scale else source[i, j] + constant

        code = element.__code__.replace(co_varnames=(*indices, *element.__code__.co_varnames[2:]))
        renamed = type(element)(
            code, element.__globals__, element.__name__, None, element.__closure__
        )
        return te.compute(source.shape, renamed, name=name)

    x = te.placeholder((rows, 16), dtype, name=names[0])
    first = elementwise(x, names[1], is_scale=not is_swapped)
    second = elementwise(first, names[2], is_scale=is_swapped)
    return te.create_prim_func([x, second])


def scheduled(function: Any, rows: int) -> Any:
    """Return a schedule that inlines the first block and runs ``rows`` rows at a time."""
    schedule = s_tir.Schedule(keys.normalise(function))
    first, second = keys.block_names(function)
    schedule.compute_inline(schedule.get_sblock(first))
    outer, _ = schedule.get_loops(schedule.get_sblock(second))
    outermost, _ = schedule.split(outer, [None, rows])
    schedule.parallel(outermost)
    return schedule
