"""Keep a store in order: check it, thin it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tvmfuse.errors import StoreError
from tvmfuse.store import learning, pages, rows, schema
from tvmfuse.store.records import TIMED
from tvmfuse.store.store import Store


@dataclass(frozen=True)
class Health:
    """What a check found.

    Parameters
    ----------
    n_records, n_workloads : int
        Whole ones.
    n_damaged : int
        Records whose checksum says that they are not what was committed.
    faults : tuple of str
        What else is wrong, one sentence each.
    n_measurements, n_models : int
        Whole measured fusions and cost models.
    """

    n_records: int
    n_workloads: int
    n_damaged: int
    faults: tuple[str, ...] = ()
    n_measurements: int = 0
    n_models: int = 0

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.n_damaged and not self.faults


def check(store: Store) -> Health:
    """Read all of a store, and compare it with its checksums."""
    faults = list(_file_faults(store))
    whole: Counter[str] = Counter()
    damaged: Counter[str] = Counter()
    kinds: dict[str, Callable[[], Iterable[object]]] = {
        "workloads": lambda: _each(store, schema.workloads, rows.to_workload),
        "devices": lambda: _each(store, schema.devices, rows.to_device),
        "sessions": lambda: _each(store, schema.sessions, rows.to_session),
        "records": store.records,
        "measured fusions": lambda: learning.measurements(store),
        "cost models": lambda: learning.cost_models(store),
    }
    for kind, read in kinds.items():
        try:
            for each in read():
                whole[kind] += each is not None
                damaged[kind] += each is None
        except StoreError as error:
            faults.append(str(error).removeprefix("store: "))
    n_damaged = damaged.pop("records", 0)
    faults += [f"{number} {kind} are damaged" for kind, number in damaged.items() if number]
    return Health(
        whole["records"],
        whole["workloads"],
        n_damaged,
        tuple(faults),
        whole["measured fusions"],
        whole["cost models"],
    )


def prune(store: Store, *, keep: int, drop_failures: bool = False) -> int:
    """Delete all but the fastest records of each workload, device, target, family and status.

    Parameters
    ----------
    store : Store
        The store.
    keep : int
        How many of each stay.
    drop_failures : bool
        Whether trials that failed go too; they teach a search what not to try again.

    Returns
    -------
    int
        How many records were deleted.
    """
    records = schema.records
    group = [
        records.c[name] for name in ("workload_id", "device_id", "target_id", "family", "status")
    ]
    place = sa.func.row_number().over(
        partition_by=group, order_by=(records.c.median_us, records.c.id)
    )
    ranked = sa.select(records.c.id, place.label("place")).where(records.c.status.in_(TIMED))
    ranks = ranked.subquery()
    surplus = sa.select(ranks.c.id).where(ranks.c.place > keep)
    chosen: sa.ColumnElement[bool] = records.c.id.in_(surplus)
    if drop_failures:
        chosen |= records.c.status.not_in(TIMED)
    return store.backend.write(
        lambda connection: connection.execute(sa.delete(records).where(chosen)).rowcount
    )


def _file_faults(store: Store) -> list[str]:
    if store.backend.path is None:
        return []

    def work(connection: sa.Connection) -> list[str]:
        said = connection.exec_driver_sql("PRAGMA integrity_check(10)").scalars().all()
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        faults = [str(line).replace("\n", " ") for line in said if line != "ok"]
        return faults + ([f"{len(broken)} rows refer to what is missing"] if broken else [])

    try:
        return store.backend.read(work)
    except StoreError as error:
        return [str(error).removeprefix("store: ")]


def _each(store: Store, table: sa.Table, to_value: Callable[[Any], object]) -> Iterator[object]:
    """Yield what the rows of a table say; None stands for a damaged one."""
    for row in pages.rows(store.backend, sa.select(table), table.c.id):
        yield None if row is None else to_value(row)
