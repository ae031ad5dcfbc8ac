"""What elastic jobs are about to give back, and since when."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("jobs", sa.Column("target", sa.JSON))
    op.add_column("jobs", sa.Column("shrinking_since_s", sa.Float, nullable=False, server_default="0"))
