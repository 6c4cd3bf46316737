"""What the cost model learns from, and what it has learnt, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tvmfuse.errors import StoreError
from tvmfuse.plan import FusionPlan, Group
from tvmfuse.store.records import Device, TargetKey, digest, new_uid, now, to_text
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
        return self.checksum_of(self.text)

    def checksum_of(self, text: str) -> str:
        """Return the hash with the group as a store has it, which an older tvmfuse wrote."""
        place = (self.device.fingerprint, self.target.key, self.session)
        return digest(self.uid, text, place, asdict(self.versions), self.created_at)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON-compatible data."""
        return {
            **{name: getattr(self, name) for name in ("session", "uid", "created_at")},
            "candidate": json.loads(self.text),
            "device": {**asdict(self.device), "details": dict(self.device.details)},
            "target": dict(self.target.attrs),
            "versions": asdict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FusionMeasurement:
        """Rebuild a measurement from :meth:`to_json`."""
        about = data["candidate"]
        (group,) = FusionPlan.from_json(about).groups
        return cls(
            group,
            Device(**data["device"]),
            TargetKey(data["target"]),
            session=data["session"],
            schedule=about.get("schedule", _DEFAULT),
            spread_us=about.get("spread_us", 0.0),
            versions=Versions(**data["versions"]),
            uid=data["uid"],
            created_at=data["created_at"],
        )


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

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON-compatible data."""
        device = {**asdict(self.device), "details": dict(self.device.details)}
        return {**asdict(self), "device": device, "metrics": dict(self.metrics)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostModelFile:
        """Rebuild a model from :meth:`to_json`."""
        return cls(**{**data, "device": Device(**data["device"])})
