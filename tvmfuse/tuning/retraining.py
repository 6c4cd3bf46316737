"""Let the cost model of a device learn from what its tuning sessions measure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tvmfuse.cost import examples, judging, kernel, shipped, training
from tvmfuse.cost.data import Measurements
from tvmfuse.errors import CostModelError, TvmFuseError
from tvmfuse.frontend import Model
from tvmfuse.store.location import locate
from tvmfuse.targets import Target
from tvmfuse.tuning import cost_models, variants
from tvmfuse.tuning.observing import observe
from tvmfuse.tuning.records import kernel_records

LEAST_NEW = 20  # kernels that training again is worth
TIMING_S = 15.0
MOST_KERNELS = 1500  # the newest; training on so many takes about 15 s
MOST_PREPARED_S = 30.0  # building under two plans takes some twice as long


def after_tuning(
    model: Model,
    target: Target,
    *,
    database: str | None,
    command: str,
    prepared_s: float = 0.0,
    seconds: float = TIMING_S,
) -> str:
    """Time a tuned model's kernels, keep the times, and train on all that there are.

    What goes wrong costs nothing but the lesson.

    Parameters
    ----------
    model : Model
        It has been tuned.
    target : Target
        This machine.
    database : str, optional
        The tuning store; the one in use where not given.
    command : str
        Who asks.
    prepared_s : float
        How long preparing it took before its first kernel was tried; a model that takes
        long is not built again.
    seconds : float
        How long kernels are timed.

    Returns
    -------
    str
        What was learned, or why nothing, in a line.
    """
    if prepared_s > MOST_PREPARED_S:
        return (
            f"the cost model has learned nothing: preparing {model.name} took {prepared_s:.0f} s, "
            f"and what takes over {MOST_PREPARED_S:.0f} s is not built again to time its kernels"
        )
    place = locate(database).database
    try:
        chosen = cost_models.resolve(cost_models.LEARNED, target, database=place)
        with kernel_records(place, target) as records:
            measured = observe(
                model, target, cost_model=chosen.model, records=records, seconds=seconds
            )
        cost_models.record(place, target, [measured], command)
        return retrain(place, target)
    except (TvmFuseError, *variants.FAILURES) as error:
        return f"the cost model has learned nothing: {str(error).partition(chr(10))[0]}"


def retrain(database: str, target: Target, *, least_new: int = LEAST_NEW) -> str:
    """Train on what a store has of a device, where enough is new, and keep what is better.

    Better is what is nearer to the measured times of architectures that it was trained
    without than the roofline, and than the model that comes with tvmfuse for the family.

    Returns
    -------
    str
        What was done, in a line.

    Raises
    ------
    CostModelError
        XGBoost is missing.
    """
    found = cost_models.measured(database, target)
    rows = examples.of(found)
    n_models = len({row.model_family for row in rows})
    if len(rows) < training.MIN_KERNELS or n_models < 2:
        return (
            f"the cost model of this device learns from {training.MIN_KERNELS} kernels of 2 "
            f"models on; so far {len(rows)} of {n_models} are measured"
        )
    n_new = len(rows) - _learned_from(database, target)
    if n_new < least_new:
        return (
            f"the cost model of this device has learned from all but {max(0, n_new)} of "
            f"{len(rows)} kernels; it learns again from {least_new} on"
        )
    rows = rows[-MOST_KERNELS:]
    trained = training.train(found[0].run, rows)
    error, rival_error = trained.metrics["unseen_median_error"], _rival_error(found, target)
    if not trained.is_better or error > rival_error:
        return (
            f"a cost model learned from {len(rows)} kernels of {n_models} models is not kept: it "
            f"is off by {_percent(error)} on models unseen, what is in use by "
            f"{_percent(rival_error)}"
        )
    cost_models.keep(database, target, trained)
    return (
        f"the cost model of this device has learned from {len(rows)} kernels of {n_models} models: "
        f"off by {_percent(error)} on models unseen, the roofline by "
        f"{_percent(trained.metrics['prior_median_error'])}; plans may change, which --resume tunes"
    )


def _learned_from(database: str, target: Target) -> int:
    """Return how many kernels the model in a store has learned from; 0 where it is damaged."""
    try:
        model = cost_models.of_store(database, target)
    except CostModelError:
        return 0
    return model.trained_on if model else 0


def _rival_error(found: Sequence[Measurements], target: Target) -> float:
    """Return the median error of what comes with tvmfuse: a model, or the roofline alone."""
    model = shipped.best(target.cost_family, target.peaks).model
    return statistics.median(
        abs(judging.predicted_us(model, each) / each.call_us - 1)
        for measured in found
        for each in measured.kernels
        if kernel.together(each.graph)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
