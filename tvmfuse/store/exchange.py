"""Move what one store holds into another: records, measured fusions, cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from tvmfuse.errors import StoreError
from tvmfuse.store import learning
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.records import Record, Session, Workload
from tvmfuse.store.store import Store

_BATCH = 500

Item = Workload | Session | Record | FusionMeasurement | CostModelFile
IsSame = Callable[[str, str], bool]
T = TypeVar("T")


@dataclass(frozen=True)
class Taken:
    """What became of what was brought in.

    Parameters
    ----------
    n_new, n_known : int
        Records that were added, and that were there already.
    faults : tuple of str
        One sentence for all that was left out.
    n_measurements, n_models : int
        Measured fusions and cost models that were added.
    """

    n_new: int = 0
    n_known: int = 0
    faults: tuple[str, ...] = ()
    n_measurements: int = 0
    n_models: int = 0


def items(store: Store) -> Iterator[Item | str]:
    """Yield all that a store holds, each after the workload and the session that it names.

    Of a damaged store all that is whole comes out, and a sentence for what is not.
    """
    sessions = _sessions(store)
    workloads: set[str] = set()
    parts: dict[str, Iterator[Record | FusionMeasurement | CostModelFile | None]] = {
        "records": store.records(),
        "measured fusions": learning.measurements(store),
        "cost models": learning.cost_models(store),
    }
    for what, found in parts.items():
        n_damaged = 0
        try:
            for each in found:
                if each is None:
                    n_damaged += 1
                    continue
                if isinstance(each, Record) and each.workload not in workloads:
                    workloads.add(each.workload)
                    yield _workload(store, each.workload)
                if not isinstance(each, CostModelFile) and each.session in sessions:
                    yield sessions.pop(each.session)
                yield each
        except StoreError as error:
            yield str(error)
        if n_damaged:
            yield f"{n_damaged} {what} of {store.name} are damaged, and were left out"


def take(store: Store, given: Iterable[Item | str], is_same: IsSame | None = None) -> Taken:
    """Add items to a store; a sentence among them is a fault, and is handed on.

    What the store has is left as it is, so that taking twice adds nothing.

    Parameters
    ----------
    store : Store
        Takes them.
    given : iterable of items
        What :func:`items` or :func:`jsonl.read` yields.
    is_same : callable, optional
        Says whether two modules are structurally equal, and is asked only of unequal texts.
        Without it equal keys are taken for equal workloads.

    Raises
    ------
    StoreError
        The store cannot be written to.
    """
    faults: list[str] = []
    sessions: set[str] = set()
    workloads: dict[str, str] = {}  # keys of one bucket are numbered anew in each store
    records = _Batch[Record](lambda batch: store.commit(*batch))
    measured = _Batch[FusionMeasurement](partial(learning.add_measurements, store))
    n_models = 0
    for item in given:
        match item:
            case str():
                faults.append(item)
            case Workload():
                workloads[item.key] = store.add_workload(item, is_same)
            case Session():
                store.add_session(item)
                sessions.add(item.uid)
            case Record() if item.workload not in workloads:
                faults.append(f"record {item.uid} was left out: its workload is missing")
            case Record():
                session = item.session if item.session in sessions else ""
                records.add(replace(item, workload=workloads[item.workload], session=session))
            case FusionMeasurement():
                session = item.session if item.session in sessions else ""
                measured.add(replace(item, session=session))
            case CostModelFile():
                n_models += learning.add_cost_model(store, item)
    records.commit()
    measured.commit()
    n_known = records.n_all - records.n_new
    return Taken(records.n_new, n_known, tuple(faults), measured.n_new, n_models)


def merge(source: Store, into: Store, is_same: IsSame | None = None) -> Taken:
    """Add all that one store holds to another, see :func:`take`."""
    return take(into, items(source), is_same)


class _Batch(Generic[T]):
    """Things that are committed many at a time, since a transaction for each takes long.

    Parameters
    ----------
    work : callable
        Commits some of them, and returns how many were new.
    """

    def __init__(self, work: Callable[[Sequence[T]], int]) -> None:
        self.work = work
        self.waiting: list[T] = []
        self.n_all = self.n_new = 0

    def add(self, each: T) -> None:
        """Add one."""
        self.waiting.append(each)
        self.n_all += 1
        if len(self.waiting) == _BATCH:
            self.commit()

    def commit(self) -> None:
        """Commit all that wait."""
        if self.waiting:
            self.n_new += self.work(self.waiting)
            self.waiting.clear()


def _sessions(store: Store) -> dict[str, Session]:
    try:
        return {session.uid: session for session in store.sessions()}
    except StoreError:  # records are worth more than their provenance
        return {}


def _workload(store: Store, key: str) -> Workload | str:
    try:
        found = store.workload(key)
    except StoreError as error:
        return str(error)
    return f"workload {key} is damaged; its records were left out" if found is None else found
