"""Contract of databases on PostgreSQL, with a real server of Debian's package; and an outage."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hopsml.errors import StoreError
from hopsml.service.store import JobStore
from tests.helpers import clock, leaks
from tests.helpers.service.store_contract import StoreContract, new
from tests.integration.service.postgresql import BINARIES, MISSING, PostgreSql

pytestmark = pytest.mark.local

if not BINARIES:
    pytest.skip(MISSING, allow_module_level=True)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    made = PostgreSql()
    yield made
    made.remove()


@pytest.fixture
def store(server: PostgreSql) -> Iterator[JobStore]:
    opened = JobStore.open(server.url)
    opened.acquire_lease("me", "here", 0.0, 1e9)
    yield opened
    with opened.write_transaction() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    opened.close()


class TestPostgreSql(StoreContract):
    """The complete contract."""


def test_tables_are_created_once_by_concurrent_openers(server: PostgreSql) -> None:
    opened: list[JobStore] = []
    threads = [threading.Thread(target=lambda: opened.append(JobStore.open(server.url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened[0].submit(new(), 1.0)
    assert opened[3].job(1).name == "digits"
    with opened[0].write_transaction() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for each in opened:
        each.close()


def test_idle_transactions_time_out_on_the_server(store: JobStore) -> None:
    with store.read_transaction() as connection:
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "10s"


def test_database_is_used_again_after_an_outage(server: PostgreSql, store: JobStore) -> None:
    store.submit(new(), 1.0)
    server.stop()
    started_s = clock.awake()
    with pytest.raises(StoreError, match="check that it runs"):
        store.submit(new(), 2.0)
    assert clock.awake() - started_s < 15
    with leaks.not_of_this_test():
        server.start()
    assert store.job(1).name == "digits"
    assert store.submit(new(), 3.0).state == "WAITING"
