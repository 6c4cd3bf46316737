"""Fit the roofline's rates to measured kernels.

Two dozen numbers that mean something generalise from few measurements to architectures
that were not among them, which trees over dozens of features do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from tvmfuse.cost import memory
from tvmfuse.cost.kernel import Kernel
from tvmfuse.cost.rates import LEVELS, WORKS, Rates
from tvmfuse.cost.roofline import STORE_COST, busy_share
from tvmfuse.plan import Peaks

Array = npt.NDArray[np.float64]

# Beyond this error, as a logarithm, a kernel counts less: it is odd, or was disturbed.
_ODD = 0.3

# How much a rate resists leaving its default: as much as so many kernels that are far off.
_INERTIA = 0.5


def fit(peaks: Peaks, kernels: Sequence[Sequence[Kernel]], us: Sequence[float]) -> Rates:
    """Return the rates under which a roofline is nearest to what was measured.

    Parameters
    ----------
    peaks : Peaks
        The device, a CPU.
    kernels : sequence of sequence of Kernel
        Measured kernels, each part by part where several were joined.
    us : sequence of float
        Their run times, in microseconds.
    """
    table, wanted = Table(peaks, kernels), np.log(us)
    start = np.log(Rates().numbers())
    inertia = _INERTIA * np.sqrt(len(wanted) / 100)

    def errors(rates: Array) -> Array:
        off = np.log(table.us(np.exp(rates))) - wanted
        return np.concatenate([off, inertia * (rates - start)])

    found = least_squares(errors, start, loss="soft_l1", f_scale=_ODD, max_nfev=60)
    return Rates.of(tuple(float(rate) for rate in np.exp(found.x)))


class Table:
    """Kernels as arrays: what :class:`~tvmfuse.cost.roofline.Roofline` computes one by one.

    Parameters
    ----------
    peaks : Peaks
        The device.
    kernels : sequence of sequence of Kernel
        The kernels, part by part.
    """

    def __init__(self, peaks: Peaks, kernels: Sequence[Sequence[Kernel]]) -> None:
        self._peaks, self._count = peaks, len(kernels)
        parts = [part for own in kernels for part in own]
        owner = [i for i, own in enumerate(kernels) for _ in own]
        known = [level for level in LEVELS if level in peaks.bandwidth_gbps]
        far = [memory.bandwidth_gbps(peaks, p.constant_bytes, last_cache_only=True) for p in parts]
        self._owner = np.array(owner, dtype=int)
        self._columns: dict[str, Array] = {
            "efforts": np.array([[p.effort.get(w, 0.0) for w in WORKS] for p in parts])
            / (peaks.gflops * 1e3),
            "level": np.array([memory.level_of(peaks, p.total_bytes) for p in parts]),
            "bandwidth": np.array([peaks.bandwidth_gbps[level] for level in known]),
            "known": np.array([LEVELS.index(level) for level in known]),
            "read": np.array([p.activation_bytes / 1e3 for p in parts]),
            "written": np.array([p.written_bytes / 1e3 for p in parts]),
            "constants": np.array([p.constant_bytes / 1e3 for p in parts]) / np.array(far),
            "launches": np.array([p.launches for p in parts], dtype=float),
            "woken": np.array([p.launches * p.starts_threads for p in parts], dtype=float),
            "busy": np.array([busy_share(p, peaks) for p in parts]),
        }

    def us(self, numbers: Array) -> Array:
        """Return the run time of each kernel under some rates, in µs."""
        of = self._columns
        n, m = len(WORKS), len(WORKS) + len(LEVELS)
        efficiency, reach = numbers[:n], numbers[n:m]
        store, constants, call_us, wake, exposed = numbers[m:]
        by_level = np.minimum.accumulate(reach[of["known"]] * of["bandwidth"])
        near = by_level[of["level"]]
        written = np.minimum(near / STORE_COST, store * self._peaks.bandwidth_gbps["dram"])
        compute_us = of["efforts"] @ (1.0 / efficiency)
        memory_us = of["read"] / near + of["written"] / written + of["constants"] / constants
        longer, shorter = np.maximum(compute_us, memory_us), np.minimum(compute_us, memory_us)
        start_us = of["launches"] * call_us + of["woken"] * wake * self._peaks.dispatch_us
        parts_us = start_us + (longer + exposed * shorter) / of["busy"]
        total_us = np.zeros(self._count)
        np.add.at(total_us, self._owner, parts_us)
        return total_us
