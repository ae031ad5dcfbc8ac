"""Tests of each check of Kerberos, from facts to finding; tests/integration/doctor/test_kerberos.py has a KDC."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.core import principals
from hopsml.core.krb5 import Ticket, server_times
from hopsml.doctor import kerberos
from hopsml.doctor.checks import Needs, Status
from hopsml.doctor.kerberos import KdcFacts, KerberosFacts, KeytabFacts
from tests.unit.doctor.test_checks import check_finding

pytestmark = pytest.mark.fast

LOCAL = Needs()
YARN = Needs(profile="yarn", spark=True, yarn=True, distributed=True, master="yarn")
OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
SECURE = {"hadoop.security.authentication": "kerberos"}
NOW, HOUR = 1_800_000_000.0, 3600.0


def facts(left_s: float = 10 * HOUR, renewable_s: float = 0.0, **more: Any) -> KerberosFacts:
    ticket = Ticket("a@R", "FILE:/c", NOW + left_s, NOW + renewable_s if renewable_s else 0.0)
    return KerberosFacts(**{"known": SECURE, "ticket": ticket, "now_s": NOW, **more})


@pytest.mark.parametrize(
    ("seen", "keytab", "status", "words"),
    [
        (KerberosFacts(library="no such file"), "", OK, ["not required"]),
        (KerberosFacts(SECURE, library="no such file"), "", FAIL, ["no such file", "libgssapi-krb5-2"]),
        (facts(ticket=None, problem="No cache found"), "", FAIL, ["No cache found", "run kinit;", "KRB5CCNAME"]),
        (facts(ticket=None, problem="No cache found"), "/a.keytab", FAIL, ["run kinit -kt /a.keytab"]),
        (facts(ticket=None, problem="none", token_file="/t"), "", WARN, ["HADOOP_TOKEN_FILE_LOCATION", "kinit"]),
        (facts(-120.0), "", FAIL, ["ticket of a@R expired 2 min ago", "kinit"]),
        (facts(600.0), "", WARN, ["a@R for 10 min", "not renewable", "run kinit again"]),
        (facts(600.0, 24 * HOUR), "", WARN, ["renewable for 24.0 h", "kinit -R"]),
        (facts(600.0, 300.0), "", WARN, ["not renewable", "kinit again"]),
        (facts(10 * HOUR, 168 * HOUR), "/a", OK, ["a@R for 10.0 h, renewable for 168.0 h"]),
        (facts(600.0, client_keytab="/k"), "", OK, ["again by the keytab of KRB5_CLIENT_KTNAME"]),
        (facts(ticket=None, problem="no key", client_keytab="/k"), "", FAIL, ["no key"]),
        (facts(10 * HOUR), "", OK, ["not renewable", "spark.kerberos.keytab"]),
    ],
)
def test_ticket_is_checked(seen: KerberosFacts, keytab: str, status: Status, words: list[str]) -> None:
    check_finding(kerberos.check_ticket(seen, YARN, keytab), status, *words)


def test_findings_depend_on_the_need_for_kerberos() -> None:
    assert [one.name for one in kerberos.findings(KerberosFacts(), LOCAL)] == ["kerberos"]
    assert [one.name for one in kerberos.findings(facts(), LOCAL)] == [
        "kerberos", "short name", "token service", "encryption"
    ]  # fmt: skip


FOREIGN = r"RULE:[1:$1@$0](.*@FAR\.ORG)s/@.*//"


@pytest.mark.parametrize(
    ("more", "realm", "users", "status", "words"),
    [
        ({}, "R", [], OK, ["without a ticket"]),
        ({}, "R", ["a@R"], OK, ["a@R is a"]),
        ({}, "R", ["a@R", "b@FAR.ORG"], FAIL, ["gives b@FAR.ORG", FOREIGN, "before DEFAULT", "refuses to log in"]),
        ({}, "R", ["x/h@FAR.ORG"], FAIL, [r"RULE:[2:$1@$0](.*@FAR\.ORG)s/@.*//"]),
        ({kerberos.RULES: FOREIGN}, "R", ["b@FAR.ORG"], OK, ["b@FAR.ORG is b"]),
        ({kerberos.RULES: FOREIGN}, "R", ["a@R"], FAIL, ["gives a@R a short name", "core-site.xml"]),
        ({kerberos.RULES: "RULE:broken"}, "R", ["a@R"], FAIL, ["gives a@R"]),
        ({f"{kerberos.RULES}.mechanism": "MIT"}, "R", ["b@FAR.ORG"], WARN, ["belong to the whole principal"]),
        ({}, "", ["a@R"], WARN, ["known to Spark's JVM only", "default_realm", "KRB5_CONFIG"]),
        ({kerberos.RULES: FOREIGN}, "", ["b@FAR.ORG"], OK, ["b@FAR.ORG is b"]),
    ],
)
def test_principal_needs_a_short_name(
    more: dict[str, str], realm: str, users: list[str], status: Status, words: list[str]
) -> None:
    check_finding(kerberos.check_short_names(facts(known=SECURE | more, realm=realm), users), status, *words)


def test_recommended_rule_gives_the_name() -> None:
    for user, name in (("b@FAR.ORG", "b"), ("x/h.far.org@FAR.ORG", "x")):
        rules = f"{kerberos._rule_for(user)}\nDEFAULT"
        assert principals.short_name(user, rules, "R") == name and principals.short_name("a@R", rules, "R") == "a"


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (KeytabFacts("/k", ""), FAIL, ["spark.kerberos.keytab, but no spark.kerberos.principal"]),
        (KeytabFacts("", "a"), FAIL, ["spark.kerberos.principal, but no spark.kerberos.keytab"]),
        (KeytabFacts("/k", "a", problem="Permission denied"), FAIL, ["/k cannot be read: Permission denied", "ktadd"]),
        (KeytabFacts("/k", "a@R", ("b@R", "c@R")), FAIL, ["no key of a@R, only of b@R, c@R", "principal"]),
        (KeytabFacts("/k", "a@R"), FAIL, ["only of nobody"]),
        (KeytabFacts("/k", "a", ("aa@R",)), FAIL, ["no key of a,"]),
        (KeytabFacts("/k", "a", ("a@R",), 0o600, refusal="Preauthentication failed"), FAIL, ["KDC refuses", "ktadd"]),
        (KeytabFacts("/k", "a", ("a@R",), 0o640), WARN, ["mode 0640", "chmod 600 /k"]),
        (KeytabFacts("/k", "a@R", ("a@R",), 0o600), OK, ["the KDC accepts the key in /k"]),
    ],
)
def test_keytab_is_checked(seen: KeytabFacts, status: Status, words: list[str]) -> None:
    check_finding(kerberos.check_keytab(seen), status, *words)


def test_kdc_is_checked() -> None:
    check_finding(kerberos.check_kdc(KdcFacts("")), OK, "neither a ticket nor a keytab")
    check_finding(kerberos.check_kdc(KdcFacts("a@R", 0.0)), OK, "a@R answers")
    silent = KdcFacts("a@R", problem="Cannot contact any KDC")
    check_finding(kerberos.check_kdc(silent), FAIL, "Cannot contact any KDC", "KRB5_CONFIG")


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        ({}, OK, ["no HDFS"]),
        ({"fs.defaultFS": "hdfs://ns1", "dfs.ha.namenodes.ns1": "a,b"}, OK, ["tokens are for ns1"]),
        ({"fs.defaultFS": "hdfs://nn.example:8020"}, WARN, ["fs.defaultFS names nn.example:", "use_ip to false"]),
        ({"fs.defaultFS": "hdfs://10.0.0.1:8020"}, OK, ["as fs.defaultFS does"]),
        ({"fs.defaultFS": "hdfs://[fe80::1]:8020"}, OK, ["as fs.defaultFS does"]),
        ({"fs.defaultFS": "hdfs://nn.example:8020", kerberos.USE_IP: "false"}, OK, ["as fs.defaultFS does"]),
        ({"fs.defaultFS": "hdfs://10.0.0.1:8020", kerberos.USE_IP: "false"}, WARN, ["10.0.0.1", "the host's name"]),
    ],
)
def test_names_in_tokens_are_checked(known: dict[str, str], status: Status, words: list[str]) -> None:
    check_finding(kerberos.check_token_service(known), status, *words)


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        ({}, OK, ["without encryption (no SASL)"]),
        ({"dfs.data.transfer.protection": "authentication"}, OK, ["without encryption (authentication)"]),
        ({"dfs.data.transfer.protection": "privacy"}, WARN, ["3DES", "ten times slower", kerberos.AES]),
        ({"dfs.encrypt.data.transfer": "true"}, WARN, ["3DES", "AES/CTR/NoPadding"]),
        ({"dfs.data.transfer.protection": "authentication,privacy", kerberos.AES: "AES/CTR"}, OK, ["by AES/CTR"]),
    ],
)
def test_encryption_is_checked(known: dict[str, str], status: Status, words: list[str]) -> None:
    check_finding(kerberos.check_encryption(known), status, *words)


def test_time_of_the_kdc_is_read_from_its_refusal() -> None:
    field = b"\xa4\x11\x18\x0f20261129134519Z"
    assert server_times(b"\x7e\x40..." + field + b"...") == [1795959919.0]
    assert server_times(b"\x7e\x40..." + field.replace(b"1129", b"1329")) == [], "no thirteenth month"
    assert server_times(b"\x6b\x40..." + field) == []  # a reply with a ticket
    assert server_times(b"") == []
