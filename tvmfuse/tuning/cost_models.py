"""Which cost model is in use: named, learned from one's own measurements, or shipped."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tvmfuse.cost import data, features, judging, kernel, shipped
from tvmfuse.cost.data import MeasuredKernel, Measurements, Run
from tvmfuse.cost.shipped import Chosen
from tvmfuse.cost.trained import KIND, Trained
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, Group, OpGraph, Peaks, RunTime
from tvmfuse.store import Session, Store, open_store
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.store.learning import (
    add_cost_model,
    add_measurements,
    measurements_of,
    newest_cost_model,
)
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.location import locate
from tvmfuse.targets import Target

LEARNED = "learned"
PRIOR = "prior"


def resolve(name: str, target: Target, *, database: str | None = None) -> Chosen:
    """Return the cost model of a name for a device.

    Parameters
    ----------
    name : str
        ``learned``: the newest of the store in use for exactly this device, else the one
        that comes with tvmfuse for its family. ``prior``: the roofline. Else a file that
        ``tvmfuse cost train`` wrote.
    target : Target
        The device.
    database : str, optional
        The store; the one in use where not given.

    Returns
    -------
    Chosen
        Whatever is wrong with a learned model, the roofline takes its place and the note
        says why.
    """
    if name == PRIOR:
        return shipped.prior(target.peaks, "so it was asked for")
    try:
        own = of_store(database, target) if name == LEARNED else _of_file(Path(name), target)
        if own is not None:
            return shipped.learned(own, target.peaks, tuned=tuned(database, target))
    except CostModelError as error:
        return shipped.prior(target.peaks, str(error))
    return shipped.best(target.cost_family, target.peaks, tuned=tuned(database, target))


def keep(database: str | None, target: Target, trained: Trained) -> None:
    """Put a trained model into the store in use."""
    file = CostModelFile(
        kind=KIND,
        features_version=features.VERSION,
        device=device_of(target),
        content=trained.to_text(),
        trained_on=trained.trained_on,
        metrics=dict(trained.metrics),
    )
    with open_store(locate(database).database) as store:
        add_cost_model(store, file)


def record(database: str, target: Target, measured: Iterable[Measurements], command: str) -> int:
    """Put measured kernels into a store; return how many.

    A group is kept with its time apart, which is that of its operators in the same model
    where all were timed.

    Parameters
    ----------
    database : str
        The store.
    target : Target
        What they were compiled for, on this machine.
    measured : iterable of Measurements
        What was measured.
    command : str
        How.
    """
    count = 0
    with open_store(database) as store:
        for found in measured:
            by_model: defaultdict[tuple[str, str], list[MeasuredKernel]] = defaultdict(list)
            for each in found.kernels:
                by_model[each.model, each.model_family].append(each)
            for (model, family), kernels in by_model.items():
                about = {"model": model, "model_family": family, "run": asdict(found.run)}
                session = Session(command, found.run.device, settings=about)
                rows = list(_rows(kernels, target, session))
                store.add_session(session)
                add_measurements(store, rows)
                count += len(rows)
    return count


def measured(database: str | None, target: Target) -> list[Measurements]:
    """Return the measured kernels of exactly a device that the store in use has.

    All are said to be of the newest run: its name of the device, and its peaks.
    """
    with _store(database) as store:
        if store is None:
            return []
        sessions = {session.uid: session.settings for session in store.sessions()}
        runs: defaultdict[str, list[MeasuredKernel]] = defaultdict(list)
        for each in measurements_of(store, device_of(target)):
            about = sessions.get(each.session, {})
            if "run" in about and target_key(target) == each.target:
                run = json.dumps(about["run"], sort_keys=True)
                runs[run].append(_kernel(each, str(about["model"]), str(about["model_family"])))
    newest = _run(json.loads([*runs][-1])) if runs else None
    return [Measurements(newest, tuple(kernels)) for kernels in runs.values()] if newest else []


def tuned(database: str | None, target: Target) -> frozenset[OpGraph]:
    """Return the kernels that were measured with a record's schedule, for exactly a device.

    A compile that reads the same store will find their records.
    """
    with _store(database) as store:
        if store is None:
            return frozenset()
        key = target_key(target)
        return frozenset(
            kernel.unplaced(each.group.candidate.graph)
            for each in measurements_of(store, device_of(target))
            if each.schedule == "tuned" and each.target == key
        )


def _rows(
    kernels: list[MeasuredKernel], target: Target, session: Session
) -> Iterator[FusionMeasurement]:
    """Yield each set of bindings once for each way that it was scheduled."""
    apart = {d.kernel.places[0]: d.apart_us for d in judging.decisions(kernels)}
    taken: defaultdict[tuple[tuple[int, ...], str, str], list[MeasuredKernel]] = defaultdict(list)
    for each in kernels:
        taken[each.places[0], each.family, each.schedule].append(each)
    for (place, family, schedule), own in taken.items():
        fused_us = statistics.median(each.call_us for each in own)
        spread_us = statistics.median(each.spread_us for each in own)
        candidate = Candidate(own[0].pattern, family, "main", place, own[0].graph)
        group = Group(candidate, RunTime(fused_us, apart.get(place, fused_us)))
        key = target_key(target)
        yield FusionMeasurement(
            group, device_of(target), key, session.uid, schedule=schedule, spread_us=spread_us
        )


def _kernel(each: FusionMeasurement, model: str, family: str) -> MeasuredKernel:
    candidate = each.group.candidate
    return MeasuredKernel(
        *(model, family, "store", candidate.pattern, candidate.family),
        *(each.schedule, candidate.graph),
        us=each.group.time.fused_us - data.CALL_US,
        spread_us=each.spread_us,
        calls=1,
        places=(candidate.bindings,),
    )


def _run(row: dict[str, object]) -> Run:
    return Run(**{**row, "peaks": Peaks(**row["peaks"])})  # type: ignore[arg-type]


def _of_file(path: Path, target: Target) -> Trained:
    try:
        trained = Trained.from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CostModelError(f"cost model: {path} cannot be read: {error}") from error
    except CostModelError as error:
        raise CostModelError(f"{path}: {error}") from error
    if target.cost_family and trained.device_family != target.cost_family:
        raise CostModelError(
            f"{path}: cost model: it must be of {target.cost_family}, but has learned on "
            f"{trained.device_family}"
        )
    return trained


def of_store(database: str | None, target: Target) -> Trained | None:
    """Return the newest model of exactly a device that the store in use has, or None.

    Raises
    ------
    CostModelError
        It is damaged.
    """
    with _store(database) as store:
        if store is None:
            return None
        device = device_of(target)
        found = newest_cost_model(store, KIND, features_version=features.VERSION, device=device)
    return None if found is None else Trained.from_text(found.content)


@contextmanager
def _store(database: str | None) -> Iterator[Store | None]:
    """Open the store in use; None where there is none yet."""
    place = locate(database)
    if database is None and not Path(place.database).exists():
        yield None
        return
    with open_store(place.database, create=False) as store:
        yield store
