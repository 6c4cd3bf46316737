"""What share of a device's peaks kernels reach: the numbers of the roofline that are fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from tvmfuse.cost.effort import Work

WORKS: tuple[Work, ...] = get_args(Work)
LEVELS = ("l1", "l2", "l3", "dram")

# The peak counts fused multiply-adds, two operations each; elementwise code has few of them
# and long dependency chains. Winograd's are those that it spares. Special functions and moves
# are counted by elements, and so is what is rounded to half precision after every operator or
# written beside the sums of it. Products of bytes have instructions of their own.
_EFFICIENCY: Mapping[Work, float] = {
    "matmul": 0.85,
    "conv": 0.9,
    "winograd": 2.0,
    "depthwise": 0.8,
    "pooling": 0.14,
    "reduction": 0.18,
    "elementwise": 0.3,
    "special": 0.028,
    "library": 0.005,
    "division": 0.06,
    "moving": 0.06,
    "kept": 0.016,
    "half": 0.1,
    "half_matmul": 0.15,
    "byte_product": 1.6,
    "opaque": 0.3,
}


@dataclass(frozen=True)
class Rates:
    """What kernels reach of what a device can do at best.

    The defaults are what kernels of two CPUs reach in the middle; a cost model that was
    trained on a device has its own.

    Parameters
    ----------
    efficiency : Mapping of Work to float
        Share of the peak, by kind of work.
    reach : Mapping of str to float
        Share of the bandwidth of each level, for what is read: it was measured by reading
        in long unrolled loops.
    store : float
        Share of the bandwidth of memory that results are written by, at most: their lines
        are fetched first, from another core's cache if need be.
    constants : float
        The same as ``reach``, for weights.
    call_us : float
        What a kernel takes on one core that does next to nothing.
    wake : float
        How many times the calibrated cost of a kernel it takes to wake the other cores.
    exposed : float
        Part of the shorter of compute and memory time that does not hide behind the longer.
    """

    efficiency: Mapping[Work, float] = field(default_factory=lambda: dict(_EFFICIENCY))
    reach: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.8))
    store: float = 2.0
    constants: float = 0.4
    call_us: float = 0.3
    wake: float = 1.3
    exposed: float = 0.25

    def numbers(self) -> tuple[float, ...]:
        """Return all of them in one order."""
        return (
            *(self.efficiency[work] for work in WORKS),
            *(self.reach[level] for level in LEVELS),
            *(self.store, self.constants, self.call_us, self.wake, self.exposed),
        )

    @classmethod
    def of(cls, numbers: tuple[float, ...]) -> Rates:
        """Rebuild them from :meth:`numbers`."""
        n, m = len(WORKS), len(WORKS) + len(LEVELS)
        efficiency = dict(zip(WORKS, numbers[:n], strict=True))
        return cls(efficiency, dict(zip(LEVELS, numbers[n:m], strict=True)), *numbers[m:])
