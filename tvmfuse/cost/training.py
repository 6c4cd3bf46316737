"""Train the learned cost model, and hold it against what it has not seen."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from tvmfuse.cost import fitting
from tvmfuse.cost.data import Run
from tvmfuse.cost.examples import Example
from tvmfuse.cost.features import Features
from tvmfuse.cost.learned import xgboost
from tvmfuse.cost.rates import Rates
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import SIZES, Trained, class_of, log_size
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Peaks

Array = npt.NDArray[np.float64]

MIN_KERNELS = 100  # below that the prior is the better guess
_FOLDS = 5
_SHARE = 0.8  # of the errors lie within the band
_MIN_OF_A_CLASS = 8  # of a rarer kind the model does not claim to know anything

_MIN_OF_A_MODEL = 30  # to say how well its kernels are ranked
_NOISE = 0.05  # that no measurement is free of

_ENSEMBLE = 3
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the correction; few measurements mislead
_ROUNDS = 150
_PARAMETERS = {
    "objective": "reg:absoluteerror",
    "max_depth": 4,
    "eta": 0.05,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "min_child_weight": 4.0,
    "lambda": 10.0,
    "nthread": 1,
    "verbosity": 0,
}

# More of these never makes a kernel quicker, whatever the prior says of its bytes and flops.
_SLOWER = ("column_waste", "row_waste", "idle_share", "spill_bytes")


def train(
    run: Run, rows: Sequence[Example], *, seed: int = 0, boosting_rounds: int = _ROUNDS
) -> Trained:
    """Learn from kernels.

    Parameters
    ----------
    run : Run
        The machine that they were measured on.
    rows : Sequence[Example]
        The kernels; those to judge by must not be among them.
    seed : int
        Of the trees.
    boosting_rounds : int
        Trees of each model of the ensemble.

    Raises
    ------
    CostModelError
        They are too few, or XGBoost is missing.
    """
    rows = [row for row in rows if math.isfinite(row.us) and row.us > 0]
    families = sorted({row.model_family for row in rows})
    if len(rows) < MIN_KERNELS or len(families) < 2:
        raise CostModelError(
            f"cost train: needs {MIN_KERNELS} kernels of 2 architectures or more, but got "
            f"{len(rows)} of {len(families)}; measure more with scripts/collect_measurements.py"
        )
    unseen = _Unseen.of(run.peaks, rows, seed=seed, rounds=boosting_rounds)
    last = _Learner.of(run.peaks, rows, seed=seed, rounds=boosting_rounds)
    classes = np.array([class_of(row) for row in last.rows])
    common = {name for name, n in Counter(classes.tolist()).items() if n >= _MIN_OF_A_CLASS}
    helped = unseen.roofline + unseen.added(classes, common)
    is_help = np.mean(np.abs(helped - unseen.wanted)) < np.mean(np.abs(unseen.left))
    trust = {name: unseen.trust(classes == name) if is_help else 0.0 for name in common}
    logs = helped if is_help else unseen.roofline
    off = np.expm1(np.abs(logs - unseen.wanted))
    prior = np.array([sum(map(Roofline(run.peaks).kernel_us, row.parts)) for row in rows])
    prior_off = np.expm1(np.abs(np.log(prior) - unseen.wanted))
    return Trained(
        device=run.device,
        device_family=run.device_family,
        target=run.target,
        threads=run.threads,
        peaks=run.peaks,
        rates=last.rates.numbers(),
        trees=tuple(json.loads(bytes(b.save_raw("json"))) for b in last.boosters),
        ranges=_ranges(last.rows, classes.tolist(), common),
        errors={name: float(np.quantile(off[classes == name], _SHARE)) for name in common},
        trust=trust,
        prior_error=float(np.quantile(prior_off, _SHARE)),
        element_bytes=tuple(sorted({row.element_bytes for row in last.rows})),
        trained_on=len(rows),
        models=tuple(sorted({row.model for row in rows})),
        metrics={
            **_metrics("unseen", rows, logs),
            **_metrics("refitted", rows, unseen.roofline),
            **_metrics("prior", rows, np.log(prior)),
        },
    )


@dataclass(frozen=True)
class _Learner:
    """Rates, and trees that correct the roofline under them."""

    peaks: Peaks
    rates: Rates
    rows: Sequence[Features]
    boosters: Sequence[Any]

    @classmethod
    def of(cls, peaks: Peaks, rows: Sequence[Example], *, seed: int, rounds: int) -> _Learner:
        rates = fitting.fit(peaks, [row.parts for row in rows], [row.us for row in rows])
        features = [row.row(peaks, rates) for row in rows]
        table = np.array([row.vector() for row in features])
        wanted = np.array(
            [math.log(row.us / f.prior_us) for row, f in zip(rows, features, strict=True)]
        )
        weights = np.array([1.0 / (_NOISE + min(row.noise, 1.0)) for row in rows])
        boosters = [
            _boost(table, wanted, weights, seed=seed + i, rounds=rounds) for i in range(_ENSEMBLE)
        ]
        return cls(peaks, rates, features, boosters)

    def correction(self, features: Sequence[Features]) -> Array:
        """Return what the trees add to the logarithm of the roofline's time."""
        table = np.array([row.vector() for row in features])
        logs = [booster.inplace_predict(table) for booster in self.boosters]
        return np.asarray(np.mean(logs, axis=0), float)


@dataclass(frozen=True)
class _Unseen:
    """What is predicted of each kernel by what learned without its architecture, as logarithms.

    The rates of the roofline, too, were fitted without it: so it says what trees add to a
    roofline that knows as little.

    Parameters
    ----------
    fold : array of int
        Which part was left out for a kernel.
    roofline : array
        By the fitted roofline.
    correction : array
        What the trees add.
    wanted : array
        What was measured.
    """

    fold: npt.NDArray[np.int_]
    roofline: Array
    correction: Array
    wanted: Array

    @classmethod
    def of(cls, peaks: Peaks, rows: Sequence[Example], *, seed: int, rounds: int) -> _Unseen:
        count, roofline, correction = np.zeros(len(rows), int), *np.zeros((2, len(rows)))
        for number, fold in enumerate(_folds(rows)):
            others = [row for i, row in enumerate(rows) if i not in set(fold)]
            learner = _Learner.of(peaks, others, seed=seed, rounds=rounds)
            features = [rows[i].row(peaks, learner.rates) for i in fold]
            count[fold] = number
            roofline[fold] = np.log([row.prior_us for row in features])
            correction[fold] = learner.correction(features)
        return cls(count, roofline, correction, np.log([row.us for row in rows]))

    @property
    def left(self) -> Array:
        """What the roofline misses."""
        return self.wanted - self.roofline

    def trust(self, own: npt.NDArray[np.bool_]) -> float:
        """Return the share of the correction that is nearest to what was measured."""
        left, added = self.left[own], self.correction[own]
        errors = {share: float(np.mean(np.abs(left - share * added))) for share in _SHARES}
        return min(errors, key=lambda share: errors[share])

    def added(self, classes: npt.NDArray[np.str_], common: Collection[str]) -> Array:
        """Return the correction by the shares that serve best in the other parts."""
        found = np.zeros(len(self.wanted))
        for number in range(1 + int(self.fold.max(initial=0))):
            for name in common:
                own = (classes == name) & (self.fold == number)
                others = (classes == name) & (self.fold != number)
                if own.any() and others.any():
                    found[own] = self.trust(others) * self.correction[own]
        return found


def _metrics(name: str, rows: Sequence[Example], logs: Array) -> dict[str, float]:
    """Return the median error, and the rank correlation within models of some size."""
    wanted = np.log([row.us for row in rows])
    of: defaultdict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        of[row.model].append(i)
    ranks = [
        float(spearmanr(wanted[own], logs[own]).statistic)
        for own in of.values()
        if len(own) >= _MIN_OF_A_MODEL
    ]
    return {
        f"{name}_median_error": float(np.median(np.abs(np.expm1(logs - wanted)))),
        f"{name}_rank_correlation": statistics.mean(ranks) if ranks else 0.0,
    }


def _boost(table: Array, wanted: Array, weights: Array, *, seed: int, rounds: int) -> Any:
    library = xgboost()
    constraints = [int(name in _SLOWER) for name in Features.names()]
    matrix = library.DMatrix(table, label=wanted, weight=weights)
    parameters = {**_PARAMETERS, "seed": seed, "monotone_constraints": tuple(constraints)}
    return library.train(parameters, matrix, num_boost_round=rounds)


def _folds(rows: Sequence[Example]) -> list[list[int]]:
    """Part kernels so that no architecture is in two parts, the parts about equally large.

    Generated graphs resemble one another least, so each counts as its own.
    """
    of: defaultdict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        of[row.model if row.model_family == "generated" else row.model_family].append(i)
    folds: list[list[int]] = [[] for _ in range(min(_FOLDS, len(of)))]
    for name in sorted(of, key=lambda name: (-len(of[name]), name)):
        min(folds, key=len).extend(of[name])
    return folds


def _ranges(
    rows: Sequence[Features], classes: Sequence[str], common: Collection[str]
) -> Mapping[str, Mapping[str, list[float]]]:
    ranges: dict[str, dict[str, list[float]]] = {}
    for name in sorted(common):
        own = [row for row, of in zip(rows, classes, strict=True) if of == name]
        ranges[name] = {}
        for size in SIZES:
            values = [log_size(getattr(row, size)) for row in own]
            ranges[name][size] = [min(values), max(values)]
    return ranges
