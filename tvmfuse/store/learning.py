"""What the cost model learns from, and what it has learnt: measured fusions and models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from tvmfuse.errors import StoreError
from tvmfuse.plan import FusionPlan, Group
from tvmfuse.store import rows, schema
from tvmfuse.store.records import Device, TargetKey, digest, new_uid, now, to_text
from tvmfuse.store.store import Store
from tvmfuse.store.versions import Versions

_DEFAULT = "family"  # what the schedule of a kernel was before it was kept


@dataclass(frozen=True)
class FusionMeasurement:
    """A kernel that was timed, and what it does timed as kernels apart.

    Parameters
    ----------
    group : Group
        The candidate, with its measured times; that apart is that fused where it was not timed.
    device : Device
        Where it ran.
    target : TargetKey
        What it was compiled for.
    session : str
        ``uid`` of its session, or "".
    schedule : str
        Where its schedule came from: ``family``, ``tuned``, ``generic`` …
    spread_us : float
        Third quartile minus first of its time fused.
    versions : Versions
        The software.
    uid, created_at : str
        Its name, and the time in UTC.
    """

    group: Group
    device: Device
    target: TargetKey
    session: str = ""
    schedule: str = _DEFAULT
    spread_us: float = 0.0
    versions: Versions = field(default_factory=Versions.installed)
    uid: str = field(default_factory=new_uid)
    created_at: str = field(default_factory=now)

    @property
    def text(self) -> str:
        """The group as JSON, with what is not as it was before that was kept."""
        row = FusionPlan((self.group,)).to_json()
        if self.schedule != _DEFAULT:
            row["schedule"] = self.schedule
        if self.spread_us:
            row["spread_us"] = self.spread_us
        return to_text(row)

    @property
    def checksum(self) -> str:
        """Hash of all that it says."""
        place = (self.device.fingerprint, self.target.key, self.session)
        return digest(self.uid, self.text, place, asdict(self.versions), self.created_at)


@dataclass(frozen=True)
class CostModelFile:
    """A trained cost model.

    Parameters
    ----------
    kind : str
        Which model it is of.
    features_version : int
        Version of the features that it takes.
    device : Device
        The device that it predicts.
    content : str
        The model as JSON, never a pickle.
    trained_on : int
        Number of measurements.
    metrics : Mapping
        How well it predicts.
    uid, created_at : str
        Its name, and the time in UTC.

    Raises
    ------
    StoreError
        The content is no JSON object.
    """

    kind: str
    features_version: int
    device: Device
    content: str
    trained_on: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    uid: str = field(default_factory=new_uid)
    created_at: str = field(default_factory=now)

    def __post_init__(self) -> None:
        if not self.content.lstrip().startswith("{"):
            raise StoreError(f"store: a cost model is kept as JSON, but got {self.content[:20]!r}")

    @property
    def checksum(self) -> str:
        """Hash of all that it says."""
        about = (self.kind, self.features_version, self.device.fingerprint, self.trained_on)
        return digest(self.uid, *about, self.content, dict(self.metrics), self.created_at)


def add_measurements(store: Store, measurements: Sequence[FusionMeasurement]) -> None:
    """Add measured fusions in one transaction.

    Raises
    ------
    StoreError
        The store cannot be written to, or a session was not added.
    """

    def work(connection: sa.Connection) -> None:
        references = rows.References(connection)
        for each in measurements:
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
            rows.insert_new(connection, schema.fusion_measurements, values)

    store.backend.write(work)


def measurements_of(store: Store, device: Device) -> list[FusionMeasurement]:
    """Return the whole measurements of a device, oldest first."""
    table, targets, sessions = schema.fusion_measurements, schema.targets, schema.sessions
    columns = (table, targets.c.attrs, sessions.c.uid.label("session_uid"))
    joined = table.join(schema.devices).join(targets).outerjoin(sessions)
    statement = sa.select(*columns).select_from(joined).order_by(table.c.id)
    statement = statement.where(schema.devices.c.fingerprint == device.fingerprint)
    found = (_measurement(row, device) for row in store.backend.rows(statement))
    return [each for each in found if each is not None]


def add_cost_model(store: Store, model: CostModelFile) -> None:
    """Add a trained model."""

    def work(connection: sa.Connection) -> None:
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
        rows.insert_new(connection, schema.cost_models, values)

    store.backend.write(work)


def newest_cost_model(
    store: Store, kind: str, *, features_version: int, device: Device
) -> CostModelFile | None:
    """Return the newest whole model for a device, or None."""
    table = schema.cost_models
    statement = sa.select(table).join(schema.devices).order_by(table.c.id.desc())
    statement = statement.where(
        table.c.kind == kind,
        table.c.features_version == features_version,
        schema.devices.c.fingerprint == device.fingerprint,
    )
    found = (_cost_model(row, device) for row in store.backend.rows(statement))
    return next((each for each in found if each is not None), None)


def _measurement(row: Any, device: Device) -> FusionMeasurement | None:
    try:
        about = json.loads(row.candidate)
        (group,) = FusionPlan.from_json(about).groups
        found = FusionMeasurement(
            group,
            device,
            TargetKey(json.loads(row.attrs)),
            row.session_uid or "",
            about.get("schedule", _DEFAULT),
            about.get("spread_us", 0.0),
            Versions(row.tvm_version, row.ffi_version, row.tvmfuse_version),
            row.uid,
            row.created_at,
        )
        return found if found.checksum == row.checksum else None
    except rows.DAMAGED:
        return None


def _cost_model(row: Any, device: Device) -> CostModelFile | None:
    try:
        found = CostModelFile(
            row.kind,
            row.features_version,
            device,
            row.content.decode(),
            row.trained_on,
            json.loads(row.metrics),
            row.uid,
            row.created_at,
        )
        return found if found.checksum == row.checksum else None
    except rows.DAMAGED:
        return None
