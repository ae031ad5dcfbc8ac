"""Checks of Kerberos: ticket, keytab, KDC, names in tokens, encryption. Probes first, then pure functions to findings."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopsml.core import delegation_tokens as tokens
from hopsml.core import gssapi, krb5, principals, settings
from hopsml.core.krb5 import KerberosError, Ticket
from hopsml.core.spnego import KDC_REMEDY
from hopsml.doctor.checks import Finding, Needs, fail, ok, warn
from hopsml.storage import urls

HOUR_S = 3600.0
_INSTALL = "install Kerberos's library (Debian: libgssapi-krb5-2, Red Hat: krb5-libs)"
AES = "dfs.encrypt.data.transfer.cipher.suites"
RULES = "hadoop.security.auth_to_local"
USE_IP = "hadoop.security.token.service.use_ip"


@dataclass(frozen=True)
class KerberosFacts:
    """Kerberos of this user on this machine.

    Attributes:
        known: settings of Hadoop's client configuration.
        library: why Kerberos's libraries cannot be loaded; empty if they can.
        ticket: ticket of the ticket cache, None without one; ``problem`` is the reason.
        token_file: file of delegation tokens that this process has.
        client_keytab: keytab by which Kerberos obtains new tickets on its own (``KRB5_CLIENT_KTNAME``).
        realm: default realm of krb5.conf; empty if this process knows none.
        now_s: time of these facts, seconds since 1970.
    """

    known: Mapping[str, str] = field(default_factory=dict)
    library: str = ""
    ticket: Ticket | None = None
    problem: str = ""
    token_file: str = ""
    client_keytab: str = ""
    realm: str = ""
    now_s: float = 0.0

    @property
    def is_required(self) -> bool:
        """True if Hadoop's configuration requires Kerberos."""
        return self.known.get("hadoop.security.authentication", "").lower() == "kerberos"


def look() -> KerberosFacts:
    """Load the libraries and read the ticket cache, for which Kerberos may obtain a ticket by its client keytab."""
    known, token_file = settings.hadoop_settings(), os.environ.get(tokens.VARIABLE, "")
    facts = KerberosFacts(known, token_file=token_file, client_keytab=os.environ.get("KRB5_CLIENT_KTNAME", ""))
    for library in (gssapi.LIBRARY, krb5.LIBRARY):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return replace(facts, library=str(error), now_s=time.time())
    if facts.client_keytab:
        with contextlib.suppress(gssapi.GssError), gssapi.Initiator("localhost") as user:  # the service need not exist
            user.step()
    with contextlib.suppress(KerberosError):
        facts = replace(facts, realm=krb5.default_realm())
    try:
        return replace(facts, ticket=krb5.ticket(), now_s=time.time())
    except KerberosError as error:
        return replace(facts, problem=str(error), now_s=time.time())


@dataclass(frozen=True)
class KeytabFacts:
    """Keytab and principal of the profile (``spark.kerberos.keytab``, ``spark.kerberos.principal``).

    Attributes:
        principals: principals with a key in the file.
        mode: permission bits of the file.
        problem: why it cannot be read.
        refusal: why the KDC refuses its key.
    """

    file: str
    principal: str
    principals: tuple[str, ...] = ()
    mode: int = 0
    problem: str = ""
    refusal: str = ""


def keytab(file: str, principal: str) -> KeytabFacts:
    """Read the keytab, and obtain a ticket with its key, which is discarded."""
    if not file or not principal:
        return KeytabFacts(file, principal)
    try:
        mode = stat.S_IMODE(Path(file).stat().st_mode)
        with open(file, "rb"):
            pass
        principals = krb5.keytab_principals(file)
    except OSError as error:
        return KeytabFacts(file, principal, problem=error.strerror or str(error))
    if not _is_among(principal, principals):
        return KeytabFacts(file, principal, principals, mode)
    try:
        krb5.obtain(principal, file)
    except KerberosError as error:
        silent = error.code in krb5.KDC_SILENT  # the check of the KDC reports that
        return KeytabFacts(file, principal, principals, mode, refusal="" if silent else str(error))
    return KeytabFacts(file, principal, principals, mode)


@dataclass(frozen=True)
class KdcFacts:
    """Answer of a KDC; ``skew_s`` is its clock minus this machine's, in seconds."""

    principal: str  # whose KDC was asked; empty without ticket and keytab
    skew_s: float | None = None
    problem: str = ""


def kdc(principal: str) -> KdcFacts:
    """Request the KDC's time, for a principal or that of the ticket cache."""
    try:
        principal = principal or krb5.ticket().principal
    except KerberosError:
        return KdcFacts("")
    before = time.time()
    try:
        theirs_s = krb5.kdc_time(principal)
    except KerberosError as error:
        return KdcFacts(principal, problem=str(error))
    after = time.time()
    return KdcFacts(principal, theirs_s - min(max(theirs_s, before - 1.0), after))  # it has whole seconds


def findings(facts: KerberosFacts, needs: Needs, keytab_file: str = "", principal: str = "") -> list[Finding]:
    """Return the findings that follow from ticket and configuration; only one where Kerberos is not required.

    Args:
        facts: the facts.
        needs: requirements of the profile.
        keytab_file: the profile's keytab; empty for none.
        principal: the keytab's principal.
    """
    found = [check_ticket(facts, needs, keytab_file)]
    if facts.is_required:
        names = [principal, facts.ticket.principal if facts.ticket else ""]
        found.append(check_short_names(facts, [name for name in dict.fromkeys(names) if name]))
        found += [check_token_service(facts.known), check_encryption(facts.known)]
    return found


def check_ticket(facts: KerberosFacts, needs: Needs, keytab_file: str = "") -> Finding:
    """Check that there is a ticket, and for how long, if Hadoop requires one; arguments as for ``findings``."""
    if not facts.is_required:
        return ok("kerberos", "not required (hadoop.security.authentication)")
    if facts.library:
        return fail("kerberos", f"Kerberos's libraries are missing: {facts.library}", _INSTALL)
    ticket, kinit = facts.ticket, "run kinit" + (f" -kt {keytab_file}" if keytab_file else "")
    if ticket is None:
        if facts.token_file:
            told = f"no ticket ({facts.problem}), but delegation tokens in {tokens.VARIABLE}"
            return warn("kerberos", told, f"{kinit}, if web services or new tokens are needed")
        return fail("kerberos", f"there is no ticket: {facts.problem}", f"{kinit}; KRB5CCNAME names the cache")
    known = {"principal": ticket.principal, "ends_s": ticket.ends_s, "renewable_until_s": ticket.renewable_until_s}
    left_s, renewable_s = ticket.ends_s - facts.now_s, ticket.renewable_until_s - facts.now_s
    if left_s <= 0:
        return fail("kerberos", f"the ticket of {ticket.principal} expired {_hours(-left_s)} ago", kinit, **known)
    told = f"{ticket.principal} for {_hours(left_s)}"
    if facts.client_keytab:
        return ok("kerberos", f"{told}, then again by the keytab of KRB5_CLIENT_KTNAME", **known)
    told += f", renewable for {_hours(renewable_s)}" if renewable_s > left_s else ", not renewable"
    if left_s < HOUR_S:
        again = "kinit -R renews it" if renewable_s > left_s else f"{kinit} again"
        return warn("kerberos", told, f"{again}; otherwise commands and runs lose their access", **known)
    if needs.yarn and not keytab_file:
        told += "; for longer runs set spark.kerberos.keytab and spark.kerberos.principal in the profile"
    return ok("kerberos", told, **known)


def check_keytab(facts: KeytabFacts) -> Finding:
    """Check that the profile's keytab can be read, belongs to its principal, and is accepted by the KDC."""
    known = {"keytab": facts.file, "principal": facts.principal, "principals": list(facts.principals)}
    if not facts.file or not facts.principal:
        there, missing = ("keytab", "principal") if facts.file else ("principal", "keytab")
        told = f"the profile has spark.kerberos.{there}, but no spark.kerberos.{missing}"
        return fail("keytab", told, f"set spark.kerberos.{missing}", **known)
    create = "request a new keytab from the administrator (kadmin: ktadd), or correct spark.kerberos.keytab"
    if facts.problem:
        return fail("keytab", f"{facts.file} cannot be read: {facts.problem}", create, **known)
    if not _is_among(facts.principal, facts.principals):
        told = f"{facts.file} has no key of {facts.principal}, only of {', '.join(facts.principals[:5]) or 'nobody'}"
        return fail("keytab", told, "correct spark.kerberos.principal, or spark.kerberos.keytab", **known)
    if facts.refusal:
        told = f"the KDC refuses the key of {facts.principal} in {facts.file}: {facts.refusal}"
        return fail("keytab", told, create, **known)
    if facts.mode & 0o077:
        told = f"{facts.file} has mode {facts.mode:04o}: whoever can read it can act as {facts.principal}"
        return warn("keytab", told, f"chmod 600 {facts.file}", **known)
    return ok("keytab", f"{facts.principal}: the KDC accepts the key in {facts.file}", **known)


def check_kdc(facts: KdcFacts) -> Finding:
    """Check that a KDC answers; its clock is compared together with those of the services."""
    if not facts.principal:
        return ok("kdc", "not asked, since there is neither a ticket nor a keytab")
    if facts.problem:
        return fail("kdc", f"the KDC of {facts.principal} does not answer: {facts.problem}", KDC_REMEDY)
    return ok("kdc", f"the KDC of {facts.principal} answers", skew_s=facts.skew_s)


def check_short_names(facts: KerberosFacts, users: Sequence[str]) -> Finding:
    """Check that Hadoop has a short name, the user's name in HDFS and YARN, for each of these principals."""
    name, rules = "short name", facts.known.get(RULES, "")
    found = {user: principals.short_name(user, rules, facts.realm) for user in users}
    known = {"names": found, "default_realm": facts.realm, "rules": rules}
    without = [user for user, short in found.items() if "@" in short or "/" in short]
    if not without:
        told = ", ".join(f"{user} is {short}" for user, short in found.items())
        return ok(name, told or "not known without a ticket", **known)
    if not facts.realm:
        told = f"no default realm is known here, so the short name of {without[0]} is known to Spark's JVM only"
        remedy = "set default_realm in /etc/krb5.conf, or name the file that has it in KRB5_CONFIG"
        return warn(name, told, remedy, **known)
    told = f"no rule of {RULES} gives {without[0]} a short name, and {facts.realm} is the default realm"
    remedy = (
        f"add a rule to {RULES} in core-site.xml here and on all services, for instance {_rule_for(without[0])} before "
        "DEFAULT, or use a principal of the default realm"
    )
    if facts.known.get(f"{RULES}.mechanism", "").lower() == "mit":  # then the whole principal is a name
        return warn(name, f"{told}; files and runs belong to the whole principal", remedy, **known)
    return fail(name, f"{told}; Hadoop refuses to log in with it", remedy, **known)


def _rule_for(principal: str) -> str:
    """Return a rule that gives the principals of a realm with as many components their first one as short name."""
    name, _, realm = principal.rpartition("@")
    return rf"RULE:[{name.count('/') + 1}:$1@$0](.*@{re.escape(realm)})s/@.*//"


def check_token_service(known: Mapping[str, str]) -> Finding:
    """Check that delegation tokens name the NameNode as URLs do, by which HDFS clients find them.

    Args:
        known: settings of Hadoop's client configuration.
    """
    name = "token service"
    address = urls.split(known.get("fs.defaultFS", ""))[1]
    if not address or f"dfs.ha.namenodes.{address}" in known:
        return ok(name, f"tokens are for {address or 'no HDFS'}")
    by_address = known.get(USE_IP, "true").lower() != "false"
    host = address.rpartition(":")[0] or address
    if by_address == _is_address(host):
        return ok(name, f"tokens name {address} as fs.defaultFS does")
    if by_address:
        told = (
            f"tokens name the NameNode's IP address, fs.defaultFS names {host}: HDFS clients in workers find no token"
        )
        return warn(name, told, f"set {USE_IP} to false in core-site.xml, or use a name service (dfs.nameservices)")
    told = f"tokens name the NameNode's host, fs.defaultFS names the address {host}: HDFS clients may find no token"
    return warn(name, told, "use the host's name in fs.defaultFS and in HOPSML_PROJECT_URL")


def check_encryption(known: Mapping[str, str]) -> Finding:
    """Check that encrypted data transfer uses AES.

    Args:
        known: settings of Hadoop's client configuration.
    """
    protection = known.get("dfs.data.transfer.protection", "")
    encrypts = known.get("dfs.encrypt.data.transfer", "").lower() == "true"
    facts: dict[str, Any] = {"protection": protection, "encrypts": encrypts, "cipher_suites": known.get(AES, "")}
    if not encrypts and "privacy" not in protection.split(","):
        return ok(
            "encryption", f"file contents are transferred without encryption ({protection or 'no SASL'})", **facts
        )
    if not known.get(AES):
        told = "file contents are encrypted by 3DES, which makes transfers some ten times slower"
        remedy = f"set {AES} to AES/CTR/NoPadding in hdfs-site.xml of clients, NameNodes and DataNodes"
        return warn("encryption", told, remedy, **facts)
    return ok("encryption", f"file contents are encrypted by {known[AES]}", **facts)


def _is_among(principal: str, principals: tuple[str, ...]) -> bool:
    """Return True for a principal of the list; without a realm it may have any."""
    return any(principal in (each, each.rpartition("@")[0]) for each in principals)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.1f} h" if seconds >= HOUR_S else f"{seconds / 60:.0f} min"
