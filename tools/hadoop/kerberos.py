"""Kerberos for the local cluster: options, principals, and the settings that they change, as pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.hadoop.kdc import HOST, REALM
from tools.hadoop.settings import LOOPBACK, Ports, Settings, host, kind

PROTECTIONS = ("authentication", "integrity", "privacy")
SERVICES = ("nn", "dn", "rm", "nm")
USERS = ("alice", "bob")
PROXY = "service"  # the user that may act as others
ADMIN = f"nn/{HOST}"  # the superuser of HDFS, as whom the cluster's own tools run
APPLICATION_EXPIRY_MS = 300_000  # on a busy machine an application needs up to 150 s to its first step
AES = "AES/CTR/NoPadding"
FILTER = "org.apache.hadoop.security.AuthenticationFilterInitializer"


@dataclass(frozen=True)
class Security:
    """Security of a Kerberized cluster; durations in seconds."""

    protection: str = "authentication"  # of RPC and of the data transfer
    encrypt: bool = False  # dfs.encrypt.data.transfer
    spnego: bool = False  # HTTP of ResourceManager and NodeManagers requires a ticket; that of HDFS always does
    https: bool = False  # web services of all daemons use TLS only
    token_renew_s: int = 86_400
    token_max_s: int = 604_800
    ticket_s: int = 86_400

    def __post_init__(self) -> None:
        if self.protection not in PROTECTIONS:
            raise ValueError(f"protection={self.protection!r}: it must be one of {', '.join(PROTECTIONS)}")
        for name in ("token_renew_s", "token_max_s", "ticket_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least 1")


def principals(ports: Ports, spares: int = 8) -> list[str]:
    """Return the names of all principals: services, one for HTTP at each host, users.

    Args:
        ports: the cluster's daemons.
        spares: NodeManagers that may be added later.
    """
    hosts = web_hosts(ports, spares)
    return [*(f"{service}/{HOST}" for service in SERVICES), *(f"HTTP/{each}" for each in hosts), *USERS, PROXY]


def web_hosts(ports: Ports, spares: int = 8) -> list[str]:
    """Return the name and the addresses at which web services of the cluster are reached; arguments as ``principals``."""
    nodes = {*(name for name in ports if kind(name) == "nm"), *(f"nm{i + 1}" for i in range(spares))}
    return [HOST, LOOPBACK, *sorted(map(host, nodes))]


def secured(settings: Settings, kdc: Path, security: Security) -> Settings:
    """Return the settings of daemons and clients with Kerberos.

    Args:
        settings: those of the cluster without security.
        kdc: folder with the keytabs.
        security: the options.
    """
    by_name = {file: {key: _named(value) for key, value in rows.items()} for file, rows in settings.items()}
    for file, rows in (
        ("core-site.xml", _core(kdc, security)),
        ("hdfs-site.xml", _hdfs(kdc, security)),
        ("yarn-site.xml", _yarn(kdc, security)),
    ):
        by_name[file] = {**by_name[file], **rows}
    return by_name


def _named(value: object) -> object:
    """Replace the loopback address by the name in the principals; NodeManagers keep their addresses."""
    return re.sub(rf"{re.escape(LOOPBACK)}(?!\d)", HOST, value) if isinstance(value, str) else value


def _identity(
    kdc: Path, prefix: str, name: str, keytab: str = "keytab.file", principal: str = "kerberos.principal"
) -> dict[str, object]:
    return {f"{prefix}.{keytab}": kdc / f"{name}.keytab", f"{prefix}.{principal}": f"{name}/{HOST}@{REALM}"}


def _core(kdc: Path, security: Security) -> dict[str, object]:
    groups = {"nn": "supergroup", "rm": "supergroup", "nm": "supergroup", "dn": "hadoop", PROXY: "services"}
    groups |= dict.fromkeys(USERS, "users")
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "false",
        "hadoop.rpc.protection": security.protection,
        # the machine does not know these users
        "hadoop.user.group.static.mapping.overrides": ";".join(f"{user}={group}" for user, group in groups.items()),
        **{f"hadoop.proxyuser.{user}.{what}": "*" for user in ("rm", PROXY) for what in ("hosts", "groups")},
        "hadoop.http.authentication.type": "kerberos",  # otherwise WebHDFS believes any user.name
        "hadoop.http.authentication.kerberos.keytab": kdc / "HTTP.keytab",
        "hadoop.http.authentication.kerberos.principal": "*",  # every one in the keytab, as nodes have separate addresses
        # hdfs-native looks for a token of its URL's host, not of the address
        "hadoop.security.token.service.use_ip": "false",
    }


def _hdfs(kdc: Path, security: Security) -> dict[str, object]:
    rows: dict[str, object] = {
        **_identity(kdc, "dfs.namenode", "nn"),
        **_identity(kdc, "dfs.datanode", "dn"),
        **_identity(kdc, "dfs.journalnode", "nn"),  # it gives edits to its own user only
        **_identity(kdc, "dfs.web.authentication", "HTTP", "kerberos.keytab", "kerberos.principal"),
        "dfs.namenode.kerberos.internal.spnego.principal": f"HTTP/{HOST}@{REALM}",
        "dfs.journalnode.kerberos.internal.spnego.principal": f"HTTP/{HOST}@{REALM}",
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": security.protection,
        "ignore.secure.ports.for.testing": "true",  # otherwise ports below 1024, or HTTPS with certificates
        "dfs.encrypt.data.transfer": str(security.encrypt).lower(),
        "dfs.namenode.delegation.token.always-use": "true",
        "dfs.namenode.delegation.token.renew-interval": security.token_renew_s * 1000,
        "dfs.namenode.delegation.token.max-lifetime": security.token_max_s * 1000,
        "dfs.permissions.superusergroup": "supergroup",
    }
    if security.encrypt or security.protection == "privacy":
        rows["dfs.encrypt.data.transfer.cipher.suites"] = AES  # Hadoop's default is ten times slower
    return rows


def _yarn(kdc: Path, security: Security) -> dict[str, object]:
    rows: dict[str, object] = {
        **_identity(kdc, "yarn.resourcemanager", "rm", "keytab", "principal"),
        **_identity(kdc, "yarn.nodemanager", "nm", "keytab", "principal"),
        "yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled": "false",
        "yarn.resourcemanager.proxy-user-privileges.enabled": "true",
        # the ResourceManager replaces, and stops renewing, a token this near its last day; by default 3 hours
        "yarn.resourcemanager.system-credentials.valid-time-remaining": 10_000,
        # needs Hadoop's native library: "Secure IO is not possible without native code" ends the NodeManager
        "yarn.log-aggregation-enable": "false",
        "yarn.am.liveness-monitor.expiry-interval-ms": APPLICATION_EXPIRY_MS,
    }
    if security.spnego:
        rows["hadoop.http.filter.initializers"] = FILTER
    return rows
