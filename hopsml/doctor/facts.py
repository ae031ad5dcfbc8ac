"""Probes of this machine (versions, limits, ports, addresses) and of services (project store, HDFS, YARN, Spark master).

They only gather facts; processes, and every step to a service, have a deadline.
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import ipaddress
import json
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hopsml.cluster.agent import network
from hopsml.cluster.shared.gpus import HostGpu, host_gpus
from hopsml.core import hadoop_http, processes, settings
from hopsml.core.hadoop_http import AccessError, NoAnswer
from hopsml.core.variables import Settings
from hopsml.errors import HopsmlError, PathNotFound, StorageError
from hopsml.storage import filesystem, urls
from hopsml.submission import spark_connect
from hopsml.submission.spark_connect import ConnectFacts
from hopsml.yarn import rm_web_addresses

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


def probe_store(url: str) -> StoreFacts:
    """Write, read and delete a file in the nearest existing folder of ``url``; no file or folder remains."""
    system = filesystem.for_url(url, STEP_S)
    folder = url
    began = time.monotonic()
    try:
        folder = _nearest(url)
        probe = urls.temporary_sibling(urls.join(folder, "probe"))
        before = time.time()
        with _deleted_at_the_end(system, probe):
            system.write_bytes(probe, b"hopsml doctor")
            written, after = system.status(probe), time.time()
            if system.read_bytes(probe) != b"hopsml doctor":
                raise StorageError("the file that was read differs from the file that was written")
    except HopsmlError as error:
        return StoreFacts(url, folder, time.monotonic() - began, None, str(error), type(error).__name__)
    is_local = urls.split(url)[0] in ("", "file")
    skew_s = None if is_local or not written.modified_s else clock_skew_s(written.modified_s, before, after)
    return StoreFacts(url, folder, time.monotonic() - began, skew_s)


@contextlib.contextmanager
def _deleted_at_the_end(system: filesystem.FileSystem, url: str) -> Iterator[None]:
    """Delete a file after the block; an error of the block is not replaced by one of the deletion."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(HopsmlError):
            system.delete(url)
        raise
    system.delete(url)


def clock_skew_s(theirs_s: float, before_s: float, after_s: float) -> float:
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


def probe_hdfs() -> HdfsFacts:
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
    status: int = 0  # 401 if it refuses this user, or there is no valid ticket
    node: str = ""  # address of the NodeManager that was asked
    node_problem: str = ""


def probe_yarn() -> YarnFacts:
    """Query the ResourceManagers that yarn-site.xml names, until one responds, and one of its NodeManagers."""
    (scheme, addresses), problem, status = rm_web_addresses(settings.yarn_settings()), "", 0
    for address in addresses:
        base = f"{scheme}://{address}/ws/v1/cluster"
        try:
            info, skew_s = _get(f"{base}/info")
            metrics = _get(f"{base}/metrics")[0]["clusterMetrics"]
            found = YarnFacts(
                addresses,
                address,
                version=info["clusterInfo"].get("resourceManagerVersion", ""),
                nodes=metrics["activeNodes"],
                memory_mb=metrics["totalMB"],
                cores=metrics["totalVirtualCores"],
                pending=metrics["appsPending"],
                skew_s=skew_s,
            )
            node, node_problem = _node_manager(scheme, base)
            return replace(found, node=node, node_problem=node_problem)
        except AccessError as error:
            problem, status = str(error), 401
        except NoAnswer as error:
            problem, status = str(error), 0
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problem, status = f"{base}: {error}", 0
    return YarnFacts(addresses, problem=problem, status=status)


def _node_manager(scheme: str, base: str) -> tuple[str, str]:
    """Return the address of a running NodeManager, and why it does not answer; both empty without one."""
    nodes = (_get(f"{base}/nodes?states=RUNNING")[0].get("nodes") or {}).get("node") or []
    if not nodes:
        return "", ""
    address = str(nodes[0]["nodeHTTPAddress"])
    try:
        _get(f"{scheme}://{address}/ws/v1/node/info")
    except (OSError, ValueError, RecursionError) as error:
        return address, str(error)
    return address, ""


def _get(address: str) -> tuple[dict[str, Any], float | None]:
    """Return the JSON of a response, and the server's clock minus this machine's in seconds.

    The skew comes from the header Date, which has whole seconds; it is None without one.
    """
    before = time.time()
    answer = hadoop_http.request(address, STEP_S, accept="application/json")
    if answer.status != 200:
        kind = AccessError if answer.status in (401, 403) else NoAnswer
        raise kind(f"{address}: HTTP {answer.status} {answer.message}")
    content = json.loads(answer.body)
    if not answer.date:
        return content, None
    theirs_s = email.utils.parsedate_to_datetime(answer.date).timestamp()
    return content, clock_skew_s(theirs_s, before - 1.0, time.time())


@dataclass(frozen=True)
class SparkFacts:
    """Versions of the installed pyspark and of the Spark in SPARK_HOME."""

    pyspark: str  # version; empty if not installed
    hadoop_client: str  # version in the jars that spark-submit would use
    home: str  # SPARK_HOME
    home_version: str  # version of the Spark in SPARK_HOME
    connect: ConnectFacts = field(default_factory=ConnectFacts)


def find_spark(packages: dict[str, str]) -> SparkFacts:
    """Return the versions of pyspark and the Hadoop client, read from packages and jar names; no JVM is started."""
    home = os.environ.get("SPARK_HOME", "")
    spec = find_spec("pyspark")
    installed = str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else ""
    jars = Path(home or installed, "jars")
    return SparkFacts(
        pyspark=packages.get("pyspark", ""),
        hadoop_client=_jar_version(jars, "hadoop-client-api"),
        home=home,
        home_version=_jar_version(Path(home, "jars"), "spark-core_*") if home else "",
        connect=spark_connect.find_connect(),
    )


def _jar_version(folder: Path, name: str) -> str:
    """Return the version in the name of a jar; empty if the folder does not have it."""
    for jar in sorted(folder.glob(f"{name}-*.jar")) if folder.is_dir() else ():
        found = re.search(r"-(\d[\w.]*?)\.jar$", jar.name)
        if found:
            return found.group(1)
    return ""


@dataclass(frozen=True)
class HostGpuFacts:
    """GPUs of this machine that respond, and whether NVIDIA's driver is installed."""

    gpus: tuple[HostGpu, ...]
    has_driver: bool


def probe_gpus() -> HostGpuFacts:
    """Query NVML for GPUs, or nvidia-smi (with a deadline) if NVML is unavailable."""
    return HostGpuFacts(host_gpus(), shutil.which("nvidia-smi") is not None)


@dataclass(frozen=True)
class PythonFacts:
    """Version and packages of the executors' Python; ``asked`` is the path or name by which it was started."""

    asked: str
    source: str  # the variable, or "default"
    version: str = ""
    has_hopsml: bool = False
    problem: str = ""


def probe_executors_python(configured: str) -> PythonFacts:
    """Query the Python that Spark starts on this machine.

    It is ``configured`` (spark.pyspark.python), else PYSPARK_PYTHON, else python3.
    """
    asked = configured or os.environ.get("PYSPARK_PYTHON", "")
    source = "spark.pyspark.python" if configured else "PYSPARK_PYTHON" if asked else "default"
    path = shutil.which(asked or "python3")
    if path is None:
        return PythonFacts(asked or "python3", source, problem="this program does not exist on this machine")
    code = (
        "import sys, importlib.util as u; print('%d.%d.%d' % sys.version_info[:3], u.find_spec('hopsml') is not None)"
    )
    # In an empty folder, because this project's source tree must not count as installed.
    with tempfile.TemporaryDirectory(prefix="hopsml-doctor-") as elsewhere:
        output, problem = processes.run_with_deadline([path, "-c", code], cwd=elsewhere)
    version, _, has_hopsml = output.strip().rpartition("\n")[2].partition(" ")
    return PythonFacts(asked or "python3", source, version, has_hopsml == "True", problem)


@dataclass(frozen=True)
class LimitFacts:
    """Limits of the operating system for this process; -1: no limit."""

    open_files: int
    processes: int
    stack_bytes: int
    shm_bytes: int  # size of /dev/shm, 0 if there is none


def limits() -> LimitFacts:
    """Return the soft limits of this process, which apply unless a process raises them."""
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_frsize * shm.f_blocks
    except OSError:
        shm_bytes = 0
    return LimitFacts(
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        stack_bytes=resource.getrlimit(resource.RLIMIT_STACK)[0],
        shm_bytes=shm_bytes,
    )


@dataclass(frozen=True)
class ScratchFacts:
    """Space in the folder where agents store files until these are on shared storage."""

    folder: str
    free_bytes: int
    free_inodes: int  # -1 if the file system does not report it
    problem: str = ""


def probe_scratch() -> ScratchFacts:
    """Write and remove a file in the temporary folder, and measure its free space."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="hopsml-doctor-") as file:
            file.write(b"probe")
            file.flush()
        space = os.statvfs(folder)
    except OSError as error:
        return ScratchFacts(folder, 0, 0, error.strerror or str(error))
    return ScratchFacts(folder, space.f_frsize * space.f_bavail, space.f_favail if space.f_files else -1)


@dataclass(frozen=True)
class PortFacts:
    """Number of ports of HOPSML_PORT_RANGE that can be bound; without a range, whether any can."""

    text: str  # value of the variable
    tried: int
    free: int
    problem: str = ""


PORTS_TRIED = 200


def probe_ports() -> PortFacts:
    """Bind each port of the range for a moment, at most ``PORTS_TRIED``; without a range one of the kernel's choice."""
    text = os.environ.get(Settings.port_range.name, "")
    first, _, last = text.partition("-")
    if text and not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        return PortFacts(text, 0, 0, f"HOPSML_PORT_RANGE={text!r} is not two port numbers, low-high")
    candidates = range(int(first), int(last) + 1)[:PORTS_TRIED] if text else (0,)
    outcomes = [_can_bind(port) for port in candidates]
    problem = next((outcome for outcome in outcomes if outcome), "")
    return PortFacts(text, len(outcomes), outcomes.count(""), problem)


def _can_bind(port: int) -> str:
    """Return why the port cannot be bound, by IPv4 or IPv6, whichever the host has; empty if it can."""
    problems = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
        except OSError as error:
            # The host does not have this address family.
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return error.strerror or str(error)
            problems.append(error.strerror or str(error))
    return problems[0] if len(problems) == 2 else ""


@dataclass(frozen=True)
class AddressFacts:
    """Addresses of this machine, and the one that Spark's driver would announce to executors."""

    hostname: str
    local: tuple[str, ...]
    announced: str
    source: str  # spark.driver.host | SPARK_LOCAL_IP | the host's name
    problem: str = ""


def find_addresses(driver_host: str, local_ip: str) -> AddressFacts:
    """Find this machine's addresses, and the one that Spark's driver would announce.

    As in Spark, if the host's name resolves to loopback, the first other address is announced.

    Args:
        driver_host: the profile's ``spark.driver.host``; empty if not set.
        local_ip: SPARK_LOCAL_IP; empty if not set.
    """
    hostname, local = socket.gethostname(), network.local_addresses()
    for value, source in ((driver_host, "spark.driver.host"), (local_ip, "SPARK_LOCAL_IP")):
        if value:
            return AddressFacts(hostname, local, *_resolved(value, source))
    announced, source, problem = _resolved(hostname, "the host name")
    if not problem and ipaddress.ip_address(announced).is_loopback:
        real = [address for address in local if not ipaddress.ip_address(address).is_loopback]
        announced = real[0] if real else announced
    return AddressFacts(hostname, local, announced, source, problem)


def _resolved(name: str, source: str) -> tuple[str, str, str]:
    """Resolve a name or address, to IPv4 if possible; brackets around IPv6 are removed."""
    try:
        found = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
        best = min(found, key=lambda one: one[0] != socket.AF_INET)
        return str(best[4][0]).partition("%")[0], source, ""
    except OSError as error:
        return "", source, f"{name!r} cannot be resolved: {error.strerror or error}"


def python_version() -> tuple[int, int, int]:
    """Return the version of this interpreter, which is the driver's."""
    return sys.version_info[:3]
