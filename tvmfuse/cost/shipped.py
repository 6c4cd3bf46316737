"""The cost models that come with tvmfuse, and the best one for a device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tvmfuse.cost.learned import Learned
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import Trained
from tvmfuse.errors import CostModelError
from tvmfuse.plan import CostModel, OpGraph, Peaks


@dataclass(frozen=True)
class Chosen:
    """A cost model, and why it is the one.

    Parameters
    ----------
    model : CostModel
        Predicts times.
    note : str
        What it is, or why it is the prior, in a line.
    """

    model: CostModel
    note: str


def best(family: str, peaks: Peaks, *, tuned: Collection[OpGraph] = ()) -> Chosen:
    """Return the learned model of a device family, or the prior and why.

    Parameters
    ----------
    family : str
        Devices that run the same code alike: ``x86-64-v3``.
    peaks : Peaks
        Of the device.
    tuned : collection of OpGraph
        Kernels that have records.
    """
    try:
        return learned(trained(family), peaks, tuned=tuned)
    except CostModelError as error:
        return prior(peaks, str(error))


def learned(model: Trained, peaks: Peaks, *, tuned: Collection[OpGraph] = ()) -> Chosen:
    """Return a learned model for a device; the prior where that is better on what is unseen.

    Raises
    ------
    CostModelError
        XGBoost is missing or cannot read it.
    """
    if not model.is_better:
        found = model.metrics
        return prior(
            peaks,
            f"what has learned on {model.device} is off by {_percent(found, 'unseen')} on "
            f"architectures that it had not seen, the roofline by {_percent(found, 'prior')}",
        )
    predictor = Learned(model, peaks, tuned=tuned)
    return Chosen(predictor, f"times are predicted by the cost model {model.label}")


def prior(peaks: Peaks, why: str) -> Chosen:
    """Return the roofline, with the reason why nothing better is used."""
    return Chosen(Roofline(peaks), f"times are predicted by the roofline alone: {why}")


def _percent(metrics: Mapping[str, float], of: str) -> str:
    rank = metrics.get(f"{of}_rank_correlation", 0.0)
    return f"{100 * metrics[f'{of}_median_error']:.0f} % (rank correlation {rank:.2f})"


@cache  # what is installed stays
def trained(family: str) -> Trained:
    """Return the model that comes with tvmfuse for a device family.

    Raises
    ------
    CostModelError
        There is none, or its file is damaged.
    """
    if not family:
        raise CostModelError("cost model: none learns on this kind of device")
    file = resources.files("tvmfuse.cost") / "models" / f"{family}.json"
    if not file.is_file():
        raise CostModelError(
            f"cost model: none has learned on {family}; "
            "'tvmfuse tune' measures what one learns from"
        )
    return Trained.from_text(file.read_text(encoding="utf-8"))
