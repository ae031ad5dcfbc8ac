"""Measurement of a scenario on a Kerberized cluster, also of one that fails early: bytes that HDFS lost, secrets shown.

Helpers that start something report it here (``expect``, ``watch``, ``keep_secret``); the fixture ``measured`` looks when
the test and all its other fixtures have ended, and records ``bytes_lost`` and ``secrets_found`` as properties of the test.
A worker's file counts from the moment at which HDFS has confirmed it to the worker: see ``token_workload``.
"""

from __future__ import annotations

import contextlib
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.errors import ArgumentError
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers.local_application import take_left_files
from tests.helpers.secrets_found import of_processes, of_store, secrets_found

LOST, FOUND = "bytes_lost", "secrets_found"  # names of the properties
WRITTEN = "written-*"  # files in which workers note what HDFS has confirmed
PLANTED = {"DATABASE_PASSWORD": "planted-gamma-7731-password", "SERVICE_TOKEN": "planted-delta-9924-token"}
LOOK_S = 2.0  # between two looks at command lines
# To which these tests themselves pass keytabs, or tokens for their renewal.
OWN_TOOLS = (b"kinit", b"klist", b"kadmin.local", b"kdb5_util", b"krb5kdc", b"curl")
# Token files that Hadoop and hopsml write for containers, below a NodeManager's folder.
CONTAINER_TOKENS = ("*/*/usercache/*/appcache/*/*/container_tokens", "*/*/usercache/*/appcache/*/*/tmp/hopsml-*/tokens")


@dataclass
class Scenario:
    """What the helpers of one test have reported."""

    began_s: float = field(default_factory=time.time)
    clusters: list[Any] = field(default_factory=list)
    stored: dict[str, Path] = field(default_factory=dict)  # folder in HDFS -> local folder with the notes of workers
    copies: dict[str, Path] = field(default_factory=dict)  # file in HDFS -> local file with what must be in it
    watched: set[str] = field(default_factory=set)  # URLs whose files are searched for secrets
    secrets: set[str | bytes] = field(default_factory=set)
    shown: dict[str, bytes] = field(default_factory=dict)  # texts that users can see

    def use(self, cluster: Any) -> None:
        """Take a cluster into account: its keytabs, and the tokens of its containers."""
        if all(cluster is not one for one in self.clusters):
            self.clusters.append(cluster)
        self.secrets |= {str(path) for path in cluster.kdc.folder.glob("*.keytab")}


_current = Scenario()


def expect(cluster: Any, local: Path, folder: str) -> None:
    """Expect the files that workers note in ``local`` in a folder of HDFS, and search it for secrets."""
    _current.use(cluster)
    _current.stored[folder] = local
    _current.watched.add(folder)


def expect_copy(local: Path, url: str) -> None:
    """Expect the content of a local file in one of HDFS, from a run that has finished."""
    _current.copies[url] = local


def watch(cluster: Any, *urls: str) -> None:
    """Search all files below these URLs for secrets when the test has ended, and the cluster's logs of containers."""
    _current.use(cluster)
    _current.watched.update(urls)


def keep_secret(*secrets: str | bytes) -> None:
    """Search for these, too."""
    _current.secrets.update(secrets)


def show(name: str, text: str) -> None:
    """Search a text that a user has seen, such as a command's output."""
    _current.shown[name] = text.encode()


def lost_bytes(local: Path, folder: str) -> int:
    """Return how many bytes that HDFS has confirmed to workers are not there as they were written."""
    noted = [line.split() for path in local.glob(WRITTEN) for line in path.read_text().splitlines()]
    if not noted:
        return 0
    try:
        stored = {entry.url.rpartition("/")[2]: entry.length for entry in for_url(folder).list_dir(folder)}
    except FileNotFoundError:
        stored = {}
    return sum(int(length) for name, length in noted if stored.get(name) != int(length))


def lost_copy(local: Path, url: str) -> int:
    """Return how many bytes of a local file are not in one of HDFS."""
    content = local.read_bytes()
    try:
        stored = for_url(url).read_bytes(url)
    except FileNotFoundError:
        stored = b""
    same = next((at for at, (a, b) in enumerate(zip(content, stored, strict=False)) if a != b), len(stored))
    return max(0, len(content) - same)


@pytest.fixture(autouse=True)
def measured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Plant secrets, and measure the test at its end; fail it if bytes were lost or secrets found."""
    global _current
    _current = scenario = Scenario(secrets=set(PLANTED.values()))
    with pytest.MonkeyPatch.context() as planted, _looking(scenario):
        for name, value in PLANTED.items():
            planted.setenv(name, value)
        yield
        filesystem.close_all()
    with _access(scenario):
        lost = sum(lost_bytes(local, folder) for folder, local in scenario.stored.items())
        lost += sum(lost_copy(local, url) for url, local in scenario.copies.items())
        request.node.user_properties.append((LOST, lost))
        found = secrets_found(scenario.shown, _left_behind(scenario, tmp_path), secrets=scenario.secrets)
        request.node.user_properties.append((FOUND, len(found)))
    take_left_files()
    if lost or found:
        pytest.fail(f"{lost} bytes lost, secrets found in {found}", pytrace=False)


def _left_behind(scenario: Scenario, local: Path) -> dict[str, bytes]:
    """Return every file that the test has left here, in HDFS and in logs of containers, but those that it wrote itself.

    Older files are of other tests of the session.
    """
    found = {}
    logs = [cluster.home.glob("nm*/containers") for cluster in scenario.clusters]
    for folder in (local, Path(tempfile.gettempdir()), *(one for each in logs for one in each)):
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # of a process of the session, such as the zygote
                facts = path.lstat()
                is_new = stat.S_ISREG(facts.st_mode) and facts.st_mtime > scenario.began_s - 1
                if is_new and not (path.parent == local and _is_given(path)):
                    found[str(path)] = path.read_bytes()
    for url in scenario.watched:
        with contextlib.suppress(FileNotFoundError):
            found |= {f"{url}/{name}": content for name, content in of_store(url).items()}
    return found


def _is_given(path: Path) -> bool:
    """Return True for what a test itself writes into its folder: token files and profiles."""
    return path.suffix == ".yaml" or path.read_bytes()[:4] == b"HDTS"


@contextlib.contextmanager
def _access(scenario: Scenario) -> Iterator[None]:
    """Context in which this process reads HDFS with a ticket of alice, and with no token."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (tokens.VARIABLE, tokens.OF_OWN_FILE, "HADOOP_PROXY_USER", "KRB5_CLIENT_KTNAME"):
            patch.delenv(name, raising=False)
        for cluster in scenario.clusters:
            patch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
            cluster.kdc.kinit("alice")
            for name, value in cluster.kdc.environment("alice").items():
                patch.setenv(name, value)
        yield
        filesystem.close_all()


@contextlib.contextmanager
def _looking(scenario: Scenario) -> Iterator[None]:
    """Context in which command lines and tokens of containers are collected."""
    stop = threading.Event()
    seen: set[bytes] = set()

    def look() -> None:
        while True:
            for name, line in of_processes().items():
                if line not in seen and not line.partition(b"\0")[0].endswith(OWN_TOOLS):
                    seen.add(line)
                    scenario.shown[f"{name} {len(seen)}"] = line
            for cluster in list(scenario.clusters):
                for path in (one for pattern in CONTAINER_TOKENS for one in cluster.home.glob(f"nm{pattern}")):
                    with contextlib.suppress(OSError, ArgumentError):
                        scenario.secrets.update(token.password for token in tokens.read(path).tokens)
            if stop.wait(LOOK_S):
                return

    thread = threading.Thread(target=look, name="scenario-looks")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
