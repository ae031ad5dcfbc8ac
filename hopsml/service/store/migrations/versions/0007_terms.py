"""Term of the leader's lease, by which the database rejects writes of an earlier leader."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column for the lease's term."""
    op.add_column("leaders", sa.Column("term", sa.Integer, nullable=False, server_default="0"))
