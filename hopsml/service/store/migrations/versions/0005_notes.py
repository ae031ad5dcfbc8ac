"""Tables of users' notes on runs, and of their saved views."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the tables of notes and views."""
    op.create_table(
        "run_notes",
        sa.Column("run", sa.String(300), primary_key=True),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
    )
    op.create_table(
        "views",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("query", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.UniqueConstraint("owner", "name", name="views_once"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_views_owner", "views", ["owner"])
