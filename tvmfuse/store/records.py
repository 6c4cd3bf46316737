"""What a store holds, as plain data: workloads, devices, targets, sessions, records.

A record is kept with a checksum over everything it says, its workload, device and
target included, so that a damaged one is never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import statistics
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from tvmfuse.errors import StoreError
from tvmfuse.store.versions import Versions

Status = Literal["ok", "measured", "build_error", "run_error", "timeout", "wrong", "crash"]
STATUSES: tuple[str, ...] = get_args(Status)
TIMED = ("ok", "measured")  # "measured": alone, and not yet found to help in a whole model

_LONGEST_REASON = 2000
# To the last @: a password may hold blanks, quotes, and the signs of a URL itself.
_PASSWORD = re.compile(r"(://[^:/@\s]*:).*@", re.DOTALL)
_UNQUOTED = re.compile(r"(://[^:/@\s]*:)(?!\*\*\*@)[^@]*@")


def to_text(value: Any) -> str:
    """Write JSON-compatible data in the one form that checksums are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(*parts: object) -> str:
    """Return a hash of JSON-compatible values, as 64 hexadecimal digits."""
    return hashlib.sha256(to_text(parts).encode()).hexdigest()


def now() -> str:
    """Return the time in UTC, in ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new_uid() -> str:
    """Return a name that no other record of any store has."""
    return uuid.uuid4().hex


def without_password(url: str) -> str:
    """Return a URL, or one word in which it stands, without its password."""
    return _PASSWORD.sub(r"\1***@", url)


def without_passwords(command: str) -> str:
    """Return a command line without the passwords of its URLs."""
    try:
        words = shlex.split(command)
    except ValueError:  # no command line: better too much is left out than too little
        return without_password(command)
    for word in words:
        shown = without_password(word)
        if shown != word:
            command = command.replace(shlex.quote(word), shown).replace(word, shown)
    return _UNQUOTED.sub(r"\1***@", command)


@dataclass(frozen=True)
class Workload:
    """One kernel before any schedule.

    Parameters
    ----------
    key : str
        Its bucket, with a number behind where another workload has the same bucket.
    module : str
        TVM's JSON of the normalised module, see :mod:`tvmfuse.store.keys`.
    tvm_version : str
        The TVM that wrote it.
    summary : str
        What a person reads: operators and shapes.
    """

    key: str
    module: str
    tvm_version: str
    summary: str = ""

    @property
    def bucket(self) -> str:
        """Hash of the module without its names."""
        return self.key.partition("-")[0]

    @property
    def content_hash(self) -> str:
        """Hash of :attr:`module`."""
        return hashlib.sha256(self.module.encode()).hexdigest()


@dataclass(frozen=True)
class Device:
    """What a kernel ran on.

    Parameters
    ----------
    kind : str
        TVM's kind: ``llvm``, ``cuda`` or ``metal``.
    family : str
        Devices that run the same code alike: ``x86-64-v3``, ``sm_90``, ``m1``.
    name : str
        What the vendor calls it.
    details : Mapping
        All else that tells two devices apart, as JSON-compatible data.
    """

    kind: str
    family: str
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Hash of all of it; equal for equal devices only."""
        return digest(self.kind, self.family, self.name, dict(self.details))


@dataclass(frozen=True)
class TargetKey:
    """A TVM target as far as it shapes a kernel.

    Parameters
    ----------
    attrs : Mapping
        The target as JSON-compatible data, without its host.
    """

    attrs: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """TVM's kind."""
        return str(self.attrs["kind"])

    @property
    def key(self) -> str:
        """Hash of the attributes."""
        return digest(dict(self.attrs))


@dataclass(frozen=True)
class Session:
    """One run of a command that wrote records: their provenance.

    Parameters
    ----------
    command : str
        The command line; a password in it is not kept.
    host : str
        Name of the machine.
    seed : int, optional
        Seed of the search.
    settings : Mapping
        Options, as JSON-compatible data.
    versions : Versions
        The software.
    uid, started_at, ended_at : str
        Its name, and times in UTC; ``ended_at`` is None while it runs or was killed.
    """

    command: str
    host: str
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions.installed)
    uid: str = field(default_factory=new_uid)
    started_at: str = field(default_factory=now)
    ended_at: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", without_passwords(self.command))  # --db may hold one


@dataclass(frozen=True)
class Record:
    """One trial: what was decided, and what came of it.

    Parameters
    ----------
    workload : str
        Key of its workload.
    device : Device
        Where it ran.
    target : TargetKey
        What it was compiled for.
    status : str
        "ok", "measured" where only the kernel alone was timed, or how it failed.
    times_us : tuple of float
        Run times, in microseconds; empty where it failed.
    reason : str
        Why it failed.
    family : str
        Kernel family of ours, or "" for MetaSchedule's own spaces.
    family_version : int
        Version of the family that the decisions belong to.
    decisions : Mapping, optional
        The family's decisions.
    trace : list, optional
        MetaSchedule's trace, as TVM's JSON.
    accumulation : str
        Element type of sums.
    session : str
        ``uid`` of its session, or "".
    versions : Versions
        The software.
    uid, created_at : str
        Its name, the same in every store, and the time in UTC.

    Raises
    ------
    StoreError
        The times are not finite and positive, or do not fit the status.
    """

    workload: str
    device: Device
    target: TargetKey
    status: Status
    times_us: tuple[float, ...] = ()
    reason: str = ""
    family: str = ""
    family_version: int = 0
    decisions: Mapping[str, Any] | None = None
    trace: list[Any] | None = None
    accumulation: str = "float32"
    session: str = ""
    versions: Versions = field(default_factory=Versions.installed)
    uid: str = field(default_factory=new_uid)
    created_at: str = field(default_factory=now)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise StoreError(f"store: a status is one of {', '.join(STATUSES)}, not {self.status}")
        # TVM's runner hands on NaN and negative times, which would rank before all others.
        if any(not math.isfinite(t) or t <= 0 for t in self.times_us):
            raise StoreError(f"store: run times must be above 0 and finite, not {self.times_us}")
        if (self.status in TIMED) != bool(self.times_us):
            raise StoreError(
                f"store: a record has run times exactly where it was measured, but got "
                f"{len(self.times_us)} for {self.status}"
            )
        reason = self.reason.replace("\0", "")[:_LONGEST_REASON]  # PostgreSQL takes no NUL
        object.__setattr__(self, "reason", reason)

    @property
    def mean_us(self) -> float | None:
        """Mean run time."""
        return statistics.fmean(self.times_us) if self.times_us else None

    @property
    def median_us(self) -> float | None:
        """Median run time; records are ranked by it."""
        return statistics.median(self.times_us) if self.times_us else None

    @property
    def spread_us(self) -> float | None:
        """Slowest minus fastest run."""
        return max(self.times_us) - min(self.times_us) if self.times_us else None

    @property
    def checksum(self) -> str:
        """Hash of all that the record says."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-compatible data."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "device": {**asdict(self.device), "details": dict(self.device.details)},
            "target": dict(self.target.attrs),
            "times_us": list(self.times_us),
            "decisions": None if self.decisions is None else dict(self.decisions),
            "versions": asdict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Rebuild a record from :meth:`to_json`."""
        return cls(
            **{name: data[name] for name in _PLAIN},
            device=Device(**data["device"]),
            target=TargetKey(data["target"]),
            times_us=tuple(data["times_us"]),
            decisions=data["decisions"],
            versions=Versions(**data["versions"]),
        )


_PLAIN = (
    "accumulation",
    "created_at",
    "family",
    "family_version",
    "reason",
    "session",
    "status",
    "trace",
    "uid",
    "workload",
)
