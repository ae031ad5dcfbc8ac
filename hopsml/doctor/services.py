"""Probes of services: the project's store, HDFS, YARN, a Spark master; every step has a deadline."""

from __future__ import annotations

import email.utils
import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from hopsml.core import proxies, settings
from hopsml.errors import HopsmlError, PathNotFound
from hopsml.storage import filesystem, urls
from hopsml.yarn import rm_addresses

STEP_S = 5.0


@dataclass(frozen=True)
class StoreFacts:
    """Result of writing, reading and deleting a file at the location of the project's runs."""

    url: str
    probed: str = ""  # nearest existing folder
    seconds: float = 0.0
    skew_s: float | None = None  # the store's clock minus this machine's; None for a local disk
    problem: str = ""
    kind: str = ""  # class name of the problem


def store(url: str) -> StoreFacts:
    """Write, read and delete a file in the nearest existing folder of ``url``; no file or folder remains."""
    system = filesystem.for_url(url, STEP_S)
    folder = url
    began = time.monotonic()
    try:
        folder = _nearest(url)
        probe = urls.temporary_sibling(urls.join(folder, "probe"))
        before = time.time()
        try:
            system.write_bytes(probe, b"hopsml doctor")
            written, after = system.status(probe), time.time()
            if system.read_bytes(probe) != b"hopsml doctor":
                return StoreFacts(
                    url,
                    folder,
                    problem="the file that was read differs from the file that was written",
                    kind="StorageError",
                )
        finally:
            system.delete(probe)
    except HopsmlError as error:
        return StoreFacts(url, folder, time.monotonic() - began, None, str(error), type(error).__name__)
    is_local = urls.split(url)[0] in ("", "file")
    skew_s = None if is_local or not written.modified_s else skew(written.modified_s, before, after)
    return StoreFacts(url, folder, time.monotonic() - began, skew_s)


def skew(theirs_s: float, before_s: float, after_s: float) -> float:
    """Return another clock minus this machine's, in seconds, from an event between two readings of this machine's.

    Args:
        theirs_s: time of the event by the other clock.
        before_s: reading before the event.
        after_s: reading after the event.

    Returns:
        The difference; 0 if ``theirs_s`` lies between the readings.
    """
    return theirs_s - min(max(theirs_s, before_s), after_s)


def _nearest(url: str) -> str:
    """Return the nearest existing folder: the given one, or one above it."""
    while True:
        try:
            filesystem.for_url(url, STEP_S).status(url)
            return url
        except PathNotFound:
            above = urls.parent(url)
            if above == url:
                raise
            url = above


@dataclass(frozen=True)
class HdfsFacts:
    """URL in ``fs.defaultFS`` of the Hadoop configuration, and whether its NameNode responds."""

    conf_dir: str  # empty without a Hadoop configuration
    default_fs: str
    seconds: float = 0.0
    total_bytes: int = 0
    used_bytes: int = 0
    problem: str = ""
    kind: str = ""


def hdfs() -> HdfsFacts:
    """Query the NameNode for the root directory, and its web address for the capacity.

    The web address may be unreachable; the capacity is then 0.
    """
    conf_dir, default_fs = settings.hadoop_conf_dir(), settings.default_fs() or ""
    if not default_fs:
        return HdfsFacts(str(conf_dir or ""), default_fs)
    system, root = filesystem.for_url(default_fs, STEP_S), default_fs + "/"
    began = time.monotonic()
    try:
        system.status(root)
    except HopsmlError as error:
        seconds = time.monotonic() - began
        return HdfsFacts(str(conf_dir), default_fs, seconds, problem=str(error), kind=type(error).__name__)
    seconds = time.monotonic() - began
    try:
        size = system.capacity(root)
    except HopsmlError:
        return HdfsFacts(str(conf_dir), default_fs, seconds)
    return HdfsFacts(str(conf_dir), default_fs, seconds, size.total, size.used)


@dataclass(frozen=True)
class YarnFacts:
    """State of the YARN cluster, as its ResourceManager reports it."""

    addresses: tuple[str, ...]  # of its REST service; empty if not configured
    answered: str = ""  # address that responded
    version: str = ""
    nodes: int = 0
    memory_mb: int = 0  # of all nodes together
    cores: int = 0
    pending: int = 0  # waiting applications
    skew_s: float | None = None
    problem: str = ""
    status: int = 0  # HTTP status, if it was an error


def yarn() -> YarnFacts:
    """Query the ResourceManagers that yarn-site.xml names, until one responds."""
    scheme, addresses = rm_addresses(settings.yarn_settings())
    problem, status = "", 0
    for address in addresses:
        base = f"{scheme}://{address}/ws/v1/cluster"
        try:
            info, skew_s = _get(f"{base}/info")
            metrics = _get(f"{base}/metrics")[0]["clusterMetrics"]
            return YarnFacts(
                addresses,
                address,
                version=info["clusterInfo"].get("resourceManagerVersion", ""),
                nodes=metrics["activeNodes"],
                memory_mb=metrics["totalMB"],
                cores=metrics["totalVirtualCores"],
                pending=metrics["appsPending"],
                skew_s=skew_s,
            )
        except urllib.error.HTTPError as error:
            problem, status = f"{base}: HTTP {error.code} {error.reason}", error.code
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = getattr(error, "reason", None) or error
            problem, status = f"{base}: {reason}", 0
    return YarnFacts(addresses, problem=problem, status=status)


def _get(address: str) -> tuple[dict[str, Any], float | None]:
    """Return the JSON of a response, and the server's clock minus this machine's in seconds.

    The skew comes from the header Date, which has whole seconds; it is None without one.
    """
    before = time.time()
    request = urllib.request.Request(address, headers={"Accept": "application/json"})
    with proxies.opener(request.full_url).open(request, timeout=STEP_S) as answer:
        content, date = json.load(answer), answer.headers.get("Date")
    if not date:
        return content, None
    theirs_s = email.utils.parsedate_to_datetime(date).timestamp()
    return content, skew(theirs_s, before - 1.0, time.time())


@dataclass(frozen=True)
class MasterFacts:
    """Addresses of a standalone Spark master; ``problems`` has one line for each that does not respond."""

    master: str
    answered: str = ""
    problems: tuple[str, ...] = ()


def spark_master(master: str) -> MasterFacts:
    """Connect to the addresses of ``spark://host:port[,host:port]``, until one accepts."""
    problems: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=STEP_S):
                return MasterFacts(master, address, tuple(problems))
        except (OSError, ValueError) as error:
            problems.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    return MasterFacts(master, "", tuple(problems))
