"""Contract of databases on SQLite, and tests of its specifics."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, StoreError
from hopsml.service.store import JobStore
from tests.helpers.service.store_contract import StoreContract, new

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    opened = JobStore.open(f"sqlite:///{tmp_path}/service.db")
    opened.acquire_lease("me", "here", 0.0, 1e9)
    yield opened
    opened.close()


class TestSqlite(StoreContract):
    """The complete contract."""


def test_serial_of_a_deleted_job_is_not_reused(store: JobStore) -> None:
    store.submit(new(), 10.0)
    with store.write_transaction() as connection:
        connection.exec_driver_sql("DELETE FROM changes")
        connection.exec_driver_sql("DELETE FROM jobs")
    assert store.submit(new(), 11.0).serial == 2


def test_database_is_created_once_by_concurrent_openers_and_shared(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/service.db"
    opened: list[JobStore] = []
    threads = [threading.Thread(target=lambda: opened.append(JobStore.open(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened[0].submit(new(), 1.0)
    assert opened[3].job(1).name == "digits"
    for store in opened:
        store.close()


def test_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/service.db"
    JobStore.open(url).close()
    with sqlite3.connect(tmp_path / "service.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match=r"newer hopsml.*9999"):
        JobStore.open(url)


def test_damaged_unreachable_or_unsupported_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but a text that is long enough" * 100)
    for url, message in (
        (f"sqlite:///{tmp_path}/text.db", "damaged"),
        (f"sqlite:///{tmp_path}/no/folder/x.db", "write permission for the file"),
        ("postgresql://alice:s3cr3t@127.0.0.1:1/x", "check that it runs"),
    ):
        with pytest.raises(StoreError, match=message) as refused:
            JobStore.open(url)
        assert "s3cr3t" not in str(refused.value)
    for url in ("nonsense", "mysql://host/x", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ArgumentError, match="--database"):
            JobStore.open(url)


def test_full_disk_and_locked_database_are_explained(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.write_transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for _ in range(1000):
            store.submit(new("x" * 60), 1.0)

    with pytest.raises(StoreError, match="make room"):
        fill()
    with store.write_transaction() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
        connection.exec_driver_sql("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "service.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="somebody holds it"):
        store.submit(new(), 1.0)
    other.execute("ROLLBACK")
    other.close()
    assert store.submit(new(), 2.0).serial > 1
