"""What is asked of the tables: records by what they are, and the fastest ones of a device."""

from __future__ import annotations

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
            "device": schema.devices.c.fingerprint,
            "target": schema.targets.c.key,
        }
        found = [
            column == getattr(self, name)
            for name, column in columns.items()
            if getattr(self, name) is not None
        ]
        if self.workload:
            found.append(schema.workloads.c.key.startswith(self.workload, autoescape=True))
        if self.has_trace:
            found.append(schema.records.c.trace.is_not(None))
        return found


def ranked_statement(query: Query, *, any_of_family: bool) -> sa.Select[Any]:
    """Return the query for the fastest records, best first."""
    # Ids by sub-queries, so that the index of the best records serves whatever is asked.
    records, devices, targets = schema.records.c, schema.devices.c, schema.targets.c
    workload = sa.select(schema.workloads.c.id).where(schema.workloads.c.key == query.workload)
    if any_of_family:
        same = (devices.kind == query.device.kind) & (devices.family == query.device.family)
        where: sa.ColumnElement[bool] = records.device_id.in_(sa.select(devices.id).where(same))
    else:
        device = sa.select(devices.id).where(devices.fingerprint == query.device.fingerprint)
        target = sa.select(targets.id).where(targets.key == query.target.key)
        where = (records.device_id == device.scalar_subquery()) & (
            records.target_id == target.scalar_subquery()
        )
    statement = rows.RECORDS.where(
        records.workload_id == workload.scalar_subquery(), where, records.status == "ok"
    )
    if query.family is not None:
        statement = statement.where(records.family == query.family)
    if query.accumulation is not None:
        statement = statement.where(records.accumulation == query.accumulation)
    if query.has_trace:
        statement = statement.where(records.trace.is_not(None))
    return statement.order_by(records.median_us, records.id)
