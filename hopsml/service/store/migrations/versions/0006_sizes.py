"""Columns for the slots that elastic jobs are about to release, and since when."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns for slots in release."""
    op.add_column("jobs", sa.Column("target", sa.JSON))
    op.add_column("jobs", sa.Column("shrinking_since_s", sa.Float, nullable=False, server_default="0"))
