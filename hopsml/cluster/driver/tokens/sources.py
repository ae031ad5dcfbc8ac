"""Sources of delegation tokens in the driver: Spark's JVM with a keytab or a ticket, or a token file."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hopsml.cluster.driver.tokens import plan
from hopsml.core import delegation_tokens as tokens
from hopsml.core import krb5, redact, settings
from hopsml.core.delegation_tokens import Credentials
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.storage import urls

log = logging.getLogger(__name__)

# Tokens that executors receive. Others, such as the ApplicationMaster's for the ResourceManager, are not for workers.
KINDS = (tokens.HDFS_KIND, "WEBHDFS delegation", "SWEBHDFS delegation", "kms-dt")
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
    """

    credentials: Credentials = field(repr=False)
    life_s: float = 0.0
    longest_s: float = 0.0
    ticket_s: float = 0.0

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


@dataclass(frozen=True)
class TokenFileSource:
    """A token file that another program replaces."""

    path: str
    obtains = False
    extends = False
    is_backed = False

    def find(self) -> FoundTokens:
        """Return the tokens of the file."""
        try:
            found = tokens.read(self.path).of_kinds((*KINDS, *SETTINGS.token_kinds))
        except ArgumentError as error:
            raise TokenSourceError(str(error)) from error
        return FoundTokens(found, longest_s=_longest_s(found))


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
        self._refused: set[str] = set()
        self._others: dict[str, tuple[float, Any]] = {}  # stores that Spark does not know: when due, credentials

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
        for url in self._stores():
            if url not in self._refused and not self._has(url, held):
                held.addAll(self._of_store(url))
        found = self._read(held)
        if not found.tokens:
            raise TokenSourceError("Spark has none; check spark.kerberos.keytab and spark.kerberos.principal")
        return FoundTokens(found, longest_s=_longest_s(found))

    def _of_store(self, url: str) -> Any:
        """Return tokens of a store that Spark does not know, obtained anew every half an hour.

        Raises TokenSourceError, once for each store: without a ticket in the JVM there are none.
        """
        due_s, obtained = self._others.get(url, (0.0, None))
        if time.time() >= due_s:
            obtained = self._jvm.org.apache.hadoop.security.Credentials()
            try:
                self._add(url, obtained)
            except Exception as error:
                self._refused.add(url)
                raise TokenSourceError(
                    f"none for {url}: {_reason(error)}; add it to spark.kerberos.access.hadoopFileSystems"
                ) from error
            self._others[url] = time.time() + plan.UNKNOWN_LIFE_S / 2, obtained
        return obtained

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
        conf = self._jvm.org.apache.hadoop.conf.Configuration(self._hadoop_conf())
        conf.set("hadoop.security.kerberos.ticket.cache.path", ticket.cache.removeprefix("FILE:"))
        held, lives = self._jvm.org.apache.hadoop.security.Credentials(), list[float]()
        for url in self._stores():
            where = self._jvm.java.net.URI.create(_as_hdfs(url))
            system = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(where, conf, ticket.principal)
            try:
                added = system.addDelegationTokens(self._user().getShortUserName(), held)
                lives += [self._life_s(system, token) for token in added]
            finally:
                system.close()
        found = self._read(held)
        if not found.tokens:
            raise TokenSourceError("no store in use gives delegation tokens")
        ticket_s = max(0.0, max(ticket.ends_s, ticket.renewable_until_s) - time.time())
        return FoundTokens(found, min(lives, default=0.0), _longest_s(found), ticket_s)

    def _life_s(self, system: Any, token: Any) -> float:
        """Return the seconds until a new token must be renewed: by the NameNode, else by the configuration."""
        try:
            ends_ms = int(system.getClient().getNamenode().renewDelegationToken(token))
            return max(0.0, (ends_ms - int(token.decodeIdentifier().getIssueDate())) / 1000)
        except Exception:  # noqa: BLE001 a store of another kind, or a NameNode that refuses it
            interval = self._hadoop_conf().get("dfs.namenode.delegation.token.renew-interval", "86400000")
            return int(interval) / 1000 if str(interval).isdecimal() else 0.0

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

    def _add(self, url: str, held: Any) -> None:
        """Add tokens of a store to credentials of the JVM."""
        self._system(url).addDelegationTokens(self._user().getShortUserName(), held)

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


def _as_hdfs(url: str) -> str:
    return url.replace("hopsfs://", "hdfs://", 1)


def _longest_s(found: Credentials) -> float:
    """Return the seconds until the first of the HDFS tokens ends for good; 0 without one."""
    ends = [token.describe().last_s for token in found.tokens if token.kind == tokens.HDFS_KIND]
    return max(0.0, min(ends) - time.time()) if ends else 0.0


def _reason(error: BaseException) -> str:
    """Return the first line of an error, of Java's the one with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("at ", "An error occurred"))]
    return redact.text((causes or lines or [type(error).__name__])[0])[:300]
