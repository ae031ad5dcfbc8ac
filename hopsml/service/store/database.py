"""Connections to the database, its migrations, and readable messages for its errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from hopsml.errors import ArgumentError, StoreError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, Engine

WRITES = "hopsml_writes"  # option of connections whose transactions begin by acquiring SQLite's write lock
BUSY_S = 10.0  # seconds for which a write waits for another one
# A server that is suspended within a transaction must not hold the lock on the lease: its transaction is aborted.
_POSTGRESQL_OPTIONS = (
    f"-c lock_timeout={int(BUSY_S * 1000)} -c idle_in_transaction_session_timeout={int(BUSY_S * 1000)}"
)
_MIGRATING = 0x686F7073  # advisory lock of PostgreSQL: of two servers that start, one migrates
_SCRIPTS = Path(__file__).with_name("migrations")


def opened(url: str) -> Engine:
    """Connect to a database, and migrate its tables to the newest version.

    Raises:
        StoreError: The database cannot be reached, or belongs to a newer hopsml.
        ArgumentError: The URL is invalid, or names another kind of database.
    """
    parsed = _parsed(url)
    engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    try:
        with in_words(url), engine.execution_options(**{WRITES: True}).begin() as connection:
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
            f"--database {parsed.drivername}: jobs are kept in SQLite or PostgreSQL: write sqlite:///FILE or "
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
def in_words(url: str) -> Iterator[None]:
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
        return "let this user write to the file and to its folder"
    if "malformed" in lower or "not a database" in lower:
        return "the file is damaged, or something else: restore it, or name another one"
    return "see that it runs and that user and password are right: nothing is lost meanwhile"


def _shown(url: str) -> str:
    """Return the database URL with its password hidden."""
    return make_url(url).render_as_string(hide_password=True)
