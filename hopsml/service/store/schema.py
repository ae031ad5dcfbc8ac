"""Tables of the database after the newest migration (``migrations/versions``); times are seconds since 1970."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("serial", Integer, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False),
    Column("owner", String(200), nullable=False),
    Column("queue", String(63), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("workspace", String(64), nullable=False),
    Column("profile", String(63), nullable=False),
    Column("idempotency_key", String(200)),
    Column("state", String(20), nullable=False),
    Column("ending", String(20), nullable=False),
    Column("cause", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("failed_submissions", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("failed_fills", Integer, nullable=False),
    Column("attained_s", Float, nullable=False),
    Column("waited_s", Float, nullable=False),
    Column("placement", JSON),
    Column("submitted_s", Float, nullable=False),
    Column("placed_s", Float, nullable=False),
    Column("started_s", Float, nullable=False),
    Column("ending_since_s", Float, nullable=False),
    Column("ended_s", Float, nullable=False),
    Column("version", Integer, nullable=False),
    Column("target", JSON),
    Column("shrinking_since_s", Float, nullable=False, server_default="0"),
    Column("spec_length", Integer, nullable=False, server_default="0"),  # in characters
    UniqueConstraint("owner", "idempotency_key", name="jobs_once"),
    Index("jobs_by_state", "state"),
    Index("jobs_by_owner", "owner", "state", "spec_length"),
    sqlite_autoincrement=True,  # serials are in tags, and must not be assigned again
)

launches = Table(
    "launches",
    metadata,
    Column("tag", String(100), primary_key=True),
    Column("job", ForeignKey("jobs.serial"), nullable=False, index=True),
    Column("try", Integer, nullable=False),
    Column("task", String(63), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("application_id", String(200), nullable=False),
    Column("intended_s", Float, nullable=False),
    Column("seen_s", Float, nullable=False),
    Column("cause", Text, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.serial"), nullable=False, index=True),
    Column("try", Integer, nullable=False),
    Column("task", String(63), nullable=False),
    Column("state", String(20), nullable=False),
    Column("cause", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    sqlite_autoincrement=True,
)

wishes = Table(
    "wishes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job", ForeignKey("jobs.serial"), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("value", Text, nullable=False),
    Column("who", String(200), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("answered_s", Float),
    Column("answer", Text, nullable=False),
    Index("wishes_by_job", "job"),
    Index("wishes_open", "id", sqlite_where=text("answered_s IS NULL"), postgresql_where=text("answered_s IS NULL")),
    sqlite_autoincrement=True,
)

leaders = Table(
    "leaders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("holder", String(100), nullable=False),
    Column("address", String(300), nullable=False),
    Column("until_s", Float, nullable=False),
    Column("term", Integer, nullable=False, server_default="0"),  # increases by one at each change of leader
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(63), nullable=False),
    Column("owner", String(200), nullable=False),
    Column("spec", Text, nullable=False),
    Column("workspace", String(64), nullable=False),
    Column("profile", String(63), nullable=False),
    Column("is_paused", Boolean, nullable=False),
    Column("planned_s", Float, nullable=False),
    Column("looked_s", Float, nullable=False),
    Column("last_job", Integer),
    Column("note", Text, nullable=False),
    Column("version", Integer, nullable=False),
    UniqueConstraint("owner", "name", name="schedules_once"),
    sqlite_autoincrement=True,  # numbers are in the idempotency keys of jobs, and must not be assigned again
)

secrets = Table(
    "secrets",
    metadata,
    Column("owner", String(200), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("stored_s", Float, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("user", String(200), nullable=False),
    Column("role", String(20), nullable=False),
    Column("label", String(200), nullable=False),
    Column("created_s", Float, nullable=False),
    Column("expires_s", Float),
    Column("revoked_s", Float),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at_s", Float, nullable=False),
    Column("user", String(200), nullable=False),
    Column("role", String(20), nullable=False),
    Column("action", String(60), nullable=False),
    Column("target", String(200), nullable=False),
    Column("outcome", Integer, nullable=False),
    Column("peer", String(100), nullable=False),
    Index("audit_by_time", "at_s"),
    sqlite_autoincrement=True,
)

run_notes = Table(
    "run_notes",
    metadata,
    Column("run", String(300), primary_key=True),
    Column("note", Text, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("who", String(200), nullable=False),
    Column("at_s", Float, nullable=False),
)

views = Table(
    "views",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String(200), nullable=False, index=True),
    Column("name", String(100), nullable=False),
    Column("query", Text, nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("at_s", Float, nullable=False),
    UniqueConstraint("owner", "name", name="views_once"),
    sqlite_autoincrement=True,
)
