"""A KDC and a Kerberized HDFS and YARN for tests; a test is skipped, with the reason, where Kerberos cannot be installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import leaks
from tests.helpers.session_cluster import SessionCluster
from tools.hadoop.cluster import Cluster
from tools.hadoop.errors import HadoopError
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.kdc import Kdc
from tools.hadoop.kerberos import Security
from tools.hadoop.krb5 import Krb5, ensure_krb5
from tools.hadoop.settings import Shape

SERVICES = ("HTTP/localhost", "HTTP/127.0.0.1", "nn/localhost")
PEOPLE = ("alice", "bob")


class SessionKdc(Kdc):
    """A KDC of several tests; the process that a test runs again belongs to the session, not to the test."""

    def run(self) -> None:
        """Start the KDC's process, as ``Kdc.run`` does."""
        with leaks.not_of_this_test():
            super().run()


def krb5_or_skip() -> Krb5:
    """Return the programs and libraries of Kerberos; skip the test if there are none and none can be fetched."""
    try:
        return ensure_krb5()
    except HadoopError as error:
        pytest.skip(f"no Kerberos: {error}")


def running_kdc(folder: Path) -> Iterator[Kdc]:
    """Yield a running KDC with the principals SERVICES and PEOPLE; it ends with the test, also after kill -9."""
    krb5 = krb5_or_skip()
    kdc = SessionKdc(folder)
    with leaks.not_of_this_test():
        kdc.create([*SERVICES, *PEOPLE], krb5, guarded=True)
    try:
        yield kdc
    finally:
        kdc.destroy()


def running_cluster(name: str, shape: Shape, security: Security) -> Iterator[Cluster]:
    """Yield a Kerberized cluster in a folder of its own; it ends with the fixture, also after kill -9."""
    krb5_or_skip()
    cluster = SessionCluster(CACHE / f"{name}-{os.getpid()}")
    cluster.kdc = SessionKdc(cluster.kdc.folder)
    with leaks.not_of_this_test():
        cluster.start(ensure_jars(), shape, guarded=True, security=security)
    try:
        yield cluster
    finally:
        cluster.stop(now=True, remove=True)


def use_ticket(monkeypatch: pytest.MonkeyPatch, kdc: Kdc, name: str) -> None:
    """Set this process's variables to the ticket cache of a principal, which is obtained if there is none."""
    if not kdc.cache(name).exists():
        kdc.kinit(name)
    for variable, value in kdc.environment(name).items():
        monkeypatch.setenv(variable, value)
