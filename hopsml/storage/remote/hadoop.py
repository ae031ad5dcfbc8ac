"""Common part of the HDFS stores: addresses of NameNodes, permissions of new files, delegation tokens.

YARN and Spark provide tokens in the file ``HADOOP_TOKEN_FILE_LOCATION``: ``HDTS``, a version byte (0: Hadoop's
Writables), a count, then alias, identifier, password, kind and service of each token. hdfs-native reads it by itself;
WebHDFS requires the tokens as text.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.core import hadoop_http, settings
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.errors import ArgumentError
from hopsml.storage import privacy, urls
from hopsml.storage.filesystem import StoreCapacity
from hopsml.storage.remote.store import RemoteStore

HDFS_KIND = "HDFS_DELEGATION_TOKEN"


@dataclass(frozen=True)
class Token:
    """One delegation token, with the fields of the file."""

    alias: str
    identifier: bytes
    password: bytes
    kind: str
    service: str

    def as_text(self) -> str:
        """Return the token in base64, as WebHDFS requires it for ``delegation=`` in an address."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        wire = b"".join(_number(len(part)) + part for part in fields)
        return base64.urlsafe_b64encode(wire).rstrip(b"=").decode()


def from_environment() -> list[Token]:
    """Return the tokens of ``HADOOP_TOKEN_FILE_LOCATION``; empty if it is not set.

    Raises ArgumentError for a file that cannot be read or parsed.
    """
    path = os.environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except OSError as error:
        raise ArgumentError(
            f"HADOOP_TOKEN_FILE_LOCATION={path!r}: the file cannot be read ({error}); set the variable to a Hadoop "
            "token file"
        ) from error


def for_service(tokens: Sequence[Token], authority: str) -> Token | None:
    """Return the HDFS token for a name service or ``host:port``; None if there is none.

    If there is only one HDFS token, it is returned regardless of its service.
    """
    found = [token for token in tokens if token.kind == HDFS_KIND]
    for token in found:
        if token.service.removeprefix("ha-hdfs:") == authority:
            return token
    return found[0] if len(found) == 1 else None


def parse(data: bytes) -> list[Token]:
    """Return the tokens of a file's content; ArgumentError for a broken one or the protobuf form."""
    if data[:4] != b"HDTS":
        raise ArgumentError("this is not a Hadoop token file, since it does not begin with HDTS")
    if data[4:5] != b"\0":
        raise ArgumentError(f"the Hadoop token file has version {data[4:5]!r}; only version 0 can be read")
    reader = _Reader(data, 5)
    return [
        Token(reader.text(), reader.block(), reader.block(), reader.text(), reader.text())
        for _ in range(reader.number())
    ]


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def number(self) -> int:
        """Return Hadoop's integer of variable length: one byte, or a byte with the number of bytes that follow."""
        first = int.from_bytes(self._take(1), "big", signed=True)
        if first >= -112:
            return first
        value = int.from_bytes(self._take(-112 - first if first >= -120 else -120 - first), "big")
        return value if first >= -120 else ~value

    def block(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.block().decode()

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if count < 0 or len(piece) < count:
            raise ArgumentError(f"the Hadoop token file ends within a token, at byte {self._at}")
        self._at += count
        return piece


def _number(value: int) -> bytes:
    if value <= 127:
        return bytes([value])
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(body)]) + body


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
        kind = "https" if is_secure() else "http"
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
        return privacy.of_folder(self._mode_above(url))

    def _new_file_mode(self, url: str) -> int:
        return privacy.of_file(self._mode_above(url))

    def _mode_above(self, url: str) -> int:
        """Return the permission that a new file inherits: that of its run's folder, or of the nearest existing one."""
        base, folder = urls.base(url), privacy.decisive(urls.split(url)[2])
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
    kind = "https" if is_secure(known) else "http"
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


def is_secure(known: Mapping[str, str] | None = None) -> bool:
    """Return True if the cluster's web services use TLS only (``dfs.http.policy``)."""
    return (settings.hadoop_settings() if known is None else known).get("dfs.http.policy") == "HTTPS_ONLY"


def _authority(url: str, known: Mapping[str, str]) -> str:
    return urls.split(url)[1] or urls.split(known.get("fs.defaultFS", ""))[1]


def _suffixes(authority: str, known: Mapping[str, str]) -> list[str]:
    """Return the suffix of the settings of each NameNode of a name service; empty for a NameNode's own address."""
    ids = [part.strip() for part in known.get(f"dfs.ha.namenodes.{authority}", "").split(",") if part.strip()]
    return [f".{authority}.{node}" for node in ids]
