"""Train the learned cost model, and hold it against what it has not seen."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from tvmfuse.cost import chained, extraction, fitting
from tvmfuse.cost.data import Measurements, Run
from tvmfuse.cost.features import Features
from tvmfuse.cost.kernel import Kernel
from tvmfuse.cost.learned import xgboost
from tvmfuse.cost.rates import Rates
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import SIZES, Trained, class_of, log_size
from tvmfuse.errors import CostModelError
from tvmfuse.plan import OpGraph, Peaks

Array = npt.NDArray[np.float64]

MIN_KERNELS = 100  # below that the prior is the better guess
_FOLDS = 5
_SHARE = 0.8  # of the errors lie within the band
_MIN_OF_A_CLASS = 8  # of a rarer kind the model does not claim to know anything

_MIN_OF_A_MODEL = 30  # to say how well its kernels are ranked
_NOISE = 0.05  # that no measurement is free of

_ENSEMBLE = 3
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the correction; few measurements mislead
_ROUNDS = 200
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 3,
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


@dataclass(frozen=True)
class Example:
    """One kernel to learn from.

    Parameters
    ----------
    model, model_family : str
        Where it was measured.
    graph : OpGraph
        Its operators.
    parts : tuple of Kernel
        Its work, part by part where several kernels were joined.
    is_tuned : bool
        Whether a record gives its schedule.
    us : float
        Its run time, in microseconds: the median over the plans that it was in.
    noise : float
        Spread of its run time, as a share.
    """

    model: str
    model_family: str
    graph: OpGraph
    parts: tuple[Kernel, ...]
    is_tuned: bool
    us: float
    noise: float

    def row(self, peaks: Peaks, rates: Rates) -> Features:
        """Return its features, by a roofline of some rates."""
        return extraction.extract(
            self.graph, self.parts, peaks, rates=rates, is_tuned=self.is_tuned
        )


def examples(measured: Iterable[Measurements]) -> list[Example]:
    """Return the kernels of some runs, equal ones of a model as one.

    Raises
    ------
    CostModelError
        They are of several devices, targets or numbers of threads.
    """
    runs = list(measured)
    devices = {(r.run.device, r.run.target, r.run.threads) for r in runs}
    if len(devices) > 1:
        raise CostModelError(
            f"cost train: measurements must be of one device, target and number of threads, but "
            f"are of {', '.join(' '.join(map(str, d)) for d in sorted(devices))}"
        )
    times: defaultdict[tuple[str, str, str, str, OpGraph], list[tuple[float, float]]]
    times = defaultdict(list)
    for found in runs:
        for k in found.kernels:
            graph = _normal(k.graph)
            key = (k.model, k.model_family, k.family, k.schedule, graph)
            times[key].append((k.call_us, k.spread_us))
    found_examples = []
    for (model, family, kernel_family, schedule, graph), taken in times.items():
        parts = chained.work(graph, family=kernel_family)
        if not parts:
            continue
        us = statistics.median(us for us, _ in taken)
        noise = statistics.median(spread / us for us, spread in taken)
        is_tuned = schedule == "tuned"
        found_examples.append(Example(model, family, graph, parts, is_tuned, us, noise))
    return found_examples


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
    classes = [class_of(row) for row in last.rows]
    common = {name for name, n in Counter(classes).items() if n >= _MIN_OF_A_CLASS}
    trust = {name: unseen.trust([c == name for c in classes]) for name in common}
    share = np.array([trust.get(name, 0.0) for name in classes])
    off = np.expm1(np.abs(unseen.roofline + share * unseen.correction - unseen.wanted))
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
        ranges=_ranges(last.rows, classes, common),
        errors={
            name: float(np.quantile(off[[c == name for c in classes]], _SHARE)) for name in common
        },
        trust=trust,
        prior_error=float(np.quantile(prior_off, _SHARE)),
        element_bytes=tuple(sorted({row.element_bytes for row in last.rows})),
        trained_on=len(rows),
        models=tuple(sorted({row.model for row in rows})),
        metrics={
            **_metrics("unseen", rows, unseen.roofline + share * unseen.correction),
            **_metrics("calibrated", rows, unseen.roofline),
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


@dataclass(frozen=True)
class _Unseen:
    """What is predicted of each kernel by what learned without its architecture, as logarithms.

    Parameters
    ----------
    roofline : array
        By the fitted roofline.
    correction : array
        What the trees add.
    wanted : array
        What was measured.
    """

    roofline: Array
    correction: Array
    wanted: Array

    @classmethod
    def of(cls, peaks: Peaks, rows: Sequence[Example], *, seed: int, rounds: int) -> _Unseen:
        roofline, correction = np.zeros(len(rows)), np.zeros(len(rows))
        for fold in _folds(rows):
            others = [row for i, row in enumerate(rows) if i not in set(fold)]
            learner = _Learner.of(peaks, others, seed=seed, rounds=rounds)
            features = [rows[i].row(peaks, learner.rates) for i in fold]
            table = np.array([row.vector() for row in features])
            roofline[fold] = np.log([row.prior_us for row in features])
            correction[fold] = np.mean([b.inplace_predict(table) for b in learner.boosters], axis=0)
        return cls(roofline, correction, np.log([row.us for row in rows]))

    def trust(self, own: Sequence[bool]) -> float:
        """Return the share of the correction that is nearest to what was measured."""
        left, added = (self.wanted - self.roofline)[own], self.correction[own]
        errors = {share: float(np.mean(np.abs(left - share * added))) for share in _SHARES}
        return min(errors, key=lambda share: errors[share])


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


def split(
    measured: Iterable[Measurements], held_out: Collection[str]
) -> tuple[list[Measurements], list[Measurements]]:
    """Part measurements into those to learn from and those of architectures held out."""
    seen: list[Measurements] = []
    unseen: list[Measurements] = []
    for found in measured:
        for side, is_held_out in ((seen, False), (unseen, True)):
            kernels = [k for k in found.kernels if (k.model_family in held_out) == is_held_out]
            plans = [p for p in found.plans if (p.model_family in held_out) == is_held_out]
            side.append(Measurements(found.run, tuple(kernels), tuple(plans)))
    return seen, unseen


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


def _normal(graph: OpGraph) -> OpGraph:
    """Return a graph without what tells equal kernels apart: places and labels."""
    ops = tuple(
        type(op)(op.name, op.kind, op.inputs, op.outputs, op.flops, i)
        for i, op in enumerate(graph.ops)
    )
    return OpGraph(graph.tensors, ops, graph.inputs, graph.outputs)
