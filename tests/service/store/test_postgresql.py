"""PostgreSQL: what every database must do, on a real server of Debian's package; and one that is away."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.errors import StoreError
from hopsml.service.store import JobStore
from tests import leaks
from tests.cluster.workloads import wait_until
from tests.service.store.store_contract import StoreContract, new
from tools.hadoop.ports import free_ports

pytestmark = pytest.mark.local

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))[-1:]
if not BINARIES:
    pytest.skip("PostgreSQL is not here: apt-get install postgresql", allow_module_level=True)


class PostgreSql:
    """A server with a database; it refuses to be root's, so it is the package's own user's then."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hopsml-postgresql-", dir="/tmp"))
        self._who = "postgres" if os.getuid() == 0 else None
        if self._who:
            os.chown(self.folder, pwd.getpwnam(self._who).pw_uid, -1)
        (self.port,) = free_ports(1, "127.0.0.1")
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "-D", str(self.folder / "data"))
        self.process = self.start()

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [str(BINARIES[0] / name), *arguments]

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            self._command(name, *arguments), user=self._who, cwd=self.folder, check=True, capture_output=True
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Returns when it answers."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            self._command("postgres", "-D", str(self.folder / "data"), *options),
            user=self._who,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, "PostgreSQL")
        return self.process

    def _answers(self) -> bool:
        command = self._command("pg_isready", "-h", "127.0.0.1", "-p", str(self.port))
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def stop(self) -> None:
        """At once; its data stay."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    made = PostgreSql()
    yield made
    made.stop()
    shutil.rmtree(made.folder)


@pytest.fixture
def store(server: PostgreSql) -> Iterator[JobStore]:
    opened = JobStore.open(server.url)
    opened.lead("me", "here", 0.0, 1e9)
    yield opened
    with opened.writing() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    opened.close()


class TestPostgreSql(StoreContract):
    """All of it."""


def test_two_that_start_at_once_make_the_tables_once(server: PostgreSql) -> None:
    opened: list[JobStore] = []
    threads = [threading.Thread(target=lambda: opened.append(JobStore.open(server.url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened[0].submit(new(), 1.0)
    assert opened[3].job(1).name == "digits"
    with opened[0].writing() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    for each in opened:
        each.close()


def test_a_server_that_goes_and_comes_back(server: PostgreSql, store: JobStore) -> None:
    store.submit(new(), 1.0)
    server.stop()
    began = time.monotonic()
    with pytest.raises(StoreError, match="see that it runs"):
        store.submit(new(), 2.0)
    assert time.monotonic() - began < 15
    with leaks.not_of_this_test():
        server.start()
    assert store.job(1).name == "digits"
    assert store.submit(new(), 3.0).state == "WAITING"
