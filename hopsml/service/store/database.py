"""Database of the job service: its tables, connections, migrations, and readable messages for its errors.

The tables are those after the newest migration (``migrations/versions``); times are seconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from hopsml.errors import ArgumentError, StoreError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, Engine


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


WRITES = "hopsml_writes"  # option of connections whose transactions begin by acquiring SQLite's write lock
BUSY_S = 10.0  # seconds for which a write waits for another one
# A server that is suspended within a transaction must not hold the lock on the lease: its transaction is aborted.
_POSTGRESQL_OPTIONS = (
    f"-c lock_timeout={int(BUSY_S * 1000)} -c idle_in_transaction_session_timeout={int(BUSY_S * 1000)}"
)
_MIGRATING = 0x686F7073  # advisory lock of PostgreSQL: of two servers that start, one migrates
_SCRIPTS = Path(__file__).with_name("migrations")


def open_database(url: str) -> Engine:
    """Connect to a database, and migrate its tables to the newest version.

    Raises:
        StoreError: The database cannot be reached, or belongs to a newer hopsml.
        ArgumentError: The URL is invalid, or names another kind of database.
    """
    parsed = _parsed(url)
    engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    try:
        with convert_errors(url), engine.execution_options(**{WRITES: True}).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
            _upgrade(connection, url)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _parsed(url: str) -> URL:
    """Parse a database URL. Raises ArgumentError for any other kind than SQLite and PostgreSQL."""
    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise ArgumentError("--database is no URL: write sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArgumentError(
            f"--database {parsed.drivername}: jobs are stored in SQLite or PostgreSQL; write sqlite:///FILE or "
            "postgresql://USER@HOST/NAME"
        )
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _sqlite(url: URL) -> Engine:
    """Create the engine of a SQLite file, which only its owner can access."""
    if url.database is None or url.database in ("", ":memory:"):
        raise ArgumentError("--database sqlite: without a file it would forget all jobs: write sqlite:///FILE")
    _keep_private(Path(url.database))
    engine = create_engine(url, connect_args={"timeout": BUSY_S})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        """Configure a new connection of SQLite."""
        connection.isolation_level = None  # transactions begin as specified below, not as Python's module decides
        # FULL: a committed transaction is on the disk; with NORMAL a loss of power could undo it.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        """Begin a transaction, with the write lock if it is going to write."""
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _keep_private(file: Path) -> None:
    """Restrict the database file to its owner, whatever the umask.

    SQLite gives the files that it creates next to it the same permissions.
    """
    with contextlib.suppress(OSError):  # the file exists; or it cannot be created, which SQLite reports
        made = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(made, 0o600)
        os.close(made)
    for path in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))):
        with contextlib.suppress(OSError):  # the file does not exist, or belongs to another user
            path.chmod(path.stat().st_mode & 0o700)


def _postgresql(url: URL) -> Engine:
    """Create the engine of a PostgreSQL database."""
    options = {"connect_timeout": int(BUSY_S), "options": _POSTGRESQL_OPTIONS}
    return create_engine(url, connect_args=options, pool_pre_ping=True)


def _upgrade(connection: Connection, url: str) -> None:
    """Migrate the tables. Raises StoreError if they belong to a newer hopsml."""
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in known:
            raise StoreError(
                f"the database {_shown(url)} is of a newer hopsml (its tables are {revision}, this one knows up to "
                f"{max(known)}): install that one here, or name another database"
            )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def convert_errors(url: str) -> Iterator[None]:
    """Convert errors of the database within this context to StoreError.

    Violated constraints (IntegrityError) are left to the caller, such as that a row exists already.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        raise StoreError(f"the database {_shown(url)} refuses: {said}; {_remedy(said)}") from error
    except SQLAlchemyError as error:  # no connection of the pool became free
        raise StoreError(f"the database {_shown(url)}: {error}; {_remedy('')}") from error


def _remedy(said: str) -> str:
    """Return the remedy for an error of the database."""
    lower = said.lower()
    if "locked" in lower or "lock timeout" in lower:
        return "somebody holds it, such as a backup or a shell: end that"
    if "full" in lower or "no space" in lower:
        return "make room on its disk: jobs that run go on meanwhile"
    if "readonly" in lower or "unable to open" in lower or "permission" in lower:
        return "give this user write permission for the file and its folder"
    if "malformed" in lower or "not a database" in lower:
        return "the file is damaged or not a database; restore it, or name another one"
    return "check that it runs and that user and password are correct: no data is lost while it is unavailable"


def _shown(url: str) -> str:
    """Return the database URL with its password hidden."""
    return make_url(url).render_as_string(hide_password=True)
