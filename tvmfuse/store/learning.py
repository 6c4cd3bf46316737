"""Put into a store what the cost model learns from, and what it has learnt; find it there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from tvmfuse.store import pages, rows, schema
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.records import Device, to_text
from tvmfuse.store.store import Store

_DEVICE = tuple(
    schema.devices.c[name].label(f"device_{name}") for name in ("kind", "family", "name", "details")
)


def add_measurements(store: Store, measurements: Sequence[FusionMeasurement]) -> int:
    """Add measured fusions in one transaction; one that is there already is left as it is.

    Returns
    -------
    int
        How many were new.

    Raises
    ------
    StoreError
        The store cannot be written to, or a session was not added.
    """

    def work(connection: sa.Connection) -> int:
        references = rows.References(connection)
        return sum(_insert(each, references) for each in measurements)

    return store.backend.write(work)


def measurements(store: Store, device: Device | None = None) -> Iterator[FusionMeasurement | None]:
    """Yield the measurements of a device, or all, oldest first; None stands for a damaged one."""
    table, targets, sessions = schema.fusion_measurements, schema.targets, schema.sessions
    columns = (*_DEVICE, targets.c.attrs, sessions.c.uid.label("session_uid"))
    joined = table.outerjoin(schema.devices).outerjoin(targets).outerjoin(sessions)
    statement = _of_device(sa.select(table, *columns).select_from(joined), device)
    for row in pages.rows(store.backend, statement, table.c.id):
        yield None if row is None else _measurement(row)


def measurements_of(store: Store, device: Device) -> list[FusionMeasurement]:
    """Return the whole measurements of a device, oldest first."""
    return [each for each in measurements(store, device) if each is not None]


def add_cost_model(store: Store, model: CostModelFile) -> bool:
    """Add a trained model unless it is there; return whether it was new."""

    def work(connection: sa.Connection) -> bool:
        values = {
            "uid": model.uid,
            "kind": model.kind,
            "features_version": model.features_version,
            "device_id": rows.References(connection).device(model.device),
            "content": model.content.encode(),
            "trained_on": model.trained_on,
            "metrics": to_text(dict(model.metrics)),
            "created_at": model.created_at,
            "checksum": model.checksum,
        }
        return rows.insert_new(connection, schema.cost_models, values)

    return store.backend.write(work)


def cost_models(store: Store, device: Device | None = None) -> Iterator[CostModelFile | None]:
    """Yield the models for a device, or all, as they came; None stands for a damaged one."""
    table = schema.cost_models
    joined = table.outerjoin(schema.devices)
    statement = _of_device(sa.select(table, *_DEVICE).select_from(joined), device)
    for row in pages.rows(store.backend, statement, table.c.id):
        yield None if row is None else _cost_model(row)


def newest_cost_model(
    store: Store, kind: str, *, features_version: int, device: Device
) -> CostModelFile | None:
    """Return the whole model for a device that was trained last, or None."""
    table = schema.cost_models
    statement = _of_device(sa.select(table, *_DEVICE).join(schema.devices), device)
    wanted = (table.c.kind == kind, table.c.features_version == features_version)
    # By their dates: a merge may have brought in older ones than one's own.
    ordered = statement.where(*wanted).order_by(table.c.created_at.desc(), table.c.id.desc())
    place = 0
    while there := store.backend.rows(ordered.limit(1).offset(place)):  # models are long
        found = _cost_model(there[0])
        if found is not None:
            return found
        place += 1
    return None


def _of_device(statement: sa.Select[Any], device: Device | None) -> sa.Select[Any]:
    if device is None:
        return statement
    return statement.where(schema.devices.c.fingerprint == device.fingerprint)


def _insert(each: FusionMeasurement, references: rows.References) -> bool:
    values = {
        "uid": each.uid,
        "device_id": references.device(each.device),
        "target_id": references.target(each.target),
        "session_id": references.session(each.session),
        "candidate": each.text,
        "fused_us": each.group.time.fused_us,
        "unfused_us": each.group.time.unfused_us,
        "tvm_version": each.versions.tvm,
        "ffi_version": each.versions.ffi,
        "tvmfuse_version": each.versions.tvmfuse,
        "created_at": each.created_at,
        "checksum": each.checksum,
    }
    return rows.insert_new(references.connection, schema.fusion_measurements, values)


def _measurement(row: Any) -> FusionMeasurement | None:
    versions = {"tvm": row.tvm_version, "ffi": row.ffi_version, "tvmfuse": row.tvmfuse_version}
    try:
        found = FusionMeasurement.from_json(
            {
                "candidate": json.loads(row.candidate),
                "device": _device(row),
                "target": json.loads(row.attrs),
                "session": row.session_uid or "",
                "versions": versions,
                "uid": row.uid,
                "created_at": row.created_at,
            }
        )
        return found if found.checksum_of(row.candidate) == row.checksum else None
    except rows.DAMAGED:
        return None


def _cost_model(row: Any) -> CostModelFile | None:
    names = ("kind", "features_version", "trained_on", "uid", "created_at")
    try:
        found = CostModelFile.from_json(
            {
                **{name: getattr(row, name) for name in names},
                "device": _device(row),
                "content": row.content.decode(),
                "metrics": json.loads(row.metrics),
            }
        )
        return found if found.checksum == row.checksum else None
    except rows.DAMAGED:
        return None


def _device(row: Any) -> dict[str, Any]:
    about = {name: getattr(row, f"device_{name}") for name in ("kind", "family", "name")}
    return {**about, "details": json.loads(row.device_details)}
