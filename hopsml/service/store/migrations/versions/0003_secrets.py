"""Table of users' encrypted secrets."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table of secrets."""
    op.create_table(
        "secrets",
        sa.Column("owner", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("stored_s", sa.Float, nullable=False),
    )
