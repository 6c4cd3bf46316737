"""Measured fusions, and the cost models that learn from them."""

import sqlalchemy as sa
from alembic import op

revision = "002"
down_revision = "001"


def upgrade() -> None:
    """Create the tables of the planner's training data."""
    op.create_table(
        "fusion_measurements",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id"), nullable=False, index=True),
        sa.Column("target_id", sa.Integer, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("session_id", sa.Integer, sa.ForeignKey("sessions.id")),
        sa.Column("candidate", sa.Text, nullable=False),
        sa.Column("fused_us", sa.Double, nullable=False),
        sa.Column("unfused_us", sa.Double, nullable=False),
        sa.Column("tvm_version", sa.String(40), nullable=False),
        sa.Column("ffi_version", sa.String(40), nullable=False),
        sa.Column("tvmfuse_version", sa.String(40), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
    )
    op.create_table(
        "cost_models",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("features_version", sa.Integer, nullable=False),
        sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id"), nullable=False, index=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("trained_on", sa.Integer, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("checksum", sa.String(64), nullable=False),
    )
