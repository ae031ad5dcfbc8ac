"""Table of the schedules of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table of schedules."""
    op.create_table(
        "schedules",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("profile", sa.String(63), nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("planned_s", sa.Float, nullable=False),
        sa.Column("looked_s", sa.Float, nullable=False),
        sa.Column("last_job", sa.Integer),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.UniqueConstraint("owner", "name", name="schedules_once"),
        sqlite_autoincrement=True,
    )
