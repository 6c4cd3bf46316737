"""Running sums: each task owns whole lanes of the axis that is summed.

Where the axis is not the last one its neighbours are summed beside each other, in
vectors; along the last axis one element waits for the one before it, and rows are shared
out among the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.blocks import Choose, Schedule
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine, ceil_div, product

Builder = Any  # relax.BlockBuilder
Call = Any  # relax.Call
Rule = Callable[[Builder, Call], Any]
Tensor = Any  # te.Tensor

_FAMILY = "scan"
_VECTORS = 4  # beside each other, so that a task reads stretches of memory
_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves


def rules(machine: Machine) -> Mapping[str, Rule]:
    """Return the rule for ``relax.cumsum``, which TVM's library passes would take first."""

    def rule(builder: Builder, call: Call) -> Any:
        (x,), attrs = call.args, call.attrs
        shape = x.ty.shape
        is_covered = (
            str(x.ty.dtype) == str(call.ty.dtype) == "float32"
            and attrs.axis is not None
            and shape is not None
            and all(isinstance(d, int | tirx.IntImm) and int(d) > 0 for d in shape)
        )
        if not is_covered:
            return call

        def emitted(x: Tensor) -> Tensor:
            axis, exclusive = int(attrs.axis), bool(attrs.exclusive)
            return emit(x, axis % len(x.shape), machine, is_exclusive=exclusive)

        return builder.call_te(emitted, x, primfunc_name_hint="cumsum")

    return {"relax.cumsum": rule}


def emit(x: Tensor, axis: int, machine: Machine, *, is_exclusive: bool = False) -> Tensor:
    """Emit the running sums along an axis.

    Parameters
    ----------
    x : te.Tensor
        float32.
    axis : int
        The axis.
    machine : Machine
        The device.
    is_exclusive : bool
        Whether an element is left out of its own sum.

    Returns
    -------
    te.Tensor
        Shape of ``x``.
    """
    shape = [int(d) for d in x.shape]

    def body(buffers: Sequence[Buffer], out: Buffer) -> Stmt:
        return _Scan(buffers[0], out, axis, machine, is_exclusive=is_exclusive).tasks()

    return st.kernel(_FAMILY, shape, [x], body)


def schedule(_sch: Schedule, _machine: Machine, _choose: Choose) -> None:
    """Leave the kernel as it is: :func:`emit` shaped it."""


class _Scan:
    def __init__(
        self, x: Buffer, out: Buffer, axis: int, machine: Machine, *, is_exclusive: bool
    ) -> None:
        self._x, self._out, self._lanes = x, out, machine.lanes
        self._is_exclusive = is_exclusive
        shape = [int(d) for d in x.shape]
        self._lead, self._extent, self._behind = shape[:axis], shape[axis], shape[axis + 1 :]
        self._inner = product(self._behind)

    def tasks(self) -> Stmt:
        """Return the whole kernel."""
        width = min(_VECTORS * self._lanes, self._inner)
        strips, rest = ceil_div(self._inner, width), self._inner % width
        count = product(self._lead) * strips

        def task(i: Expr) -> Stmt:
            outer, strip = i // strips, i % strips
            whole = self._strip(outer, strip * width, width)
            if not rest:
                return whole
            is_last = strip == strips - 1
            part = self._strip(outer, strip * width, rest)
            return st.seq([st.when(is_last, part), st.when(tirx.Not(is_last), whole)])

        elements = count * self._extent * width
        is_parallel = count > 1 and elements >= _MIN_PARALLEL_ELEMENTS
        marked = lambda i: st.holding([], task(i), family=_FAMILY)  # noqa: E731
        return st.tasks(count, marked, is_parallel=is_parallel)

    def _strip(self, outer: Expr, first: Expr, width: int) -> Stmt:
        (sums,) = st.registers(1, width, "sums")
        zero = tirx.const(0.0, "float32")

        def step(k: Expr) -> Stmt:
            def add(v: Expr) -> Stmt:
                return st.store(sums, sums[v] + self._x[self._at(outer, k, first + v)], v)

            def keep(v: Expr) -> Stmt:
                return st.store(self._out, sums[v], *self._at(outer, k, first + v))

            order = (keep, add) if self._is_exclusive else (add, keep)
            return st.seq([st.vectors(width, self._lanes, one) for one in order])

        begin = st.vectors(width, self._lanes, lambda v: st.store(sums, zero, v))
        return st.holding([sums], st.seq([begin, st.loop(self._extent, step)]))

    def _at(self, outer: Expr, k: Expr, inner: Expr) -> tuple[Expr, ...]:
        return (*_unraveled(outer, self._lead), k, *_unraveled(inner, self._behind))


def _unraveled(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """Return the indices of the ``flat``-th element of ``shape``."""
    index: list[Expr] = []
    for extent in reversed(shape[1:]):
        index.insert(0, flat % extent)
        flat = flat // extent
    return [flat, *index] if shape else []
