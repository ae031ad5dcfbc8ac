"""Tables of jobs, launches, state changes, requests, the leader's lease, and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of jobs."""
    op.create_table(
        "facts", sa.Column("name", sa.String(40), primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )
    op.create_table(
        "jobs",
        sa.Column("serial", sa.Integer, primary_key=True, autoincrement=True),
        *(
            sa.Column(name, sa.String(length), nullable=False)
            for name, length in (("name", 63), ("owner", 200), ("queue", 63))
        ),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("profile", sa.String(63), nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("ending", sa.String(20), nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("tries", "retries", "failed_submissions", "preemptions", "failed_fills")
        ),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("attained_s", "waited_s")),
        sa.Column("placement", sa.JSON),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("submitted_s", "placed_s", "started_s", "ending_since_s", "ended_s")
        ),
        sa.Column("version", sa.Integer, nullable=False),
        sa.UniqueConstraint("owner", "idempotency_key", name="jobs_once"),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_by_state", "jobs", ["state"])
    op.create_index("jobs_by_owner", "jobs", ["owner"])
    op.create_table(
        "launches",
        sa.Column("tag", sa.String(100), primary_key=True),
        sa.Column("job", sa.Integer, sa.ForeignKey("jobs.serial"), nullable=False),
        sa.Column("try", sa.Integer, nullable=False),
        sa.Column("task", sa.String(63), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("application_id", sa.String(200), nullable=False),
        sa.Column("intended_s", sa.Float, nullable=False),
        sa.Column("seen_s", sa.Float, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
    )
    op.create_index("ix_launches_job", "launches", ["job"])
    op.create_table(
        "changes",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job", sa.Integer, sa.ForeignKey("jobs.serial"), nullable=False),
        sa.Column("try", sa.Integer, nullable=False),
        sa.Column("task", sa.String(63), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_changes_job", "changes", ["job"])
    op.create_table(
        "wishes",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("job", sa.Integer, sa.ForeignKey("jobs.serial"), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("answered_s", sa.Float),
        sa.Column("answer", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    open_ = sa.text("answered_s IS NULL")
    op.create_index("wishes_open", "wishes", ["id"], sqlite_where=open_, postgresql_where=open_)
    op.create_table(
        "leaders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("holder", sa.String(100), nullable=False),
        sa.Column("address", sa.String(300), nullable=False),
        sa.Column("until_s", sa.Float, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float),
        sa.Column("revoked_s", sa.Float),
    )
