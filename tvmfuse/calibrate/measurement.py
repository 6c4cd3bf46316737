"""Measure peak arithmetic, bandwidth by level, and the start of a kernel."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil

from tvmfuse._tvm import tvm
from tvmfuse._tvm.threads import in_use
from tvmfuse.calibrate import cache, kernels
from tvmfuse.errors import TargetError
from tvmfuse.plan import Peaks
from tvmfuse.targets.base import Target

Progress = Callable[[str], None]

# A call takes about so long: short enough to be undisturbed on a busy machine. All that
# is measured takes turns, and the fastest call counts, for disturbances come in bursts.
_CALL_SECONDS = 4e-4
_TURN_SECONDS = 0.1
_TURNS = 5

_CHAIN = 64  # kernels in the model that measures starting one

# Memory is read from four times the last cache, within these bounds: a server's cache
# may be larger than what a virtual machine can spare.
_MIN_MEMORY_BYTES = 64 << 20
_MAX_MEMORY_BYTES = 512 << 20
_MAX_MEMORY_SHARE = 0.25

# A larger buffer is read in parts, the next one at every call.
_PART_BYTES = 2 << 20


def calibrate(target: Target, *, progress: Progress | None = None) -> Peaks:
    """Measure the peaks of the CPU that this process runs on, in a few seconds.

    All threads of TVM's pool take part (``TVM_NUM_THREADS`` sets their number).
    Arithmetic is a matrix product whose operands stay in L1, with its sums in
    registers. Bandwidth is that of reading: a float32 sum over a buffer that fills
    half of a cache level; for memory, one of four times the last cache, but 512 MB at
    most. Starting a kernel is timed as the share of one in a model of many that do
    next to nothing, each a parallel region. Each number is the best of many runs.

    Parameters
    ----------
    target : Target
        A CPU target that this machine can execute.
    progress : callable, optional
        Is called with the name of each measurement as it begins, and with a note
        where the result cannot be kept.

    Returns
    -------
    Peaks
        Of source "measured"; also kept for :func:`tvmfuse.calibrate.load_cached`.

    Raises
    ------
    TargetError
        The target is not a CPU, or its code does not run here.
    """
    if target.kind != "llvm" or not target.runs_here:
        raise TargetError(
            f"calibrate: needs a CPU target that runs on this machine, but got {target.spec!r}; "
            "calibrate on the device itself, elsewhere its default peaks are used"
        )
    tell = progress or (lambda _: None)
    threads = in_use()
    tell("build")
    arithmetic = _arithmetic(target, threads)
    reading = {
        level: _reading(target, threads, size) for level, size in buffers(target, threads).items()
    }
    one, many = _chain(target, threads, 1), _chain(target, threads, 1 + _CHAIN)
    trials = [arithmetic, *reading.values(), one, many]
    for turn in range(1, _TURNS + 1):
        tell(f"measure, turn {turn} of {_TURNS}")
        for trial in trials:
            trial.run()
    peaks = replace(
        target.peaks,
        gflops=arithmetic.amount / arithmetic.best_seconds / 1e9,
        bandwidth_gbps={
            level: trial.amount / trial.best_seconds / 1e9 for level, trial in reading.items()
        },
        dispatch_us=max(0.0, many.best_seconds - one.best_seconds) / _CHAIN * 1e6,
        cores=threads,
        source="measured",
    )
    if (problem := cache.store(target, peaks)) is not None:
        tell(problem)
    return peaks


@dataclass
class _Trial:
    """A call that does some amount of work, and its fastest run so far."""

    call: Callable[[], Any]
    amount: float = 0.0
    best_seconds: float = math.inf

    def run(self) -> None:
        """Call again and again for one turn."""
        self.call()  # fills the caches, wakes the threads
        end = time.perf_counter() + _TURN_SECONDS
        while (begin := time.perf_counter()) < end:
            self.call()
            self.best_seconds = min(self.best_seconds, time.perf_counter() - begin)


def _arithmetic(target: Target, threads: int) -> _Trial:
    rows, columns = kernels.tile(target)
    flops = 2 * rows * columns * kernels.DEPTH * threads
    repeats = _repeats(flops / target.peaks.gflops / 1e9)
    product = kernels.multiply(target, threads=threads, repeats=repeats)
    a = _ones(threads, kernels.DEPTH, rows)
    b = _ones(threads, kernels.DEPTH, columns)
    c = _ones(threads, rows, columns)
    return _Trial(lambda: product(a, b, c), amount=repeats * flops)


def buffers(target: Target, threads: int) -> dict[str, int]:
    """Return how much is read over and over to read from each level, in bytes."""
    caches = target.peaks.cache_bytes
    buffers = {level: threads * caches[level] // 2 for level in ("l1", "l2") if level in caches}
    private = 2 * max(buffers.values(), default=0)
    last = caches.get("l3", 0)
    if last > 4 * private:
        # Far less than half: other machines may share the last cache.
        buffers["l3"] = max(2 * private, last // 16)
    spare = int(psutil.virtual_memory().available * _MAX_MEMORY_SHARE)
    wanted = max(4 * last, 4 * private, _MIN_MEMORY_BYTES)
    return {**buffers, "dram": min(wanted, _MAX_MEMORY_BYTES, spare)}


def _reading(target: Target, threads: int, n_bytes: int) -> _Trial:
    """Prepare a sum over a buffer, or at every call over the next part of it."""
    n_parts = -(-n_bytes // _PART_BYTES)
    row = kernels.row(target)
    row_bytes = 4 * threads * math.prod(row)
    rows = max(1, n_bytes // n_parts // row_bytes)
    repeats = 1
    if n_parts == 1:
        repeats = _repeats(rows * row_bytes / target.peaks.bandwidth_gbps["l2"] / 1e9)
    total = kernels.read(target, threads=threads, rows=rows, repeats=repeats)
    fill = kernels.fill(target, threads=threads, rows=rows)
    parts = [tvm.runtime.empty((threads, rows, *row), "float32") for _ in range(n_parts)]
    for part in parts:
        fill(part)
    sums, turn = _ones(threads, *row), itertools.cycle(parts)
    return _Trial(lambda: total(next(turn), sums), amount=repeats * rows * row_bytes)


def _chain(target: Target, threads: int, length: int) -> _Trial:
    model = kernels.chain(target, threads=threads, length=length)
    x = _ones(threads, target.lanes)
    return _Trial(lambda: model(x))


def _repeats(seconds: float) -> int:
    """Return how often a call does what takes ``seconds`` by estimate."""
    return max(1, round(_CALL_SECONDS / seconds))


def _ones(*shape: int) -> Any:
    return tvm.runtime.tensor(np.ones(shape, "float32"))
