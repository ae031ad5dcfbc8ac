"""Common part of the HDFS stores: addresses of NameNodes, permissions of new files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hopsml.core import hadoop_http, settings
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.storage import privacy, urls
from hopsml.storage.filesystem import StoreCapacity
from hopsml.storage.remote.store import RemoteStore

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
        kind = "https" if uses_https_only() else "http"
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
    found = [known.get(f"dfs.namenode.rpc-address{suffix}", "") for suffix in _suffixes(authority, known)]
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

    A host of ``0.0.0.0`` is replaced by the NameNode's.
    """
    known = settings.hadoop_settings()
    kind = "https" if uses_https_only(known) else "http"
    authority = _authority(url, known)
    found = []
    for suffix in _suffixes(authority, known) or [""]:
        address = known.get(f"dfs.namenode.{kind}-address{suffix}", f"0.0.0.0:{_DEFAULT_PORTS[kind]}")
        host, _, port = address.rpartition(":")
        if host in ("0.0.0.0", ""):
            rpc = known.get(f"dfs.namenode.rpc-address{suffix}", "") or authority
            host = rpc.partition(":")[0] or "localhost"
        found.append(f"{host}:{port}")
    return found


def uses_https_only(known: Mapping[str, str] | None = None) -> bool:
    """Return True if the cluster's web services use TLS only (``dfs.http.policy``)."""
    return (settings.hadoop_settings() if known is None else known).get("dfs.http.policy") == "HTTPS_ONLY"


def _authority(url: str, known: Mapping[str, str]) -> str:
    return urls.split(url)[1] or urls.split(known.get("fs.defaultFS", ""))[1]


def _suffixes(authority: str, known: Mapping[str, str]) -> list[str]:
    """Return the suffix of the settings of each NameNode of a name service; empty for a NameNode's own address."""
    ids = [part.strip() for part in known.get(f"dfs.ha.namenodes.{authority}", "").split(",") if part.strip()]
    return [f".{authority}.{node}" for node in ids]
