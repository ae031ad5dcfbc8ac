"""Sources of delegation tokens in the driver: Spark's JVM with a keytab or a ticket, or a token file."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hopsml.cluster.driver.tokens import plan, server_clock, stores
from hopsml.cluster.driver.tokens.server_clock import ServerClock
from hopsml.cluster.driver.tokens.stores import StoreTokens
from hopsml.core import delegation_tokens as tokens
from hopsml.core import krb5, redact, settings
from hopsml.core.delegation_tokens import Credentials
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.storage import urls

log = logging.getLogger(__name__)

# Tokens that executors receive. Others, such as the ApplicationMaster's for the ResourceManager, are not for workers.
KINDS = (tokens.HDFS_KIND, "WEBHDFS delegation", "SWEBHDFS delegation", "kms-dt")
RENEW_INTERVAL_S = 86400.0  # Hadoop's default
_SCHEMES = ("hdfs", "hopsfs", "viewfs")  # WebHDFS takes the token of hdfs://


class TokenSourceError(Exception):
    """Error: tokens could not be obtained; the text has the reason."""


@dataclass(frozen=True)
class FoundTokens:
    """Tokens, and for how long they and the source last, in seconds; 0: unknown.

    Attributes:
        credentials: tokens of the kinds for executors.
        life_s: time for which they can be used without being renewed.
        longest_s: time until the end of their maximum life.
        ticket_s: time until the end of the ticket.
        missing: stores without tokens, with the reasons; "" for none.
    """

    credentials: Credentials = field(repr=False)
    life_s: float = 0.0
    longest_s: float = 0.0
    ticket_s: float = 0.0
    missing: str = ""

    @property
    def mark(self) -> str:
        """Digest that identifies the tokens, from which they cannot be derived."""
        return hashlib.sha256(self.credentials.encode()).hexdigest()


class TokenSource(Protocol):
    """Interface of a source; its methods may block, and raise TokenSourceError.

    Attributes:
        obtains: each call of ``find`` obtains new tokens, with a ticket.
        extends: another program provides new ones without limit.
        is_backed: executors were started with tokens that YARN renews.
    """

    obtains: bool
    extends: bool
    is_backed: bool

    def find(self) -> FoundTokens:
        """Return tokens; raise TokenSourceError with the reason if there are none."""


def source_of(context: Any) -> TokenSource | None:
    """Return the source of tokens for an application; None if the cluster is not secure, or there is no source.

    Args:
        context: the SparkContext; None for an application without Spark.
    """
    if context is None:
        path = os.environ.get(tokens.VARIABLE)
        return TokenFileSource(os.path.abspath(path)) if path and settings.is_kerberized() else None
    try:
        ugi = context._jvm.org.apache.hadoop.security.UserGroupInformation
        return SparkTokenSource(context) if ugi.isSecurityEnabled() else None
    except Exception as error:  # noqa: BLE001 py4j's, of many kinds
        log.warning("Spark's JVM does not say whether the cluster is secure, and gets no tokens: %s", _reason(error))
        return None


class TokenFileSource:
    """A token file that another program replaces."""

    obtains = False
    extends = False
    is_backed = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._clocks = _Clocks()

    def find(self) -> FoundTokens:
        """Return the tokens of the file."""
        try:
            found = tokens.read(self.path).of_kinds((*KINDS, *SETTINGS.token_kinds))
        except ArgumentError as error:
            raise TokenSourceError(str(error)) from error
        if not found.tokens:
            raise TokenSourceError(f"{self.path!r} has no delegation token for HDFS")
        return FoundTokens(found, longest_s=self._clocks.saw(found).longest_s(found))


class SparkTokenSource:
    """Credentials of Spark's JVM: those of its keytab login, or tokens obtained with its ticket."""

    def __init__(self, context: Any) -> None:
        self._context, self._jvm = context, context._jvm
        self._conf: Callable[..., Any] = context.getConf().get
        self.extends = bool(self._conf("spark.kerberos.keytab", None) or self._conf("spark.yarn.keytab", None))
        user = self._user()
        # a proxy user has tokens that Spark has obtained for it, and no ticket
        self.obtains = not self.extends and user.getRealUser() is None and bool(user.hasKerberosCredentials())
        self.is_backed = str(context.master) == "yarn"
        self._clocks = _Clocks()
        self._obtained: dict[str, StoreTokens] = {}  # by URL, of stores for which this process obtains tokens itself

    def find(self) -> FoundTokens:
        """Return current tokens of the keytab login, or new ones obtained with the ticket."""
        try:
            return self._obtain() if self.obtains else self._current()
        except TokenSourceError:
            raise
        except Exception as error:  # py4j raises exceptions of many kinds
            raise TokenSourceError(_reason(error)) from error

    # ------------------------------------------------------------------ keytab, or tokens of the submission

    def _current(self) -> FoundTokens:
        """Return the JVM's credentials, with tokens for stores that Spark does not know if they can be obtained."""
        held = self._user().getCredentials()
        found = self._read(held)
        self._forget_stores_but(in_use := self._stores())
        for url in in_use:
            self._look_at_store(url, held)
            if url in self._obtained:
                found = found.updated(self._obtained[url].usable(time.time()))
        lacking = stores.missing(self._obtained)
        if not found.tokens:
            raise TokenSourceError(
                lacking or "Spark has none; check spark.kerberos.keytab and spark.kerberos.principal"
            )
        hint = f"{lacking}; name them in spark.kerberos.access.hadoopFileSystems" if lacking else ""
        # Spark logs in by the keytab, and obtains tokens, when its context starts
        clocks = self._clocks.saw(found, self._context.startTime / 1000 if self.extends else -math.inf)
        life_s = clocks.left_s(found, self._renew_interval_s()) if self.extends else 0.0
        return FoundTokens(found, life_s, clocks.longest_s(found), missing=hint)

    def _look_at_store(self, url: str, held: Any) -> None:
        """Obtain tokens of a store that Spark does not know, if they are due; without a ticket in the JVM there are none."""
        last, now_s = self._obtained.get(url, StoreTokens()), time.time()
        if now_s < last.due_s:
            return
        try:
            if self._has(url, held):
                self._obtained.pop(url, None)
            else:
                found, life_s = self._add(self._system(url))
                self._obtained[url] = stores.after_success(found, life_s, now_s)
        except Exception as error:  # noqa: BLE001 py4j raises exceptions of many kinds
            self._obtained[url] = stores.after_failure(last, _reason(error), now_s)

    # ------------------------------------------------------------------ ticket

    def _obtain(self) -> FoundTokens:
        """Obtain tokens for every store with the ticket, and learn how long they last by renewing each once.

        Spark adds tokens to the JVM's login, which would then connect with them, and a NameNode issues tokens only for a
        ticket: so each call logs in by the ticket cache, and sees the newest ticket.
        """
        try:
            ticket = krb5.ticket()
        except krb5.KerberosError as error:
            raise TokenSourceError(f"{error}; run `kinit`") from error
        self._forget_stores_but(in_use := self._stores())
        began_s = time.time()
        for url in in_use:
            last, now_s = self._obtained.get(url, StoreTokens()), time.time()
            try:
                self._obtained[url] = stores.after_success(*self._obtain_from_store(url, ticket), now_s)
            except Exception as error:  # noqa: BLE001 py4j raises exceptions of many kinds
                self._obtained[url] = stores.after_failure(last, _reason(error), now_s)
        lacking, obtained = stores.missing(self._obtained), [one for one in self._obtained.values() if not one.failures]
        if lacking and not obtained:
            raise TokenSourceError(next(iter(self._obtained.values())).reason)
        found = Credentials()
        for one in self._obtained.values():
            found = found.updated(one.usable(time.time()))
        if not found.tokens:
            raise TokenSourceError(lacking or "no store in use gives delegation tokens")
        life_s = min((one.life_s for one in obtained if one.credentials.tokens), default=0.0)
        kinit = shutil.which(str(self._hadoop_conf().get("hadoop.kerberos.kinit.command") or "kinit"))
        ticket_s = max(0.0, ticket_end_s(ticket, bool(kinit)) - time.time())
        return FoundTokens(found, life_s, self._clocks.saw(found, began_s).longest_s(found), ticket_s, lacking)

    def _obtain_from_store(self, url: str, ticket: krb5.Ticket) -> tuple[Credentials, float]:
        """Return new tokens of a store, and their life in seconds."""
        conf = self._jvm.org.apache.hadoop.conf.Configuration(self._hadoop_conf())
        conf.set("hadoop.security.kerberos.ticket.cache.path", ticket.cache.removeprefix("FILE:"))
        where = self._jvm.java.net.URI.create(_as_hdfs(url))
        system = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(where, conf, ticket.principal)
        try:
            return self._add(system)
        finally:
            system.close()

    # ------------------------------------------------------------------ both

    def _user(self) -> Any:
        return self._jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser()

    def _hadoop_conf(self) -> Any:
        return self._context._jsc.hadoopConfiguration()

    def _stores(self) -> list[str]:
        """Return the URL of each store in use: default, project, and those of Spark's setting."""
        named = str(self._conf("spark.kerberos.access.hadoopFileSystems", "") or "").split(",")
        found = [str(self._hadoop_conf().get("fs.defaultFS") or ""), settings.project_url(), *named]
        bases = [urls.scheme_and_authority(url.strip()) for url in found if url.strip().partition(":")[0] in _SCHEMES]
        return list(dict.fromkeys(base for base in bases if urls.split(base)[1]))

    def _forget_stores_but(self, in_use: list[str]) -> None:
        """Discard the tokens of stores that are no longer in use."""
        self._obtained = {url: one for url, one in self._obtained.items() if url in in_use}

    def _add(self, system: Any) -> tuple[Credentials, float]:
        """Return new tokens from the JVM's client of a store, and for how many seconds they can be used."""
        held = self._jvm.org.apache.hadoop.security.Credentials()
        added = system.addDelegationTokens(self._user().getShortUserName(), held)
        life_s = min((self._life_s(system, token) for token in added), default=plan.UNKNOWN_LIFE_S)
        return self._read(held), life_s

    def _life_s(self, system: Any, token: Any) -> float:
        """Return the seconds until a new token must be renewed, by renewing it; if it cannot be, a low estimate."""
        try:
            for one in _systems_below(system):
                if one.getCanonicalServiceName() == str(token.getService()):
                    ends_ms = int(one.getClient().getNamenode().renewDelegationToken(token))
                    return max(0.0, (ends_ms - int(token.decodeIdentifier().getIssueDate())) / 1000)
        except Exception as error:  # noqa: BLE001 a NameNode that refuses it, or a store of another kind
            log.debug("the life of a delegation token is unknown: %s", _reason(error))
        return min(self._renew_interval_s(), plan.UNKNOWN_LIFE_S)

    def _renew_interval_s(self) -> float:
        """Return the seconds for which tokens last without a renewal by this configuration; the NameNode's may differ."""
        interval = str(self._hadoop_conf().get("dfs.namenode.delegation.token.renew-interval", ""))
        return int(interval) / 1000 if interval.isdecimal() and int(interval) else RENEW_INTERVAL_S

    def _has(self, url: str, held: Any) -> bool:
        """Return True if credentials of the JVM have a token for a store, or if the store itself needs none."""
        service = self._system(url).getCanonicalServiceName()
        return service is None or held.getToken(self._jvm.org.apache.hadoop.io.Text(service)) is not None

    def _system(self, url: str) -> Any:
        """Return the JVM's client of a store."""
        where = self._jvm.java.net.URI.create(_as_hdfs(url))
        return self._jvm.org.apache.hadoop.fs.FileSystem.get(where, self._hadoop_conf())

    def _read(self, held: Any) -> Credentials:
        """Return the tokens in credentials of the JVM that executors may have."""
        out = self._jvm.java.io.ByteArrayOutputStream()
        held.writeTokenStorageToStream(self._jvm.java.io.DataOutputStream(out))
        return tokens.parse(bytes(out.toByteArray())).of_kinds((*KINDS, *SETTINGS.token_kinds))


def ticket_end_s(ticket: krb5.Ticket, has_kinit: bool) -> float:
    """Return when a ticket ends, in seconds since the epoch. Pure.

    Args:
        ticket: the ticket.
        has_kinit: True if Hadoop's login in the driver's JVM finds ``kinit``, with which it renews a renewable ticket.
    """
    return max(ticket.ends_s, ticket.renewable_until_s) if has_kinit else ticket.ends_s


def _systems_below(system: Any) -> list[Any]:
    """Return the JVM's clients of the stores behind one of viewfs://; only itself for another one."""
    children = system.getChildFileSystems()
    return [leaf for child in children for leaf in _systems_below(child)] if children else [system]


def _as_hdfs(url: str) -> str:
    return url.replace("hopsfs://", "hdfs://", 1)


class _Clocks:
    """Clocks of the NameNodes whose tokens a source has seen, by the service that tokens name."""

    def __init__(self) -> None:
        self._of: dict[str, ServerClock] = {}

    def saw(self, found: Credentials, after_s: float = -math.inf) -> _Clocks:
        """Learn from tokens that are seen now; new ones were issued after ``after_s``. Return this object."""
        now_s = time.time()
        for service, facts in _facts(found):
            self._of[service] = self._of.get(service, ServerClock()).saw(facts, now_s, after_s)
        return self

    def longest_s(self, found: Credentials) -> float:
        """Return the seconds until the first of the HDFS tokens ends for good; 0 without one that says so."""
        return server_clock.longest_s(self._with_clocks(found), time.time())

    def left_s(self, found: Credentials, life_s: float) -> float:
        """Return the seconds until the first of the HDFS tokens is ``life_s`` seconds old; 0 if unknown or over."""
        return server_clock.left_s(self._with_clocks(found), life_s, time.time())

    def _with_clocks(self, found: Credentials) -> list[tuple[tokens.TokenFacts, ServerClock]]:
        return [(facts, self._of.get(service, ServerClock())) for service, facts in _facts(found)]


def _facts(found: Credentials) -> list[tuple[str, tokens.TokenFacts]]:
    """Return service and facts of the HDFS tokens; an identifier of an unknown form says nothing."""
    facts = []
    for token in found.tokens:
        if token.kind == tokens.HDFS_KIND:
            with contextlib.suppress(ArgumentError):
                facts.append((token.service, token.describe()))
    return facts


def _reason(error: BaseException) -> str:
    """Return the first line of an error, of Java's the one with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("at ", "An error occurred"))]
    return redact.text((causes or lines or [type(error).__name__])[0].removeprefix(": "))[:300]  # py4j's prefix
