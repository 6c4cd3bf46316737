"""What is asked of the tables: records by what they are, and the fastest ones of a device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tvmfuse.store import rows, schema
from tvmfuse.store.lookup import Query


@dataclass(frozen=True)
class Filter:
    """Which records are listed; None means any.

    Parameters
    ----------
    workload : str, optional
        Beginning of the workload's key.
    key : str, optional
        The whole of it, which is found by the index.
    kind, device_family : str, optional
        Kind and family of the device.
    family : str, optional
        Kernel family.
    status : str, optional
        "ok", or how it failed.
    device : str, optional
        Fingerprint of the device.
    target : str, optional
        Key of the target.
    has_trace : bool
        Only records that TVM can replay.
    """

    workload: str | None = None
    key: str | None = None
    kind: str | None = None
    device_family: str | None = None
    family: str | None = None
    status: str | None = None
    device: str | None = None
    target: str | None = None
    has_trace: bool = False

    def clauses(self) -> list[sa.ColumnElement[bool]]:
        """Return what a row must fulfil."""
        columns = {
            "kind": schema.devices.c.kind,
            "device_family": schema.devices.c.family,
            "family": schema.records.c.family,
            "status": schema.records.c.status,
            "target": schema.targets.c.key,
        }
        found = [
            column == getattr(self, name)
            for name, column in columns.items()
            if getattr(self, name) is not None
        ]
        if self.workload:
            found.append(schema.workloads.c.key.startswith(self.workload, autoescape=True))
        if self.key is not None:
            one = sa.select(schema.workloads.c.id).where(schema.workloads.c.key == self.key)
            found.append(schema.records.c.workload_id == one.scalar_subquery())
        if self.device is not None:
            its_print = schema.devices.c.fingerprint == self.device
            one = sa.select(schema.devices.c.id).where(its_print)
            found.append(schema.records.c.device_id == one.scalar_subquery())
        if self.has_trace:
            found.append(schema.records.c.trace.is_not(None))
        return found


def ranked(query: Query, *, any_of_family: bool, limit: int) -> sa.Select[Any]:
    """Return the query for the fastest records, best first."""
    shape = (query.family is not None, query.accumulation is not None, query.has_trace)
    statement = _ranked(any_of_family, *shape)
    return statement.limit(limit).params(
        workload=query.workload,
        kind=query.device.kind,
        device_family=query.device.family,
        device=query.device.fingerprint,
        target=query.target.key,
        family=query.family,
        accumulation=query.accumulation,
    )


@functools.cache  # making it takes as long as running it
def _ranked(
    any_of_family: bool,  # noqa: FBT001 - what tells one statement from another
    has_family: bool,  # noqa: FBT001
    has_accumulation: bool,  # noqa: FBT001
    has_trace: bool,  # noqa: FBT001
) -> sa.Select[Any]:
    # Ids by sub-queries, so that the index of the best records serves whatever is asked.
    records, devices, targets = schema.records.c, schema.devices.c, schema.targets.c
    of_workload = schema.workloads.c.key == sa.bindparam("workload")
    workload = sa.select(schema.workloads.c.id).where(of_workload).scalar_subquery()
    statement = rows.RECORDS.where(records.workload_id == workload, records.status == "ok")
    if any_of_family:
        same = devices.kind == sa.bindparam("kind")
        same &= devices.family == sa.bindparam("device_family")
        statement = statement.where(records.device_id.in_(sa.select(devices.id).where(same)))
    else:
        device = sa.select(devices.id).where(devices.fingerprint == sa.bindparam("device"))
        target = sa.select(targets.id).where(targets.key == sa.bindparam("target"))
        statement = statement.where(
            records.device_id == device.scalar_subquery(),
            records.target_id == target.scalar_subquery(),
        )
    if has_family:
        statement = statement.where(records.family == sa.bindparam("family"))
    if has_accumulation:
        statement = statement.where(records.accumulation == sa.bindparam("accumulation"))
    if has_trace:
        statement = statement.where(records.trace.is_not(None))
    return statement.order_by(records.median_us, records.id)
