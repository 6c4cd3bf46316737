"""Time prepared models: every kernel in its place, the plans of a model in turns."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.sample_inputs import sample
from full_speed import FullSpeed

from collecting.prepared import Prepared
from tvmfuse import Session
from tvmfuse.cost import data
from tvmfuse.runtime.timing import quartiles
from tvmfuse.tuning import variants

_TRIES = 3
_WAIT_S = 5.0
_ALMOST_FULL = 0.85  # of the calibrated speed, after timing
_MIN_ROUNDS = 3


@dataclass
class Times(variants.Times):
    """Times of kernels, and of the whole model."""

    model_us: list[float] = field(default_factory=list)


def measure(
    parts: Sequence[Prepared], speed: FullSpeed, *, rounds: int, seconds: float
) -> list[str] | None:
    """Time a model between two moments of full speed.

    Parameters
    ----------
    parts : Sequence[Prepared]
        The libraries of the model.
    speed : FullSpeed
        Tells whether the machine is itself.
    rounds : int
        Turns of all plans.
    seconds : float
        No further turn is begun after so long, beyond the first three.

    Returns
    -------
    list of str or None
        The lines that say what was measured; None where the machine was never at full
        speed.
    """
    sessions = {name: each for part in parts for name, each in part.sessions().items()}
    feeds = {
        spec.name: sample(parts[0].inputs.get(spec.name, {}), shape=spec.shape, dtype=spec.dtype)
        for spec in parts[0].signature.inputs
    }
    for session in sessions.values():
        session.kernel_times(feeds)
    for _ in range(_TRIES):
        if speed.wait(_WAIT_S):
            times = _turns(sessions, feeds, rounds=rounds, seconds=seconds)
            if speed.share() > _ALMOST_FULL:
                return [line for part in parts for line in _lines(part, times)]
    return None


def quicker(lines: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return the lines of a model with the shorter time of two visits, kernel by kernel."""
    return [min(pair, key=_us) for pair in zip(lines, before, strict=True)]


def ratio(lines: Sequence[str], before: Sequence[str]) -> float:
    """Return how many times as long a model took on one visit as on another: the median."""
    return statistics.median(_us(a) / _us(b) for a, b in zip(lines, before, strict=True))


def _us(line: str) -> float:
    return float(json.loads(line)["us"])


def _turns(
    sessions: Mapping[str, Session], feeds: Mapping[str, Any], *, rounds: int, seconds: float
) -> dict[str, Times]:
    """Let the plans of a model run in turns; the better of two runs is a round's."""
    times = {name: Times() for name in sessions}
    end = time.perf_counter() + seconds
    for turn in range(rounds):
        if turn >= _MIN_ROUNDS and time.perf_counter() > end:
            break
        for name, session in sessions.items():
            session(feeds)
            runs = [_passed_us(session, feeds) for _ in range(variants.COUNTED_RUNS)]
            times[name].model_us.append(min(runs))
            times[name].add_round(session, feeds)
    return times


def _passed_us(session: Session, feeds: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    session(feeds)
    return (time.perf_counter() - start) * 1e6


def _lines(prepared: Prepared, times: Mapping[str, Times]) -> Iterator[str]:
    """Yield what was measured of a model."""
    for name, plan in prepared.plans.items():
        taken = times[name]
        kernels, other_us = [], 0.0
        for kernel, us in taken.kernels_us.items():
            median, (first, third) = statistics.median(us), quartiles(tuple(us))
            about = prepared.kernels.get(kernel)
            if about is None:
                other_us += median * taken.calls[kernel]
                continue
            kernels.append(
                replace(
                    about,
                    plan=plan.alike[0] if plan.alike else name,
                    us=median,
                    spread_us=third - first,
                    calls=taken.calls[kernel],
                )
            )
        first, third = quartiles(tuple(taken.model_us))
        whole = data.MeasuredPlan(
            *(prepared.name, prepared.family, name),
            us=statistics.median(taken.model_us),
            spread_us=third - first,
            other_us=other_us,
            groups=plan.groups,
        )
        named = [replace(whole, plan=alike) for alike in plan.alike] or [whole]
        yield from data.lines(kernels, named)
