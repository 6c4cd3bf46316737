"""Keep a kernel's record only where the whole model is faster with it.

A kernel that is timed alone has the caches and the memory bus for itself: what wins there
may lose in a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvmfuse.errors import TuningError
from tvmfuse.tuning.tuner import Progress

Ratio = Callable[[Sequence[Progress], Sequence[Progress]], float]
InPlace = Callable[[Sequence[Progress]], Mapping[str, float]]

_NEEDED_GAIN = 0.005  # of the whole model; less than this is chance
_NEEDED_IN_PLACE = 0.01  # of the kernel

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Confirmed:
    """What came of timing records in a whole model.

    Parameters
    ----------
    kept : list of Progress
        Kernels whose records make it faster.
    untried : list of Progress
        Kernels for which there was no time.
    ratio : float
        Time of one inference with the records kept over that without any.
    """

    kept: list[Progress]
    untried: list[Progress]
    ratio: float = 1.0


def confirm(
    winners: Sequence[Progress],
    ratio: Ratio,
    in_place: InPlace = lambda _: {},
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Confirmed:
    """Find the kernels whose records make the whole model faster.

    Each kernel is timed in its place first, all records at once. Those that gained there are
    tried together; where the whole does not gain, their halves are, down to one kernel.

    Parameters
    ----------
    winners : sequence of Progress
        Kernels whose best candidate beats the default alone.
    ratio : callable
        ``ratio(old, new)`` times the model with two sets of records: below 1 the new is faster.
    in_place : callable
        Returns the time of each kernel with its record over that without, by its workload.
    is_over : callable
        Whether time is up; all together are tried even so.
    """
    kept: list[Progress] = []
    kept_ratio = 1.0
    first = sorted(_gaining(winners, in_place), key=lambda each: each.gain_us, reverse=True)
    groups = [first] if first else []
    while groups and (groups[0] is first or not is_over()):
        group = groups.pop()
        try:
            found = ratio(kept, [*kept, *group])
        except TuningError as error:  # what cannot be timed in the whole is not kept
            _log.warning("tune: %d records could not be confirmed: %s", len(group), error)
            found = 1.0
        if found < 1.0 - _NEEDED_GAIN:
            kept += group
            kept_ratio *= found
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return Confirmed(kept, [kernel for group in groups for kernel in group], kept_ratio)


def _gaining(winners: Sequence[Progress], in_place: InPlace) -> list[Progress]:
    """Return the kernels that gained in their places, or for which nobody knows."""
    if not winners:
        return []
    try:
        ratios = in_place(winners)
    except TuningError as error:
        _log.warning("tune: kernels could not be timed in their places: %s", error)
        return list(winners)
    most = 1.0 - _NEEDED_IN_PLACE
    return [each for each in winners if ratios.get(each.task.workload.key, 0.0) < most]
