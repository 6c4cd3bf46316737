"""Models that say which candidates are worth measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Protocol

import numpy as np

_WORST = 1.0  # above the median of the costs, beyond which they are all the same
_LEAST_SCALE = 1e-3
_DOUBT = 0.5  # variance of a sample whose weight is a half

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
class GaussianProcess:
    """Means of a Gaussian process on positions, with an exponential covariance.

    Near what was measured it follows it, far from it it expects the mean: it neither promises
    what it cannot know, as polynomials do at the ends of a space, nor needs many samples.

    Parameters
    ----------
    length : float
        Distance, over all axes, within which costs are alike.
    noise : float
        Variance of a measurement over that of all costs.
    """

    length: float = 0.5
    noise: float = 0.01

    def fit(self, samples: Sequence[Sample]) -> Predict:
        """Return a function from positions to predicted costs."""
        known = np.array([sample.position for sample in samples], "float64")
        costs = np.array([sample.cost for sample in samples])
        # How slow the slow ones are says nothing about the fast ones.
        costs = np.minimum(costs, np.median(costs) + _WORST)
        mean, scale = costs.mean(), max(float(costs.std()), _LEAST_SCALE)
        doubts = np.array([1.0 / sample.weight - 1.0 for sample in samples])
        covariance = self._covariance(known, known) + np.diag(self.noise + _DOUBT * doubts)
        weights = np.linalg.solve(covariance, (costs - mean) / scale)

        def predict(positions: Sequence[Position]) -> np.ndarray[Any, Any]:
            near = self._covariance(np.array(positions, "float64"), known)
            return np.asarray(mean + scale * (near @ weights))

        return predict

    def _covariance(
        self, ones: np.ndarray[Any, Any], others: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        distances = np.zeros((len(ones), len(others)))
        for one, other in zip(ones.T, others.T, strict=True):  # not all axes at once: memory
            distances += np.abs(one[:, None] - other[None, :])
        n_axes = max(1, ones.shape[-1])
        return np.asarray(np.exp(-distances / (self.length * np.sqrt(n_axes))))


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
