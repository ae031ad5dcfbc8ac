"""Length of each job's file, and indexes by which the jobs of a user are counted and removed."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the length of each job's file to ``jobs``, and indexes to count and remove a user's jobs."""
    op.add_column("jobs", sa.Column("spec_length", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE jobs SET spec_length = length(spec)")
    op.drop_index("jobs_by_owner", "jobs")
    op.create_index("jobs_by_owner", "jobs", ["owner", "state", "spec_length"])
    op.create_index("wishes_by_job", "wishes", ["job"])
