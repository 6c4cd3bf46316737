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
from tvmfuse.kernels.blocks import Choose, Schedule, default_choice
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine, ceil_div, product

Builder = Any  # relax.BlockBuilder
Call = Any  # relax.Call
Rule = Callable[[Builder, Call], Any]
Tensor = Any  # te.Tensor

_FAMILY = "scan"
_AXIS, _EXCLUSIVE = "axis", "is_exclusive"
_VECTORS = 4  # beside each other, so that a task reads stretches of memory
_ROWS = (1, 2, 4, 8)  # whose sums are taken in turn, so that none waits for another
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
    about = {_AXIS: axis, _EXCLUSIVE: is_exclusive}

    def body(buffers: Sequence[Buffer], out: Buffer) -> Stmt:
        made = st.Made(_FAMILY, buffers, [out], about)
        return _Scan(made, machine, default_choice).tasks()

    return st.kernel(_FAMILY, shape, [x], body)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Write the kernel with the decisions taken."""
    made = st.made(sch, _FAMILY)
    if made is not None:  # else as :func:`emit` wrote it
        st.replace(sch, _Scan(made, machine, choose).tasks())


class _Scan:
    def __init__(self, made: st.Made, machine: Machine, choose: Choose) -> None:
        (self._x,), (self._out,) = made.operands, made.results
        self._made, self._lanes = made, machine.lanes
        self._is_exclusive = bool(made.about[_EXCLUSIVE])
        shape, axis = [int(d) for d in self._x.shape], int(made.about[_AXIS])
        self._lead, self._extent, self._behind = shape[:axis], shape[axis], shape[axis + 1 :]
        inner, lead = product(self._behind), product(self._lead)
        vectors = tuple(n for n in (1, 2, 4, 8) if n == 1 or n * machine.lanes <= inner)
        default = max(n for n in vectors if n <= _VECTORS)
        self._width = min(choose("vectors", vectors, default=default) * machine.lanes, inner)
        self._strips, self._rest = ceil_div(inner, self._width), inner % self._width
        # A core sees ahead into the next row, so one at a time does well.
        rows = tuple(n for n in _ROWS if lead % n == 0)
        self._rows = choose("rows", rows, default=1)
        steps = tuple(n for n in (1, 2, 4) if self._extent % n == 0)
        self._unroll = choose("unroll", steps, default=1)
        self._count = lead // self._rows * self._strips
        is_large = lead * inner * self._extent >= _MIN_PARALLEL_ELEMENTS
        default_parallel = self._count > 1 and is_large
        self._is_parallel = choose("is_parallel", (False, True), default=default_parallel)

    def tasks(self) -> Stmt:
        """Return the whole kernel."""
        strips, width = self._strips, self._width

        def task(i: Expr) -> Stmt:
            outer, strip = i // strips, i % strips
            whole = self._strip(outer, strip * width, width)
            if not self._rest:
                return whole
            is_last = strip == strips - 1
            part = self._strip(outer, strip * width, self._rest)
            return st.seq([st.when(is_last, part), st.when(tirx.Not(is_last), whole)])

        marked = lambda i: st.holding([], task(i), made=self._made)  # noqa: E731
        return st.tasks(self._count, marked, is_parallel=self._is_parallel)

    def _strip(self, outer: Expr, first: Expr, width: int) -> Stmt:
        all_sums = st.registers(self._rows, width, "sums")
        zero = tirx.const(0.0, "float32")

        def step(k: Expr) -> Stmt:
            return st.seq([row(number, sums, k) for number, sums in enumerate(all_sums)])

        def row(number: int, sums: Buffer, k: Expr) -> Stmt:
            def at(v: Expr) -> tuple[Expr, ...]:
                return self._at(outer * self._rows + number, k, first + v)

            def add(v: Expr) -> Stmt:
                return st.store(sums, sums[v] + self._x[at(v)], v)

            def keep(v: Expr) -> Stmt:
                return st.store(self._out, sums[v], *at(v))

            order = (keep, add) if self._is_exclusive else (add, keep)
            return st.seq([st.vectors(width, self._lanes, one) for one in order])

        def empty(sums: Buffer) -> Stmt:
            return st.vectors(width, self._lanes, lambda v: st.store(sums, zero, v))

        turns = st.loop(
            self._extent // self._unroll,
            lambda i: st.unrolled(self._unroll, lambda u: step(i * self._unroll + u)),
        )
        return st.holding(all_sums, st.seq([*map(empty, all_sums), turns]))

    def _at(self, outer: Expr, k: Expr, inner: Expr) -> tuple[Expr, ...]:
        return (*_unraveled(outer, self._lead), k, *_unraveled(inner, self._behind))


def _unraveled(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """Return the indices of the ``flat``-th element of ``shape``."""
    index: list[Expr] = []
    for extent in reversed(shape[1:]):
        index.insert(0, flat % extent)
        flat = flat // extent
    return [flat, *index] if shape else []
