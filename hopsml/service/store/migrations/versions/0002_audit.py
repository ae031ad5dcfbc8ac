"""Table of the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of the audit log."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("outcome", sa.Integer, nullable=False),
        sa.Column("peer", sa.String(100), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_time", "audit", ["at_s"])
