"""A roofline whose rates were fitted to measured kernels, and a correction learned on top.

Gradient-boosted trees (XGBoost) predict log(measured / roofline) of one kernel, which puts
fused and unfused kernels on one scale of microseconds. Several are averaged; how far such
a model is off on architectures that it was trained without tells how far off to expect it.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmfuse.cost import chained, extraction, kernel
from tvmfuse.cost.alike import once
from tvmfuse.cost.features import Features
from tvmfuse.cost.rates import Rates
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import Trained
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, OpGraph, Peaks, RunTime

Array = npt.NDArray[np.float64]


def xgboost() -> Any:
    """Return the library.

    Raises
    ------
    CostModelError
        It is not installed.
    """
    try:
        return importlib.import_module("xgboost")
    except ImportError as error:
        raise CostModelError(
            "cost model: the learned one needs xgboost, which is not installed; "
            "pip install xgboost, or use --cost-model prior"
        ) from error


@dataclass(frozen=True)
class Prediction:
    """The run time of one kernel.

    Parameters
    ----------
    us : float
        In microseconds.
    error : float
        How far it may be off, up or down as a share, in four cases of five.
    is_known : bool
        Whether it is like what the model has learned from; else it is the prior's.
    """

    us: float
    error: float
    is_known: bool

    def times(self, factor: float) -> Prediction:
        """Return the prediction for what takes ``factor`` times as long."""
        return replace(self, us=self.us * factor)


class Learned:
    """A cost model that has learned from measurements.

    Parameters
    ----------
    trained : Trained
        What was learned.
    peaks : Peaks
        The device; what was not measured is taken from the one that it learned on.
    tuned : collection of OpGraph
        Kernels that have records, as :func:`~tvmfuse.cost.kernel.unplaced` gives them; any
        other has the schedule of its family.

    Raises
    ------
    CostModelError
        XGBoost is missing, or cannot read the model.
    """

    def __init__(self, trained: Trained, peaks: Peaks, *, tuned: Collection[OpGraph] = ()) -> None:
        self.trained = trained
        self.tuned = frozenset(tuned)
        self.peaks = peaks if peaks.source == "measured" else trained.peaks
        self.rates = Rates.of(trained.rates)
        self._prior = Roofline(self.peaks, self.rates)
        self._boosters = [_booster(text) for text in trained.trees]

    def predict(self, candidate: Candidate) -> RunTime:
        """Return the run times of one candidate."""
        return self.predict_all([candidate])[0]

    def predict_all(self, candidates: Sequence[Candidate]) -> list[RunTime]:
        """Return the run times of candidates, in order."""
        return once(candidates, self._predict_unlike)

    def _predict_unlike(self, candidates: Sequence[Candidate]) -> list[RunTime]:
        batch = _Batch(self.peaks, self.rates, self.tuned)
        placed = [batch.add(candidate) for candidate in candidates]
        predictions = self.kernels(batch.features)
        return [
            self._run_time(
                candidate,
                [predictions[i].times(factor) for i, factor in fused],
                [predictions[i] for i in apart],
            )
            for candidate, (fused, apart) in zip(candidates, placed, strict=True)
        ]

    def kernels(self, rows: Sequence[Features]) -> list[Prediction]:
        """Return the run time of each kernel.

        Parameters
        ----------
        rows : Sequence[Features]
            The kernels on the device of :attr:`peaks`.
        """
        if not rows:
            return []
        table = np.array([row.vector() for row in rows])
        logs = np.stack([booster.inplace_predict(table) for booster in self._boosters])
        return [
            self._prediction(row, float(log), float(spread))
            for row, log, spread in zip(rows, logs.mean(axis=0), logs.std(axis=0), strict=True)
        ]

    def contributions(self, row: Features) -> dict[str, float]:
        """Return by what factor each feature changes the prior's time (SHAP, averaged)."""
        matrix = xgboost().DMatrix(np.array([row.vector()]))
        parts = np.mean([b.predict(matrix, pred_contribs=True)[0] for b in self._boosters], axis=0)
        return {name: math.exp(part) for name, part in zip(Features.names(), parts, strict=False)}

    def _prediction(self, row: Features, log: float, spread: float) -> Prediction:
        if not self.trained.knows(row):
            return Prediction(row.prior_us, self.trained.prior_error, is_known=False)
        error = self.trained.error(row, spread)
        return Prediction(row.prior_us * self.trained.correction(row, log), error, is_known=True)

    def _run_time(
        self, candidate: Candidate, fused: Sequence[Prediction], apart: Sequence[Prediction]
    ) -> RunTime:
        if not all(prediction.is_known for prediction in (*fused, *apart)):
            # One scale for both sides: the prior's errors partly cancel, a mixture's do not.
            return self._prior.predict(candidate)
        doubt = math.hypot(*(p.us * p.error for p in (*fused, *apart)))
        return RunTime(sum(p.us for p in fused), sum(p.us for p in apart), doubt)


class _Batch:
    """The kernels of many candidates, each operator on its own only once."""

    def __init__(self, peaks: Peaks, rates: Rates, tuned: Collection[OpGraph]) -> None:
        self.features: list[Features] = []
        self._peaks, self._rates, self._tuned = peaks, rates, tuned
        self._singles: dict[tuple[str, int, int], int] = {}

    def add(self, candidate: Candidate) -> tuple[list[tuple[int, float]], list[int]]:
        """Return where the features of a candidate's kernels are, fused and apart.

        What is fused comes with the factor that its predicted time is to be multiplied by.
        """
        graph = candidate.graph
        fused = self._fused(graph, candidate.family)
        apart = [
            self._single(candidate, position)
            for position, op in enumerate(graph.ops)
            if op.kind != "view" and op.binding not in candidate.recomputes
        ]
        return fused, apart

    def _fused(self, graph: OpGraph, family: str) -> list[tuple[int, float]]:
        if family == chained.FAMILY:
            return self._stages(graph)
        parts = kernel.together(graph, family=family)
        return [(self._add(graph, parts), 1.0)] if parts else []

    def _stages(self, graph: OpGraph) -> list[tuple[int, float]]:
        """Take the stages of a chain for kernels, less what the prior says that chaining saves."""
        roofline, found = Roofline(self._peaks, self._rates), []
        for stage, part in zip(chained.stages(graph), chained.together(graph), strict=True):
            (alone,) = kernel.together(stage)
            factor = roofline.kernel_us(part) / roofline.kernel_us(alone)
            found.append((self._add(stage, [alone]), factor))
        return found

    def _single(self, candidate: Candidate, position: int) -> int:
        op = candidate.graph.ops[position]
        key = candidate.function, op.binding, len(op.inputs)
        if key not in self._singles:
            graph = kernel.alone(candidate.graph, op)
            self._singles[key] = self._add(graph, kernel.apart(graph))
        return self._singles[key]

    def _add(self, graph: OpGraph, parts: Sequence[kernel.Kernel]) -> int:
        is_tuned = bool(self._tuned) and kernel.unplaced(graph) in self._tuned
        row = extraction.extract(graph, parts, self._peaks, rates=self._rates, is_tuned=is_tuned)
        self.features.append(row)
        return len(self.features) - 1


def _booster(trees: Any) -> Any:
    library = xgboost()
    booster = library.Booster()
    try:
        booster.load_model(bytearray(json.dumps(trees).encode()))
    except (library.core.XGBoostError, ValueError) as error:
        raise CostModelError(
            f"cost model: xgboost {library.__version__} cannot read its trees: "
            f"{str(error).strip().splitlines()[0]}; train it again with tvmfuse cost train"
        ) from error
    return booster
