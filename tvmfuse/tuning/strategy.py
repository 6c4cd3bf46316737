"""Search one space: rank what is not measured, measure the best of it, widen."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from tvmfuse.tuning.ranker import GaussianProcess, Predict, Quadratic, Ranker, Sample
from tvmfuse.tuning.space import Point, Space, distinct, key

_POOL = 2048  # points that are ranked at once
_EXPLORED = 1 / 3  # share of a batch that is drawn, near the best and anywhere
_FAILED_COST = 1.0  # a failure counts as e times the slowest success


@dataclass
class Search:
    """What is known of one space, and what to measure next.

    The same seed and the same measurements give the same proposals.

    Parameters
    ----------
    space : Space
        The decisions.
    seed : int
        Chooses what is drawn.
    ranker : Ranker
        Learns from measurements what to measure next.
    outlook : Ranker
        Learns from them how much may be left to gain, so it must look beyond them.
    prior : sequence of Sample
        Records of similar kernels.
    """

    space: Space
    seed: int = 0
    ranker: Ranker = field(default_factory=GaussianProcess)
    outlook: Ranker = field(default_factory=Quadratic)
    prior: Sequence[Sample] = ()
    costs: dict[tuple[tuple[str, object], ...], float | None] = field(default_factory=dict)
    _points: list[Point] = field(default_factory=list)
    _best: Point | None = None
    _only: frozenset[tuple[tuple[str, object], ...]] | None = None

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._pool = self.space.points(self._random, limit=_POOL)

    @property
    def best(self) -> Point | None:
        """The fastest point so far."""
        return self._best

    @property
    def best_us(self) -> float:
        """Its time in microseconds; infinite before the first success."""
        known = [cost for cost in self.costs.values() if cost is not None]
        return min(known, default=math.inf)

    @property
    def is_exhausted(self) -> bool:
        """Whether no point is left."""
        return not self._left()

    def observe(self, point: Point, time_us: float | None, *, asked: Point | None = None) -> None:
        """Take note of a measurement; None stands for a failure.

        Parameters
        ----------
        point : Mapping
            What the schedule really took.
        time_us : float, optional
            Its time in microseconds.
        asked : Mapping, optional
            What was proposed, where it differs: it is not proposed again.
        """
        if time_us is not None and time_us < self.best_us:
            self._best = point
        if key(point) not in self.costs:
            self._points.append(point)
        known = self.costs.get(key(point))
        self.costs[key(point)] = time_us if known is None else min(known, time_us or known)
        if asked is not None:
            self.costs.setdefault(key(asked), None)

    def propose(self, count: int) -> list[Point]:
        """Return up to ``count`` points to measure next; the default comes first of all."""
        if not self._points:
            self._pool = distinct([self.space.default, *self._pool], limit=_POOL)
            return [self.space.default]
        left = self._left()
        chosen = self._ranked(left)[: count - round(count * _EXPLORED)]
        near = self.space.neighbours(self._best) if self._best is not None else []
        chosen += self._drawn([point for point in left if point in near], chosen, 1)
        chosen += self._drawn(left, chosen, count)
        return chosen[:count]

    def only(self, points: Collection[tuple[tuple[str, object], ...]]) -> None:
        """Propose nothing but these points, given by their keys."""
        self._only = frozenset(points)
        self._pool = [dict(point) for point in points]

    def potential(self) -> float:
        """Return the share of the best time that the model expects still to be saved."""
        left = self._left()
        predict = self._predict(self.outlook)
        if not left or predict is None:
            return 0.0
        best = min(predict([self.space.position(point) for point in left]))
        return float(1.0 - math.exp(min(0.0, max(-2.0, best - self._cost(self.best_us)))))

    def _left(self) -> list[Point]:
        near = self.space.neighbours(self._best) if self._best is not None else []
        return [
            point
            for point in distinct([*self._pool, *near], limit=2 * _POOL)
            if key(point) not in self.costs and (self._only is None or key(point) in self._only)
        ]

    def _drawn(self, points: list[Point], chosen: list[Point], count: int) -> list[Point]:
        rest = [point for point in points if point not in chosen]
        return self._random.sample(rest, min(len(rest), count))

    def _ranked(self, left: list[Point]) -> list[Point]:
        """Return what is left, the most promising first; nothing while too little is known."""
        predict = self._predict(self.ranker)
        if (
            predict is None
            or not left
            or len(self._points) + len(self.prior) <= len(self.space.axes)
        ):
            return []
        order = np.argsort(predict([self.space.position(point) for point in left]), kind="stable")
        return [left[i] for i in order]

    def _predict(self, ranker: Ranker) -> Predict | None:
        if not math.isfinite(self.best_us):
            return None
        return ranker.fit([*self._samples(), *self.prior])

    def _samples(self) -> list[Sample]:
        times = [self.costs[key(point)] for point in self._points]
        worst = max((time for time in times if time is not None), default=1.0)
        return [
            Sample(
                self.space.position(point),
                self._cost(worst) + _FAILED_COST if time is None else self._cost(time),
            )
            for point, time in zip(self._points, times, strict=True)
        ]

    def _cost(self, time_us: float) -> float:
        """Return a time as the models see it: the logarithm over that of the first success."""
        first = next(cost for cost in self.costs.values() if cost is not None)
        return math.log(time_us / first)
