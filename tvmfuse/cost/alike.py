"""Predict equal candidates once: a network repeats its blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tvmfuse.plan import Candidate, RunTime


def once(
    candidates: Sequence[Candidate], predict: Callable[[Sequence[Candidate]], Sequence[RunTime]]
) -> list[RunTime]:
    """Return the run times of candidates, asking for the first of those that are alike only.

    Parameters
    ----------
    candidates : Sequence[Candidate]
        In any order.
    predict : callable
        Returns the run times of candidates that all differ, in order.
    """
    place: dict[Hashable, int] = {}
    unlike: list[Candidate] = []
    at: list[int] = []
    for candidate in candidates:
        at.append(place.setdefault(candidate.likeness, len(unlike)))
        if at[-1] == len(unlike):
            unlike.append(candidate)
    run_times = predict(unlike)
    return [run_times[i] for i in at]
