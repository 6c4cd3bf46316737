"""The levels of a device's memory: what they hold, how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tvmfuse.plan import Peaks

# The working set leaves out code, stacks and what the replacement policy spoils.
_USABLE = 0.5

_ALL = MappingProxyType(dict.fromkeys(("l1", "l2", "l3", "dram"), 1.0))


def capacities(peaks: Peaks) -> dict[str, int]:
    """Return what each cache level holds of a kernel's data, in bytes.

    The last cache is shared; every core has its own of the others.
    """
    levels = [level for level in ("l1", "l2", "l3") if level in peaks.cache_bytes]
    return {
        level: peaks.cache_bytes[level] * (1 if level == levels[-1] else peaks.cores)
        for level in levels
    }


def bandwidth_gbps(
    peaks: Peaks,
    working_set_bytes: int,
    *,
    last_cache_only: bool = False,
    reach: Mapping[str, float] = _ALL,
) -> float:
    """Return the bandwidth of the nearest level that holds a working set.

    Parameters
    ----------
    peaks : Peaks
        The device; a level whose bandwidth is unknown is passed over.
    working_set_bytes : int
        Distinct bytes that are touched.
    last_cache_only : bool
        Whether the data cannot lie nearer than the last cache.
    reach : Mapping of str to float
        The share of each level's bandwidth that is reached.

    Returns
    -------
    float
        In GB/s, of all cores; never more than that of a nearer level.
    """
    sizes = capacities(peaks)
    last = next(reversed(sizes), None)
    fastest = float("inf")
    for level, size in sizes.items():
        # A farther level that was measured to be faster is noise.
        if level in peaks.bandwidth_gbps:
            fastest = min(fastest, reach[level] * peaks.bandwidth_gbps[level])
        is_open = level == last or not last_cache_only
        if is_open and working_set_bytes <= size * _USABLE and level in peaks.bandwidth_gbps:
            return fastest
    return min(fastest, reach["dram"] * peaks.bandwidth_gbps["dram"])


def level_of(peaks: Peaks, working_set_bytes: int) -> int:
    """Return which of the levels with a known bandwidth holds a working set, memory the last."""
    sizes = capacities(peaks)
    known = [level for level in sizes if level in peaks.bandwidth_gbps]
    fits = (i for i, of in enumerate(known) if working_set_bytes <= sizes[of] * _USABLE)
    return next(fits, len(known))


def level_name(peaks: Peaks, working_set_bytes: int, *, last_cache_only: bool = False) -> str:
    """Return the name of the nearest level that holds a working set; of memory where none does."""
    sizes = capacities(peaks)
    open_ = list(sizes)[-1:] if last_cache_only else sizes
    fits = (level for level in open_ if working_set_bytes <= sizes[level] * _USABLE)
    return next(fits, "dram")
