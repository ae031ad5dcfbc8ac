"""PostgreSQL of Debian's package, started by a test with separate data and port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import leaks
from tests.helpers.cluster.workloads import wait_until
from tools.hadoop.ports import free_ports

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))[-1:]
MISSING = "PostgreSQL is not here: apt-get install postgresql"


def running() -> Iterator[PostgreSql]:
    """Yield a server until the end of a fixture; skip the test if the package is not installed."""
    if not BINARIES:
        pytest.skip(MISSING)
    with leaks.not_of_this_test():
        made = PostgreSql()
    yield made
    made.remove()


class PostgreSql:
    """Server with a database; it refuses to run as root, and then runs as the package's user."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hopsml-postgresql-", dir="/tmp"))
        self._who = "postgres" if os.getuid() == 0 else None
        if self._who:
            os.chown(self.folder, pwd.getpwnam(self._who).pw_uid, -1)
        (self.port,) = free_ports(1, "127.0.0.1")
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "-D", str(self.folder / "data"))
        self.process = self.start()

    def created(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name)
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [str(BINARIES[0] / name), *arguments]

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            self._command(name, *arguments), user=self._who, cwd=self.folder, check=True, capture_output=True
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it answers."""
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
        """Stop the server at once; its data remain."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder)
