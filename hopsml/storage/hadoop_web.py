"""What only the NameNode's web address tells: where it is, and how large the file system is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any

from hopsml import settings
from hopsml.errors import StorageError, StorageUnavailable
from hopsml.storage import causes, urls
from hopsml.storage.deadline import Steps
from hopsml.storage.filesystem import Capacity

_DEFAULT_PORTS = {"http": 9870, "https": 9871}


def web_addresses(url: str) -> list[str]:
    """``host:port`` of each NameNode's web service behind an HDFS URL, by the client configuration.

    A host of ``0.0.0.0`` stands for the NameNode's own.
    """
    known = settings.hadoop_settings()
    kind = "https" if is_secure(known) else "http"
    authority = urls.split(url)[1] or urls.split(known.get("fs.defaultFS", ""))[1]
    ids = [part.strip() for part in known.get(f"dfs.ha.namenodes.{authority}", "").split(",") if part.strip()]
    suffixes = [f".{authority}.{node}" for node in ids] or [""]
    found = []
    for suffix in suffixes:
        address = known.get(f"dfs.namenode.{kind}-address{suffix}", f"0.0.0.0:{_DEFAULT_PORTS[kind]}")
        host, _, port = address.rpartition(":")
        if host in ("0.0.0.0", ""):
            rpc = known.get(f"dfs.namenode.rpc-address{suffix}", "") or authority
            host = rpc.partition(":")[0] or "localhost"
        found.append(f"{host}:{port}")
    return found


def is_secure(known: Mapping[str, str] | None = None) -> bool:
    """Whether the cluster's web services speak TLS alone (``dfs.http.policy``)."""
    return (settings.hadoop_settings() if known is None else known).get("dfs.http.policy") == "HTTPS_ONLY"


def capacity(url: str, timeout_s: float) -> Capacity:
    """Bytes of the whole HDFS. StorageUnavailable when no NameNode's web address answers."""
    kind = "https" if is_secure() else "http"
    last: StorageError = StorageUnavailable(f"cannot measure {url}: no NameNode is configured", url)
    for address in web_addresses(url):
        bean = f"{kind}://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with Steps("measure", url, timeout_s) as steps:
                facts = steps.run(partial(_get_json, bean, timeout_s))["beans"][0]
            return Capacity(int(facts["CapacityTotal"]), int(facts["CapacityUsed"]))
        except StorageError as error:
            last = error
        except (OSError, ValueError, LookupError) as error:
            last = causes.from_text("measure", f"{url} at {bean}", type(error).__name__, str(error))
    raise last


def _get_json(address: str, timeout_s: float) -> Any:
    with urllib.request.urlopen(address, timeout=timeout_s) as answer:
        return json.load(answer)
