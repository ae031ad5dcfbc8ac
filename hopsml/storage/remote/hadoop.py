"""Common part of the HDFS stores: addresses of NameNodes, permissions of new files."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from hopsml.core import hadoop_http, settings
from hopsml.core.delegation_tokens import HA_PREFIX, HDFS_KIND, Credentials, Token
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.storage import privacy, urls
from hopsml.storage.filesystem import StoreCapacity
from hopsml.storage.remote.store import RemoteStore

_RPC_ADDRESS = "dfs.namenode.rpc-address"
_DEFAULT_PORTS = {"http": 9870, "https": 9871}
_WEB_TIMEOUT_S = 5.0  # for the web service of each NameNode
_MODES_KEPT = 256
# Unless the user configures it, a single NameNode that refuses connections is retried for about 3 s (174 s
# by default). With several NameNodes the client's own failover settings apply.
_LONE_NAMENODE = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}


class HadoopStore(RemoteStore):
    """Base of HDFS stores: the part of ``RemoteStore`` that does not depend on the protocol."""

    is_object_store = False

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._scheme, self._authority, _ = urls.split(url)
        self._modes: dict[str, int] = {}  # cached permissions of folders that decide about new files in them

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """Return an empty dict: a helper process has the same configuration, ticket and tokens."""
        return {}  # a helper process has the same configuration, ticket and tokens

    @staticmethod
    def is_in_this_process(url: str) -> bool:
        """Return False: HDFS can be accessed by other processes."""
        return False

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the whole HDFS, from a NameNode's web service (``dfs.namenode.http-address``)."""
        kind = _web_kind(url, settings.hadoop_settings())
        last: Exception = ConnectionError("no NameNode hosts found")
        for address in web_addresses(url):
            bean = f"{kind}://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
            try:
                answer = hadoop_http.request(bean, _WEB_TIMEOUT_S)
                if answer.status != 200:
                    last = ConnectionError(f"{bean}: HTTP {answer.status} {answer.message}")
                    continue
                facts = json.loads(answer.body)["beans"][0]
                return StoreCapacity(int(facts["CapacityTotal"]), int(facts["CapacityUsed"]))
            except AccessError as error:
                last = PermissionError(str(error))
            except NoAnswer as error:
                last = ConnectionError(str(error))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                last = ConnectionError(f"{bean}: {error!r}")
        raise last

    def _new_folder_mode(self, url: str) -> int:
        return privacy.new_folder_mode(self._mode_above(url))

    def _new_file_mode(self, url: str) -> int:
        return privacy.new_file_mode(self._mode_above(url))

    def _mode_above(self, url: str) -> int:
        """Return the permission that a new file inherits: that of its run's folder, or of the nearest existing one."""
        base, folder = urls.scheme_and_authority(url), privacy.permission_folder(urls.split(url)[2])
        while folder not in self._modes:
            try:
                found = self.status(base + folder).permission
            except FileNotFoundError:
                if folder == "/":
                    raise
                folder = urls.parent(folder)
                continue
            while len(self._modes) >= _MODES_KEPT:
                self._modes.pop(next(iter(self._modes)))
            self._modes[folder] = found
        return self._modes[folder]


def rpc_addresses(url: str) -> list[str]:
    """Return ``host:port`` of each NameNode behind an HDFS URL, according to the client configuration."""
    known = settings.hadoop_settings()
    authority = _authority(url, known)
    found = [known.get(f"{_RPC_ADDRESS}{suffix}", "") for suffix in _suffixes(authority, known)]
    behind = [address for address in found if address] or [authority]
    return [address if ":" in address else f"{address}:8020" for address in behind if address]


def client_settings(url: str) -> dict[str, str]:
    """Return settings of hdfs-native for an HDFS URL in addition to the client configuration."""
    if len(rpc_addresses(url)) > 1 or urls.split(url)[0] == "viewfs":
        return {}
    known = settings.hadoop_settings()
    return {key: value for key, value in _LONE_NAMENODE.items() if key not in known}


def web_addresses(url: str) -> list[str]:
    """Return ``host:port`` of each NameNode's web service behind an HDFS URL, by the client configuration.

    They are those of HTTPS for ``swebhdfs://``, and for ``hdfs://`` where the web services use nothing else. A host of
    ``0.0.0.0`` is replaced by the NameNode's.
    """
    known = settings.hadoop_settings()
    kind = _web_kind(url, known)
    authority = _authority(url, known)
    return [_web_address(kind, suffix, authority, known) for suffix in _suffixes(authority, known) or [""]]


def token_for_web(address: str, held: Credentials) -> Token | None:
    """Return the HDFS token for a web service; None if it belongs to no HDFS for which there is a token.

    Another server must not receive a token. Those of an HDFS are the web services of its NameNodes by the client
    configuration, and the default ports of a NameNode that the configuration does not name.

    Args:
        address: ``host:port`` of the web service.
        held: the tokens of this process.
    """
    known = settings.hadoop_settings()
    of_hdfs = [token for token in held.tokens if token.kind == HDFS_KIND]
    places = [(place, token) for token in of_hdfs for place in (token.service, *_web_services(token.service, known))]
    equal = [token for place, token in places if place == address]
    return next(iter(equal or [token for place, token in places if _is_same_place(place, address)]), None)


def _web_services(service: str, known: Mapping[str, str]) -> list[str]:
    """Return ``host:port`` of each web service of the HDFS that a token names as its service."""
    name = service.removeprefix(HA_PREFIX)
    if name != service:
        suffixes = _suffixes(name, known)
    else:
        rpc = {key: value for key, value in known.items() if key.startswith(_RPC_ADDRESS)}
        default = urls.split(known.get("fs.defaultFS", ""))[1]
        named = {"": default if ":" in default else f"{default}:8020"} if _RPC_ADDRESS not in rpc and default else {}
        named |= {key.removeprefix(_RPC_ADDRESS): value for key, value in rpc.items()}
        suffixes = [suffix for suffix, value in named.items() if _is_same_place(value, name)]
        if not suffixes:
            return [f"{name.rpartition(':')[0]}:{port}" for port in _DEFAULT_PORTS.values()]
    return [_web_address(kind, suffix, name, known) for suffix in suffixes for kind in _DEFAULT_PORTS]


def _web_address(kind: str, suffix: str, authority: str, known: Mapping[str, str]) -> str:
    """Return ``host:port`` of a NameNode's web service (``kind``: http or https), with the suffix of its settings."""
    address = known.get(f"dfs.namenode.{kind}-address{suffix}", f"0.0.0.0:{_DEFAULT_PORTS[kind]}")
    host, _, port = address.rpartition(":")
    if host in ("0.0.0.0", ""):
        rpc = known.get(f"{_RPC_ADDRESS}{suffix}", "") or authority
        host = rpc.partition(":")[0] or "localhost"
    return f"{host}:{port}"


def _is_same_place(one: str, other: str) -> bool:
    """Return True if two ``host:port`` are one: a token may name a host by its IP address, a URL by a short name."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    return port == other_port and (host == other_host or bool(_ip_addresses(host) & _ip_addresses(other_host)))


def _ip_addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)} if host else set()
    except (OSError, UnicodeError):
        return set()


def uses_https_only(known: Mapping[str, str] | None = None) -> bool:
    """Return True if the cluster's web services use TLS only (``dfs.http.policy``)."""
    policy = (settings.hadoop_settings() if known is None else known).get("dfs.http.policy", "")
    return policy.upper() == "HTTPS_ONLY"


def _web_kind(url: str, known: Mapping[str, str]) -> str:
    """Return the scheme, http or https, of the web services for a URL."""
    scheme = urls.split(url)[0]
    is_https = scheme == "swebhdfs" if scheme.endswith("webhdfs") else uses_https_only(known)
    return "https" if is_https else "http"


def _authority(url: str, known: Mapping[str, str]) -> str:
    return urls.split(url)[1] or urls.split(known.get("fs.defaultFS", ""))[1]


def _suffixes(authority: str, known: Mapping[str, str]) -> list[str]:
    """Return the suffix of the settings of each NameNode of a name service; empty for a NameNode's own address."""
    ids = [part.strip() for part in known.get(f"dfs.ha.namenodes.{authority}", "").split(",") if part.strip()]
    return [f".{authority}.{node}" for node in ids]
