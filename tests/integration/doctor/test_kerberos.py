"""Tests of the doctor's probes of Kerberos with a real KDC."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import pytest

from hopsml.core import gssapi
from hopsml.doctor import examination, kerberos
from hopsml.doctor.checks import Needs, Status
from tests.helpers.kerberos import use_ticket
from tools.hadoop.kdc import Kdc

pytestmark = pytest.mark.local

YARN = Needs(profile="yarn", spark=True, yarn=True, distributed=True, master="yarn")


@pytest.fixture(autouse=True)
def secure(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticket of alice, and a Hadoop configuration that requires it."""
    try:
        ctypes.CDLL(gssapi.LIBRARY)
    except OSError as error:
        pytest.skip(f"no Kerberos in this process: {error}")
    use_ticket(monkeypatch, kdc, "alice")
    setting = "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)


def test_ticket_is_read_from_its_cache(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = kdc.kinit("alice", tmp_path / "new.cc", life_s=7200, renewable_s=86400)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    found = kerberos.look()
    assert found.ticket is not None and found.is_required
    assert (found.ticket.principal, found.ticket.cache) == ("alice@LAB.TEST", f"FILE:{cache}")
    assert abs(found.ticket.ends_s - time.time() - 7200) < 120
    assert abs(found.ticket.renewable_until_s - time.time() - 86400) < 120
    assert kerberos.check_ticket(found, YARN).status is Status.OK
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    missing = kerberos.check_ticket(kerberos.look(), YARN)
    assert missing.status is Status.FAIL and f"{tmp_path}/none" in missing.summary and "kinit" in missing.remedy


def test_ticket_is_obtained_by_the_client_keytab(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/own.cc")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kdc.keytab('alice')}")
    found = kerberos.look()
    assert found.ticket is not None and found.ticket.principal == "alice@LAB.TEST"
    assert "KRB5_CLIENT_KTNAME" in kerberos.check_ticket(found, YARN).summary


def test_keytab_is_compared_with_principal_and_kdc(kdc: Kdc, tmp_path: Path) -> None:
    own = kdc.keytab("alice")
    own.chmod(0o600)
    assert kerberos.check_keytab(kerberos.keytab(str(own), "alice@LAB.TEST")).status is Status.OK
    assert kerberos.check_keytab(kerberos.keytab(str(own), "alice")).status is Status.OK
    other = kerberos.check_keytab(kerberos.keytab(str(own), "bob@LAB.TEST"))
    assert other.status is Status.FAIL and "only of alice@LAB.TEST" in other.summary
    missing = kerberos.check_keytab(kerberos.keytab(str(tmp_path / "none"), "alice"))
    assert missing.status is Status.FAIL and "No such file" in missing.summary
    broken = tmp_path / "broken"
    broken.write_bytes(b"not a keytab")
    assert "cannot be read" in kerberos.check_keytab(kerberos.keytab(str(broken), "alice")).summary


def test_old_keytab_is_refused_by_the_kdc(kdc: Kdc, tmp_path: Path) -> None:
    kdc.add("carol")
    old = tmp_path / "old.keytab"
    old.write_bytes(kdc.keytab("carol").read_bytes())
    old.chmod(0o600)
    kdc._tool("kadmin.local", "-r", "LAB.TEST", text="change_password -randkey carol")
    found = kerberos.check_keytab(kerberos.keytab(str(old), "carol"))
    assert found.status is Status.FAIL and "the KDC refuses the key of carol" in found.summary


def test_clock_of_the_kdc_is_compared(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kerberos.kdc("")
    assert found.principal == "alice@LAB.TEST" and found.skew_s is not None and abs(found.skew_s) < 5
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 600)  # this machine's clock, as Python sees it
        behind = kerberos.kdc("alice@LAB.TEST").skew_s
    assert behind is not None and 590 < behind < 610
    assert examination.check_clock(now(), {"the KDC": behind}).status is Status.FAIL


def test_silent_kdc_is_reported(kdc: Kdc) -> None:
    kdc.halt()
    try:
        found = kerberos.kdc("alice@LAB.TEST")
        keytab = kerberos.keytab(str(kdc.keytab("alice")), "alice")
    finally:
        kdc.run()
    assert kerberos.check_kdc(found).status is Status.FAIL and "KDC" in found.problem
    assert keytab.refusal == ""  # not the keytab's fault


def test_examination_has_all_findings(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    folder = tmp_path / "conf"
    folder.mkdir()
    lines = [
        "master: none",
        "spark:",
        f"  spark.kerberos.keytab: {kdc.keytab('alice')}",
        "  spark.kerberos.principal: bob",
    ]
    (folder / "mine.yaml").write_text("\n".join(["description: a test's", *lines]))
    monkeypatch.setenv("HOPSML_CONF_DIR", str(folder))
    os.chmod(kdc.keytab("alice"), 0o600)
    found = {finding.name: finding for finding in examination.examine("mine").findings}
    assert found["short name"].status is Status.OK and "alice@LAB.TEST is alice" in found["short name"].summary
    assert {"kerberos", "keytab", "kdc", "token service", "encryption"} <= set(found), list(found)
    assert found["kerberos"].status is found["kdc"].status is Status.OK
    assert found["keytab"].status is Status.FAIL
    assert "the KDC" in found["clock"].summary


def test_principal_of_another_realm_has_no_short_name(
    kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default realm that is not the ticket's, as on a client whose krb5.conf is that of another cluster."""
    other = tmp_path / "krb5.conf"
    other.write_text(kdc.config.read_text().replace("default_realm = LAB.TEST", "default_realm = OTHER.TEST"))
    monkeypatch.setenv("KRB5_CONFIG", str(other))
    (found,) = [one for one in kerberos.findings(kerberos.look(), YARN) if one.name == "short name"]
    assert found.status is Status.FAIL and "gives alice@LAB.TEST a short name" in found.summary
    assert r"RULE:[1:$1@$0](.*@LAB\.TEST)s/@.*//" in found.remedy
