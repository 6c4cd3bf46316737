"""Workloads, devices, targets, sessions and the records between them."""

import sqlalchemy as sa
from alembic import op

revision = "001"
down_revision = None


def upgrade() -> None:
    """Create the tables of the first schema."""
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(80), nullable=False, unique=True),
        sa.Column("bucket", sa.String(64), nullable=False, index=True),
        sa.Column("module", sa.LargeBinary, nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("tvm_version", sa.String(40), nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("family", sa.String(80), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
    )
    op.create_table(
        "targets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("attrs", sa.Text, nullable=False),
    )
    op.create_table(
        "sessions",
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
    op.create_table(
        "records",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("workload_id", sa.Integer, sa.ForeignKey("workloads.id"), nullable=False),
        sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id"), nullable=False),
        sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("session_id", sa.Integer, sa.ForeignKey("sessions.id")),
        sa.Column("family", sa.String(40), nullable=False),
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
    )
    op.create_index(
        "ix_records_best",
        "records",
        ["workload_id", "device_id", "target_id", "status", "median_us"],
    )
