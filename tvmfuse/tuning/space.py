"""The decisions of one kernel as a space to search.

A family's schedule function spans its space by the calls of ``choose``, and what can
be chosen may depend on what was chosen before. The axes are therefore found by walking
the function with several choosers, a point is only wished for, and what a walk really
took is what is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from random import Random
from typing import Any

from tvmfuse.kernels.choices import Decision, Recorder, at_random, by_default

Point = Mapping[str, Any]
Walk = Callable[[Recorder], object]

TRACE = "trace"
"""The one decision of a point of TVM's own space: the trace, as JSON text."""

_WALKS = 4


@dataclass(frozen=True)
class Axis:
    """One decision.

    Parameters
    ----------
    name : str
        What is decided.
    options : tuple
        What any walk could choose; numbers ascending.
    default : object
        What the zero-trial kernel takes.
    """

    name: str
    options: tuple[Any, ...]
    default: Any

    def position(self, value: Any) -> float:
        """Return where the option nearest to ``value`` stands, from 0 to 1."""
        if len(self.options) == 1:
            return 0.0
        return self.options.index(nearest(self.options, value)) / (len(self.options) - 1)


@dataclass(frozen=True)
class Space:
    """The axes of one kernel.

    Parameters
    ----------
    axes : tuple of Axis
        In the order in which they are decided.
    """

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(len(axis.options) for axis in self.axes)

    @property
    def default(self) -> Point:
        """The point of the zero-trial kernel."""
        return {axis.name: axis.default for axis in self.axes}

    def points(self, random: Random, *, limit: int) -> list[Point]:
        """Return every point, or ``limit`` different ones where there are more."""
        if self.size <= limit:
            return list(self._all())
        places = random.sample(range(self.size), limit)
        return [self._at(place) for place in places]

    def neighbours(self, point: Point) -> list[Point]:
        """Return the points one step away along one axis."""
        found: list[Point] = []
        for axis in self.axes:
            place = axis.options.index(nearest(axis.options, point.get(axis.name, axis.default)))
            for near in (place - 1, place + 1):
                if 0 <= near < len(axis.options):
                    found.append({**point, axis.name: axis.options[near]})
        return found

    def position(self, point: Point) -> tuple[float, ...]:
        """Return a point, also one of another kernel's space, as numbers from 0 to 1."""
        return tuple(axis.position(point.get(axis.name, axis.default)) for axis in self.axes)

    def _all(self) -> Iterator[Point]:
        names = [axis.name for axis in self.axes]
        for values in product(*(axis.options for axis in self.axes)):
            yield dict(zip(names, values, strict=True))

    def _at(self, place: int) -> Point:
        point = {}
        for axis in self.axes:
            place, option = divmod(place, len(axis.options))
            point[axis.name] = axis.options[option]
        return point


def explore(walk: Walk, *, seed: int = 0) -> Space:
    """Find the axes of a kernel by walking its schedule function.

    Parameters
    ----------
    walk : callable
        Schedules the kernel, taking each decision from the recorder that it is given.
    seed : int
        Chooses the random walks, which find options that depend on earlier decisions.

    Returns
    -------
    Space
        Without axes where nothing is decided.
    """
    random = Random(seed)
    recorders = [by_default(), *(at_random(random) for _ in range(_WALKS))]
    decisions: dict[str, list[Decision]] = {}
    for recorder in recorders:
        walk(recorder)
        for decision in recorder.decisions:
            decisions.setdefault(decision.name, []).append(decision)
        if not recorder.decisions:  # nothing to decide, so nothing more to find
            break
    return Space(tuple(_axis(found) for found in decisions.values()))


def toward(point: Point) -> Recorder:
    """Return a recorder that takes what is wished for, or the nearest to it that is offered."""

    def take(name: str, options: Sequence[Any], default: Any) -> Any:
        return nearest(options, point[name]) if name in point else default

    return Recorder(take)


def nearest(options: Sequence[Any], value: Any) -> Any:
    """Return ``value`` where it is an option, else the option nearest to it by ratio."""
    if value in options:
        return value
    numbers = [option for option in options if _is_number(option)]
    if not numbers or not _is_number(value):
        return options[0]
    return min(numbers, key=lambda option: abs(_log(option) - _log(value)))


def key(point: Point) -> tuple[tuple[str, Any], ...]:
    """Return a point as a value that sets and mappings can hold."""
    return tuple(sorted(point.items()))


def distinct(points: Sequence[Point], *, limit: int) -> list[Point]:
    """Return the first ``limit`` different points."""
    return list(islice({key(point): point for point in points}.values(), limit))


def _axis(decisions: Sequence[Decision]) -> Axis:
    options = {option for decision in decisions for option in decision.options}
    first = decisions[0]
    in_order = sorted(options) if all(map(_is_number, options)) else list(first.options)
    return Axis(first.name, tuple(in_order), first.chosen)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _log(value: float) -> float:
    return math.log2(1.0 + max(0.0, value))
