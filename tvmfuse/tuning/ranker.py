"""Models that say which candidates are worth measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Protocol

import numpy as np

Position = Sequence[float]
Predict = Callable[[Sequence[Position]], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Sample:
    """One measured candidate.

    Parameters
    ----------
    position : sequence of float
        Where it lies in its space, see :meth:`Space.position`.
    cost : float
        Natural logarithm of its time over that of a reference of its kernel.
    weight : float
        How much it counts; records of similar kernels count less.
    """

    position: Position
    cost: float
    weight: float = 1.0


class Ranker(Protocol):
    """Learns from samples which positions are fast."""

    def fit(self, samples: Sequence[Sample]) -> Predict:
        """Return a function from positions to predicted costs; ``samples`` is not empty."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """Ridge regression on positions, their squares and their products.

    It needs no more than a handful of samples, which a new kernel has after one batch.

    Parameters
    ----------
    stiffness : float
        Penalty on every coefficient but the constant.
    """

    stiffness: float = 0.005

    def fit(self, samples: Sequence[Sample]) -> Predict:
        """Return a function from positions to predicted costs."""
        features = _features([sample.position for sample in samples])
        weights = np.array([sample.weight for sample in samples])
        costs = np.array([sample.cost for sample in samples])
        penalty = self.stiffness * np.eye(features.shape[1])
        penalty[0, 0] = 1e-9
        scaled = features * weights[:, None]
        solution = np.linalg.solve(features.T @ scaled + penalty, scaled.T @ costs)
        return lambda positions: _features(positions) @ solution


def _features(positions: Sequence[Position]) -> np.ndarray[Any, Any]:
    values = np.asarray(positions, "float64").reshape(len(positions), -1)
    columns = [np.ones(len(values)), *values.T]
    pairs = combinations_with_replacement(values.T, 2)
    return np.stack([*columns, *(a * b for a, b in pairs)], axis=1)
