"""The tables of a store. ``migrations/`` builds them; a test holds the two together."""

from __future__ import annotations

import sqlalchemy as sa

APPLICATION_ID = 0x74766D66  # "tvmf" in the header of a SQLite file says whose it is
VERSION_TABLE = "tvmfuse_schema"
REVISIONS = (
    "001",
    "002",
    "003",
)  # oldest first; kept here so that opening a store needs no alembic

metadata = sa.MetaData()


def _key(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id")


workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(80), nullable=False, unique=True),
    sa.Column("bucket", sa.String(64), nullable=False, index=True),
    sa.Column("module", sa.LargeBinary, nullable=False),  # JSON of TVM, compressed by zlib
    sa.Column("content_hash", sa.String(64), nullable=False),
    sa.Column("tvm_version", sa.String(40), nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("family", sa.String(80), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("details", sa.Text, nullable=False),
)

targets = sa.Table(
    "targets",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(64), nullable=False, unique=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("attrs", sa.Text, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("seed", sa.BigInteger),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("started_at", sa.String(32), nullable=False),
    sa.Column("ended_at", sa.String(32)),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    sa.Column("workload_id", sa.Integer, _key("workloads"), nullable=False),
    sa.Column("device_id", sa.Integer, _key("devices"), nullable=False),
    sa.Column("target_id", sa.Integer, _key("targets"), nullable=False),
    sa.Column("session_id", sa.Integer, _key("sessions")),
    sa.Column("family", sa.String(40), nullable=False),  # "" for MetaSchedule's own spaces
    sa.Column("family_version", sa.Integer, nullable=False),
    sa.Column("decisions", sa.Text),
    sa.Column("trace", sa.Text),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("times_us", sa.Text, nullable=False),
    sa.Column("mean_us", sa.Double),
    sa.Column("median_us", sa.Double),
    sa.Column("spread_us", sa.Double),
    sa.Column("accumulation", sa.String(16), nullable=False),
    sa.Column("tvm_version", sa.String(40), nullable=False),
    sa.Column("ffi_version", sa.String(40), nullable=False),
    sa.Column("tvmfuse_version", sa.String(40), nullable=False),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("checksum", sa.String(64), nullable=False),
    # The best record of a workload on a device is the first entry of one range of this index.
    sa.Index("ix_records_best", "workload_id", "device_id", "target_id", "status", "median_us"),
    # What a search begins with: the trials of a kernel family on a device, oldest first.
    sa.Index("ix_records_family", "family", "device_id", "id"),
)

fusion_measurements = sa.Table(
    "fusion_measurements",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    sa.Column("device_id", sa.Integer, _key("devices"), nullable=False, index=True),
    sa.Column("target_id", sa.Integer, _key("targets"), nullable=False),
    sa.Column("session_id", sa.Integer, _key("sessions")),
    sa.Column("candidate", sa.Text, nullable=False),
    sa.Column("fused_us", sa.Double, nullable=False),
    sa.Column("unfused_us", sa.Double, nullable=False),
    sa.Column("tvm_version", sa.String(40), nullable=False),
    sa.Column("ffi_version", sa.String(40), nullable=False),
    sa.Column("tvmfuse_version", sa.String(40), nullable=False),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("checksum", sa.String(64), nullable=False),
)

cost_models = sa.Table(
    "cost_models",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("features_version", sa.Integer, nullable=False),
    sa.Column("device_id", sa.Integer, _key("devices"), nullable=False, index=True),
    sa.Column("content", sa.LargeBinary, nullable=False),  # JSON of the model, never a pickle
    sa.Column("trained_on", sa.Integer, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("checksum", sa.String(64), nullable=False),
)
