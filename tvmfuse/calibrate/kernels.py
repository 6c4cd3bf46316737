"""The kernels that calibration times: arithmetic, reading, and next to nothing."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax, s_tir, te, tirx, tvm
from tvmfuse.targets.base import Target

DEPTH = 64  # of the product; both operands of a tile stay in L1


def tile(target: Target) -> tuple[int, int]:
    """Return rows and columns of a product whose sums fill the vector registers.

    12 sums in 16 registers, 24 in 32: enough to hide the latency of a fused
    multiply-add on two ports (the shapes of BLIS and MLAS).
    """
    return 12 * target.vector_registers // 32, 2 * target.lanes


def multiply(target: Target, *, threads: int, repeats: int) -> Any:
    """Build a small matrix product, done again and again with its operands in L1.

    Parameters
    ----------
    target : Target
        The CPU.
    threads : int
        Each has a product of its own.
    repeats : int
        How often each is added up.

    Returns
    -------
    callable
        ``f(a, b, c)`` on float32 ``(threads, DEPTH, rows)``, ``(threads, DEPTH,
        columns)`` and ``(threads, rows, columns)``; overwrites ``c``.
    """
    rows, columns = tile(target)
    a = te.placeholder((threads, DEPTH, rows), name="a")
    b = te.placeholder((threads, DEPTH, columns), name="b")
    again, k = te.reduce_axis((0, repeats), "again"), te.reduce_axis((0, DEPTH), "k")
    total = te.compute(
        (threads, rows, columns),
        lambda t, i, j: te.sum(a[t, k, i] * b[t, k, j], axis=[again, k]),
        name="total",
    )
    return _summing([a, b], total, target)


def row(target: Target) -> tuple[int, int]:
    """Return the sums that :func:`read` keeps in registers, as vectors and lanes."""
    return target.vector_registers // 2, target.lanes


def read(target: Target, *, threads: int, rows: int, repeats: int) -> Any:
    """Build a sum over a buffer, read from front to back again and again.

    Parameters
    ----------
    target : Target
        The CPU.
    threads : int
        Each has a part of the buffer of its own.
    rows : int
        Length of a part, in units of :func:`row`.
    repeats : int
        How often each part is read.

    Returns
    -------
    callable
        ``f(x, sums)`` on float32 ``(threads, rows, *row)`` and ``(threads, *row)``.
    """
    x = te.placeholder((threads, rows, *row(target)), name="x")
    again, n = te.reduce_axis((0, repeats), "again"), te.reduce_axis((0, rows), "n")
    total = te.compute(
        (threads, *row(target)),
        lambda t, u, v: te.sum(x[t, n, u, v], axis=[again, n]),
        name="total",
    )
    return _summing([x], total, target)


def fill(target: Target, *, threads: int, rows: int) -> Any:
    """Build a kernel that writes ones; each thread is the first to touch its part.

    Returns
    -------
    callable
        ``f(x)`` on float32 ``(threads, rows, *row)``.
    """
    shape = (threads, rows, *row(target))
    ones = te.compute(shape, lambda *_: tirx.const(1.0, "float32"), name="ones")
    return tvm.compile(_parallel(te.create_prim_func([ones]), "ones"), target.tvm())["main"]


def triad(target: Target, *, threads: int, rows: int) -> Any:
    """Build STREAM's triad, ``a = b + 3 c``, with plain stores.

    Returns
    -------
    callable
        ``f(b, c, a)`` on float32 ``(threads, rows, *row)``.
    """
    shape = (threads, rows, *row(target))
    b, c = (te.placeholder(shape, name=name) for name in "bc")
    a = te.compute(shape, lambda *at: b[at] + c[at] * tirx.const(3.0, "float32"), name="a")
    return tvm.compile(_parallel(te.create_prim_func([b, c, a]), "a"), target.tvm())["main"]


def chain(target: Target, *, threads: int, length: int) -> Any:
    """Build a model of tiny parallel kernels, one after the other.

    Returns
    -------
    callable
        ``f(x)`` on float32 ``(threads, lanes)``: every kernel adds 1.
    """
    x = te.placeholder((threads, target.lanes), name="x")
    y = te.compute(x.shape, lambda *at: x[at] + 1.0, name="y")
    step_func = _parallel(te.create_prim_func([x, y]), "y")
    builder = relax.BlockBuilder()
    step = builder.add_func(step_func, "step")
    value = relax.Var("x", relax.TensorType((threads, target.lanes), "float32"))
    with builder.function("main", [value]):
        for _ in range(length):
            value = builder.emit(relax.call_tir(step, [value], out_ty=value.ty))
        builder.emit_func_output(value)
    with target.tvm() as device:
        lowered = tvm.transform.Sequential(
            [relax.transform.CallTIRRewrite(), *relax.pipeline.finalize_passes(device)]
        )(builder.get())
        # The default pipeline would fuse the chain into one kernel.
        executable = tvm.compile(lowered, device, relax_pipeline=tvm.transform.Sequential([]))
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def _parallel(function: Any, block: str) -> Any:
    """Spread a block's outer loop over the threads and vectorise its inner one."""
    schedule = s_tir.Schedule(function)
    outer, *_, inner = schedule.get_loops(schedule.get_sblock(block))
    schedule.parallel(outer)
    schedule.vectorize(inner)
    return schedule.mod["main"]


def _summing(operands: list[Any], total: Any, target: Target) -> Any:
    """Compile sums that every thread keeps in registers and stores once.

    ``total`` has the axes (thread, vector, lane) and reduces over two more.
    """
    result = te.compute(total.shape, lambda *at: total[at], name="result")
    schedule = s_tir.Schedule(te.create_prim_func([*operands, result]))
    sums, stores = schedule.get_sblock("total"), schedule.get_sblock("result")
    thread, vector, lane = schedule.get_loops(stores)
    schedule.parallel(thread)
    schedule.compute_at(sums, thread, preserve_unit_loops=True)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    vector, lane, again, step = schedule.get_loops(sums)[-4:]
    schedule.reorder(again, step, vector, lane)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.decompose_reduction(sums, again)
    schedule.set_scope(sums, 0, "local")
    return tvm.compile(schedule.mod, target.tvm())["main"]
