"""The index by which a search finds the trials of similar kernels."""

from alembic import op

revision = "003"
down_revision = "002"


def upgrade() -> None:
    """Create the index."""
    op.create_index("ix_records_family", "records", ["family", "device_id", "id"])
