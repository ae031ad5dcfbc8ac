"""The term of the lease, by which the database refuses what an earlier leader decided."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column."""
    op.add_column("leaders", sa.Column("term", sa.Integer, nullable=False, server_default="0"))
