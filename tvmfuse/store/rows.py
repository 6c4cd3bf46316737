"""Between rows of the tables and the plain data of :mod:`tvmfuse.store.records`."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tvmfuse.errors import StoreError
from tvmfuse.store import schema
from tvmfuse.store.records import Device, Record, Session, TargetKey, Workload, to_text
from tvmfuse.store.versions import Versions

# What reading damaged text or numbers may raise.
DAMAGED = (AttributeError, KeyError, TypeError, ValueError, StoreError)

_r, _w, _d, _t, _s = (
    schema.records,
    schema.workloads,
    schema.devices,
    schema.targets,
    schema.sessions,
)

RECORDS: sa.Select[Any] = sa.select(
    _r,
    _w.c.key.label("workload_key"),
    _d.c.kind.label("device_kind"),
    _d.c.family.label("device_family"),
    _d.c.name.label("device_name"),
    _d.c.details.label("device_details"),
    _t.c.attrs.label("target_attrs"),
    _s.c.uid.label("session_uid"),
).select_from(
    # A damaged reference leaves a record without its workload, and does not hide it.
    _r.outerjoin(_w).outerjoin(_d).outerjoin(_t).outerjoin(_s)
)
"""All records with all that they refer to."""


def insert_new(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its unique name is there; return whether it was new."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    done = connection.execute(insert(table).values(**values).on_conflict_do_nothing())
    return done.rowcount == 1


class References:
    """The ids, in one transaction, of what rows refer to; devices and targets are added.

    Parameters
    ----------
    connection : sqlalchemy.Connection
        The transaction.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._ids: dict[tuple[str, str], int] = {}

    def workload(self, key: str) -> int:
        """Return the id of a workload.

        Raises
        ------
        StoreError
            There is no such workload.
        """
        found = self._id(schema.workloads.c.key, key)
        if found is None:
            raise StoreError(f"store: a record names workload {key}, which was not added")
        return found

    def session(self, uid: str) -> int | None:
        """Return the id of a session; None stands for no session.

        Raises
        ------
        StoreError
            There is no such session.
        """
        found = self._id(schema.sessions.c.uid, uid) if uid else None
        if uid and found is None:
            raise StoreError(f"store: a record names session {uid}, which was not added")
        return found

    def device(self, device: Device) -> int:
        """Return the id of a device."""
        values = {
            "fingerprint": device.fingerprint,
            "kind": device.kind,
            "family": device.family,
            "name": device.name,
            "details": to_text(dict(device.details)),
        }
        return self._id_or_new(schema.devices.c.fingerprint, values)

    def target(self, target: TargetKey) -> int:
        """Return the id of a target."""
        values = {"key": target.key, "kind": target.kind, "attrs": to_text(dict(target.attrs))}
        return self._id_or_new(schema.targets.c.key, values)

    def _id_or_new(self, column: sa.Column[Any], values: Mapping[str, Any]) -> int:
        found = self._id(column, values[column.name])
        if found is None:
            insert_new(self.connection, column.table, values)
            found = self._id(column, values[column.name])
        assert found is not None
        return found

    def _id(self, column: sa.Column[Any], value: str) -> int | None:
        at = (column.table.name, value)
        if at not in self._ids:
            statement = sa.select(column.table.c.id).where(column == value)
            found = self.connection.execute(statement).scalar_one_or_none()
            if found is None:
                return None
            self._ids[at] = int(found)
        return self._ids[at]


def insert_record(record: Record, references: References) -> bool:
    """Insert a record; return whether it was new.

    Raises
    ------
    StoreError
        Its workload or its session was not added.
    """
    values = {
        **record_values(record),
        "workload_id": references.workload(record.workload),
        "device_id": references.device(record.device),
        "target_id": references.target(record.target),
        "session_id": references.session(record.session),
    }
    return insert_new(references.connection, schema.records, values)


def record_values(record: Record) -> dict[str, Any]:
    """Return the row of a record, but for the ids of what it refers to."""
    return {
        "uid": record.uid,
        "family": record.family,
        "family_version": record.family_version,
        "decisions": None if record.decisions is None else to_text(dict(record.decisions)),
        "trace": None if record.trace is None else to_text(record.trace),
        "status": record.status,
        "reason": record.reason,
        "times_us": to_text(list(record.times_us)),
        "mean_us": record.mean_us,
        "median_us": record.median_us,
        "spread_us": record.spread_us,
        "accumulation": record.accumulation,
        "tvm_version": record.versions.tvm,
        "ffi_version": record.versions.ffi,
        "tvmfuse_version": record.versions.tvmfuse,
        "created_at": record.created_at,
        "checksum": record.checksum,
    }


def to_record(row: Any) -> Record | None:
    """Return the record of a row of :data:`RECORDS`, or None where it is damaged."""
    try:
        record = Record(
            workload=row.workload_key,
            device=_device(row, "device_"),
            target=TargetKey(json.loads(row.target_attrs)),
            status=row.status,
            times_us=tuple(json.loads(row.times_us)),
            reason=row.reason,
            family=row.family,
            family_version=row.family_version,
            decisions=None if row.decisions is None else json.loads(row.decisions),
            trace=None if row.trace is None else json.loads(row.trace),
            accumulation=row.accumulation,
            session=row.session_uid or "",
            versions=Versions(row.tvm_version, row.ffi_version, row.tvmfuse_version),
            uid=row.uid,
            created_at=row.created_at,
        )
        is_whole = record.checksum == row.checksum and record.median_us == row.median_us
    except DAMAGED:
        return None
    return record if is_whole else None


def to_device(row: Any) -> Device | None:
    """Return the device of a row of its table, or None where it is damaged."""
    try:
        device = _device(row, "")
        return device if device.fingerprint == row.fingerprint else None
    except DAMAGED:
        return None


def workload_values(workload: Workload) -> dict[str, Any]:
    """Return the row of a workload."""
    return {
        "key": workload.key,
        "bucket": workload.bucket,
        "module": zlib.compress(workload.module.encode()),
        "content_hash": workload.content_hash,
        "tvm_version": workload.tvm_version,
        "summary": workload.summary,
    }


def to_workload(row: Any) -> Workload | None:
    """Return the workload of a row of its table, or None where it is damaged."""
    try:
        text = zlib.decompress(row.module)
        if hashlib.sha256(text).hexdigest() != row.content_hash:
            return None
        return Workload(row.key, text.decode(), row.tvm_version, row.summary)
    except (zlib.error, *DAMAGED):
        return None


def session_values(session: Session) -> dict[str, Any]:
    """Return the row of a session."""
    return {
        "uid": session.uid,
        "command": session.command,
        "versions": to_text(asdict(session.versions)),
        "host": session.host,
        "seed": session.seed,
        "settings": to_text(dict(session.settings)),
        "started_at": session.started_at,
        "ended_at": session.ended_at,
    }


def to_session(row: Any) -> Session | None:
    """Return the session of a row of its table, or None where it is damaged."""
    try:
        return Session(
            command=row.command,
            host=row.host,
            seed=row.seed,
            settings=json.loads(row.settings),
            versions=Versions(**json.loads(row.versions)),
            uid=row.uid,
            started_at=row.started_at,
            ended_at=row.ended_at,
        )
    except DAMAGED:
        return None


def _device(row: Any, prefix: str) -> Device:
    kind, family, name, details = (
        getattr(row, f"{prefix}{field}") for field in ("kind", "family", "name", "details")
    )
    return Device(kind, family, name, json.loads(details))
