"""Tests of the KDC of tools/hadoop and of its programs, installed or unpacked."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core import settings
from tests.helpers.clock import wait_until
from tests.helpers.kerberos import krb5_or_skip, use_ticket
from tools.hadoop import krb5
from tools.hadoop.errors import HadoopError
from tools.hadoop.kdc import Kdc

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[3]


def tickets(kdc: Kdc, name: str) -> str:
    """What klist says of a user's ticket cache."""
    environment = {**os.environ, **kdc.environment(name)}
    return subprocess.run(["klist"], env=environment, capture_output=True, text=True, check=True).stdout


def test_user_gets_a_ticket_and_an_outage_of_the_kdc_ends(kdc: Kdc) -> None:
    kdc.kinit("alice", life_s=60)
    assert "Default principal: alice@LAB.TEST" in tickets(kdc, "alice")
    kdc.halt()
    with pytest.raises(HadoopError, match="kinit ended with 1"):
        kdc.kinit("alice")
    kdc.run()
    kdc.kinit("alice")
    kdc.kdestroy("alice")
    assert not kdc.cache("alice").exists()


def test_unknown_principal_is_refused(kdc: Kdc) -> None:
    with pytest.raises(HadoopError, match="kinit ended with 1"):
        kdc.kinit("mallory")


def test_guarded_kdc_ends_with_its_starter(tmp_path: Path) -> None:
    krb5_or_skip()
    code = (
        "import os, signal, sys; from pathlib import Path; from tools.hadoop.kdc import Kdc; "
        "from tools.hadoop.krb5 import ensure_krb5; kdc = Kdc(Path(sys.argv[1])); "
        "kdc.create(['alice'], ensure_krb5(), guarded=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = tmp_path / "kdc"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT)
    assert done.returncode == -9
    wait_until(lambda: not folder.exists())


def kdc_processes(folder: Path) -> list[int]:
    """Return the processes of a KDC in a folder, by their command lines."""
    found = []
    for entry in filter(lambda one: one.name.isdigit(), Path("/proc").iterdir()):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if b"krb5kdc" in line and os.fsencode(folder) in line:
                found.append(int(entry.name))
    return found


KILLED_AT_ONCE = """
import os, signal, sys
from pathlib import Path
from tools.hadoop.kdc import Kdc
from tools.hadoop.krb5 import ensure_krb5

class Killed(Kdc):
    def _file_names(self):  # before the first question whether it answers
        os.kill(os.getpid(), signal.SIGKILL)

Killed(Path(sys.argv[1])).create(["alice"], ensure_krb5(), guarded=True)
"""


def test_guarded_kdc_ends_with_a_starter_that_is_killed_before_it_answers(tmp_path: Path) -> None:
    krb5_or_skip()
    folder = tmp_path / "kdc"
    done = subprocess.run([sys.executable, "-c", KILLED_AT_ONCE, str(folder)], cwd=ROOT)
    assert done.returncode == -9
    wait_until(lambda: not folder.exists())
    assert kdc_processes(folder) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, HadoopError])
def test_interrupted_start_leaves_no_kdc(error: type[BaseException], tmp_path: Path) -> None:
    class Interrupted(Kdc):
        def _file_names(self) -> list[str]:
            raise error("in between")

    kdc = Interrupted(tmp_path / "kdc")
    with pytest.raises(error, match="in between"):
        kdc.create(["alice"], krb5_or_skip())
    assert kdc_processes(kdc.folder) == [] and not kdc.folder.exists()


def test_second_start_and_a_deleted_folder_leave_no_kdc(tmp_path: Path) -> None:
    kdc = Kdc(tmp_path / "kdc")
    kdc.create(["alice"], krb5_or_skip())
    try:
        with pytest.raises(HadoopError, match="runs already"):
            kdc.run()
        assert kdc.kinit("alice").exists()
        shutil.rmtree(kdc.folder)
    finally:
        kdc.destroy()
    assert kdc_processes(kdc.folder) == []


def test_ticket_names_the_user_of_a_kerberized_cluster(
    kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = "<name>hadoop.security.authentication</name><value>kerberos</value>"
    (tmp_path / "core-site.xml").write_text(f"<configuration><property>{security}</property></configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    use_ticket(monkeypatch, kdc, "alice")
    assert (settings.user_name(), settings.login_name()) == ("alice", "alice")
    use_ticket(monkeypatch, kdc, "bob")
    assert settings.user_name() == "bob"
    kdc.kdestroy("bob")
    assert settings.user_name() == getpass.getuser()


@pytest.mark.variant
def test_unpacked_packages_serve_without_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = krb5._complete
    monkeypatch.setattr(krb5, "_complete", lambda found: found.root is not None and complete(found))
    try:
        unpacked = krb5.ensure_krb5(tmp_path / "cache")
    except HadoopError as error:
        pytest.skip(f"Debian's packages could not be fetched: {error}")
    kdc = Kdc(tmp_path / "kdc")
    kdc.create(["alice"], unpacked)
    try:
        assert str(unpacked.root) in kdc.environment()["LD_LIBRARY_PATH"]
        assert kdc.kinit("alice").exists()
    finally:
        kdc.destroy()
