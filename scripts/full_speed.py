"""Wait until a machine runs at the speed that calibration measured."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tvmfuse._tvm import threads, tvm
from tvmfuse.calibrate import kernels
from tvmfuse.targets import Target

_SHARE = 0.9  # of the peak, which counts as full speed
_CALLS = 20
_CALL_S = 5e-4  # so long that starting one does not count


class FullSpeed:
    """A product whose speed is known, run by all threads.

    Where two of its threads share a core, or another tenant of the machine has one,
    every kernel takes twice as long.

    Parameters
    ----------
    target : Target
        This machine, calibrated.
    """

    def __init__(self, target: Target) -> None:
        rows, columns = kernels.tile(target)
        count = threads.in_use()
        self._peak = target.peaks.gflops
        once = 2e-9 * rows * columns * kernels.DEPTH * count
        repeats = round(_CALL_S * self._peak / once)
        self._gflop = once * repeats
        self._product = kernels.multiply(target, threads=count, repeats=repeats)
        shapes = (
            (count, kernels.DEPTH, rows),
            (count, kernels.DEPTH, columns),
            (count, rows, columns),
        )
        self._operands = [_ones(shape) for shape in shapes]

    def share(self) -> float:
        """Return the speed as a share of the peak: the median of some calls."""
        seconds = []
        for _ in range(_CALLS):
            start = time.perf_counter()
            self._product(*self._operands)
            seconds.append(time.perf_counter() - start)
        return self._gflop / float(np.median(seconds)) / self._peak

    def wait(self, limit_s: float) -> bool:
        """Run until the machine is at full speed; return whether it is."""
        end = time.perf_counter() + limit_s
        while self.share() < _SHARE:
            if time.perf_counter() > end:
                return False
        return True


def _ones(shape: tuple[int, ...]) -> Any:
    return tvm.runtime.tensor(np.ones(shape, "float32"))
