"""Locations and timeouts, from environment variables and Hadoop's client configuration.

They are read at each call, so that a changed variable or file takes effect at once.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from hopsml.errors import ArgumentError

DEFAULT_STORAGE_TIMEOUT_S = 30.0
SYSTEM_METRICS = "HOPSML_SYSTEM_METRICS_S"  # passed to workers as a variable
DEFAULT_SYSTEM_METRICS_S = 5.0
ENCRYPTION = "HOPSML_ENCRYPTION"  # in the driver's environment
CORES = "HOPSML_CORES"  # in the environment of the driver or of a run, where agents read it
PORT_RANGE = "HOPSML_PORT_RANGE"  # in the driver's environment; passed to workers as a variable
AGENT_PORTS = 6  # two of its worker, two reserved for the next one, commits, the check of the network
PORT_NEEDS = (
    f"of {PORT_RANGE} each agent on a host needs {AGENT_PORTS} ports, two more in a run with data=, one more for each "
    "process group of gloo's; the driver needs one"
)
KEEPALIVE = "HOPSML_KEEPALIVE_S"  # passed to workers as a variable
DEFAULT_KEEPALIVE_S = 15.0  # firewalls drop the state of idle connections after a minute or more
DEFAULT_DRAIN_S = 30.0  # Kubernetes' default, and the least of the cloud providers
LOCAL_LOGDIR = "HOPSML_LOCAL_LOGDIR"  # passed to workers as "1" in a run with local_logdir=True
HDFS_CLIENT = "HOPSML_HDFS_CLIENT"  # settings for TensorFlow's hdfs://, as comma-separated key=value
# Later ones override earlier ones.
_CONF_FILES = ("core-default.xml", "core-site.xml", "hdfs-default.xml", "hdfs-site.xml")


def storage_timeout_s() -> float:
    """Return the deadline of one storage step (one remote call, or one chunk of a transfer), in seconds.

    The value of ``HOPSML_STORAGE_TIMEOUT_S``, by default 30.
    """
    return _seconds("HOPSML_STORAGE_TIMEOUT_S", DEFAULT_STORAGE_TIMEOUT_S, " above 0", least=sys.float_info.min)


def system_metrics_s() -> float:
    """Return the interval at which a worker's resource usage is sampled, in seconds; 0: never.

    The value of ``HOPSML_SYSTEM_METRICS_S``, by default 5.
    """
    return _seconds(SYSTEM_METRICS, DEFAULT_SYSTEM_METRICS_S, ", or 0 to look at nothing")


def port_range() -> tuple[int, int] | None:
    """Return the ports (first, last; both included) that ``HOPSML_PORT_RANGE`` allows; None for any.

    Raises:
        ArgumentError: the variable is not a range of ports.
    """
    text = os.environ.get(PORT_RANGE, "")
    if not text:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise ArgumentError(
            f"{PORT_RANGE}={text!r} must be two port numbers, low-high, from 1 to 65535, for instance 40000-40100"
        )
    return int(first), int(last)


def no_free_port(first: int, last: int, host: str) -> str:
    """Return the error text for a range (both ends included) in which no port of ``host`` is free."""
    return (
        f"no port of {PORT_RANGE}={first}-{last} is free on {host}: widen the range, or end what holds these ports "
        f"(ss -tlnp shows who listens); {PORT_NEEDS}"
    )


def keepalive_s() -> float:
    """Return the seconds without traffic after which workers probe a TCP connection; 0: they set no keepalive.

    The value of ``HOPSML_KEEPALIVE_S``, by default 15.
    """
    return _seconds(KEEPALIVE, DEFAULT_KEEPALIVE_S, ", or 0 to set no keepalive")


def drain_s() -> float:
    """Return the time between a node's warning and its end, in seconds, for clusters that do not report it.

    The value of ``HOPSML_DRAIN_S``, by default 30.
    """
    return _seconds("HOPSML_DRAIN_S", DEFAULT_DRAIN_S, ", or 0 to leave at once")


def ui_memory_bytes() -> int:
    """Return the memory that the web page's server may use for cached data of viewed runs, in bytes.

    The value of ``HOPSML_UI_MEMORY_MB``, by default 256.

    Raises:
        ArgumentError: the variable is not a number of megabytes in the allowed range.
    """
    text = os.environ.get("HOPSML_UI_MEMORY_MB", "") or "256"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise ArgumentError(f"HOPSML_UI_MEMORY_MB={text!r}: write a whole number of megabytes, 1 to {1 << 20}")
    return int(text) << 20


def encryption() -> bool:
    """Return True if hopsml's collective encrypts in all runs, whatever they request.

    True if ``HOPSML_ENCRYPTION`` is 1; by default it is 0.

    Raises:
        ArgumentError: the variable is neither 0 nor 1.
    """
    text = os.environ.get(ENCRYPTION, "") or "0"
    if text not in ("0", "1"):
        raise ArgumentError(
            f"{ENCRYPTION}={text!r}: it must be 1 to encrypt in all runs, or 0 for those that ask for it"
        )
    return text == "1"


def cores_of(environment: Mapping[str, str]) -> int | None:
    """Return the number of cores that each worker has for itself, from ``HOPSML_CORES`` in these variables.

    Returns:
        The number of cores; 0 to leave the assignment to the system; None for "auto", which is the default.

    Raises:
        ArgumentError: the variable has another value.
    """
    text = environment.get(CORES, "") or "auto"
    if text != "auto" and not text.isdecimal():
        raise ArgumentError(
            f"{CORES}={text!r}: it must be a number of cores for each worker, 0 to leave that to the system, or auto"
        )
    return None if text == "auto" else int(text)


def num_parameter_servers() -> int | None:
    """Return the value of the predecessor's variable NUM_TF_PS; None without it.

    Raises:
        ArgumentError: the variable is not a whole number.
    """
    value = os.environ.get("NUM_TF_PS", "").strip()
    if not value:
        return None
    if not re.fullmatch("[0-9]+", value):
        raise ArgumentError(f"NUM_TF_PS={value!r}: a number of parameter servers, 0 or more, was expected")
    return int(value)


def _seconds(variable: str, default_s: float, which: str, least: float = 0.0) -> float:
    """Return the number in an environment variable, else the default.

    ``which`` describes allowed numbers in the error.
    """
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default_s
    except ValueError:
        seconds = -1.0
    if not least <= seconds < float("inf"):
        raise ArgumentError(
            f"{variable}={text!r}: it must be a number of seconds{which}; unset it for the default of {default_s:g} s"
        )
    return seconds


def mlflow_tracking_uri(profile_environment: Mapping[str, str]) -> str:
    """Return MLflow's tracking URI: ``MLFLOW_TRACKING_URI``, else that of the profile's ``environment``.

    Empty for none. MLflow's own ``set_tracking_uri`` sets the variable. ``HOPSML_MLFLOW=0`` disables tracking.
    """
    if os.environ.get("HOPSML_MLFLOW", "") == "0":
        return ""
    return os.environ.get("MLFLOW_TRACKING_URI") or profile_environment.get("MLFLOW_TRACKING_URI", "")


def hadoop_conf_dir() -> Path | None:
    """Return the folder of Hadoop's client configuration; None without one.

    It is ``HADOOP_CONF_DIR``, else the folder that Spark ships into a YARN container, else ``etc/hadoop`` in
    ``HADOOP_HOME``.
    """
    named = os.environ.get("HADOOP_CONF_DIR")
    if named:
        return Path(named).absolute()
    for base in (os.environ.get("PWD"), os.getcwd()):  # a container's Python has PWD, not HADOOP_CONF_DIR
        shipped = Path(base or ".").absolute() / "__spark_conf__" / "__hadoop_conf__"
        if shipped.is_dir():
            return shipped
    home = os.environ.get("HADOOP_HOME")
    usual = Path(home, "etc", "hadoop") if home else None
    return usual.absolute() if usual and usual.is_dir() else None


def hadoop_settings() -> Mapping[str, str]:
    """Return the settings of the Hadoop client configuration (core-site.xml and the like); empty without one."""
    folder = hadoop_conf_dir()
    settings: dict[str, str] = {}
    for name in _CONF_FILES if folder else ():
        file = Path(str(folder), name)
        with contextlib.suppress(FileNotFoundError):
            facts = file.stat()
            settings.update(_read_conf(file, facts.st_mtime_ns, facts.st_size))
    return settings


def yarn_settings() -> Mapping[str, str]:
    """Return the settings of yarn-site.xml, by key; empty without one.

    The file is that in ``YARN_CONF_DIR``, else that of Hadoop's configuration.
    """
    named = os.environ.get("YARN_CONF_DIR")
    for folder in (Path(named).absolute() if named else None, hadoop_conf_dir()):
        if folder is not None:
            file = folder / "yarn-site.xml"
            with contextlib.suppress(FileNotFoundError):
                facts = file.stat()
                return _read_conf(file, facts.st_mtime_ns, facts.st_size)
    return {}


@functools.lru_cache(maxsize=16)
def _read_conf(file: Path, modified_ns: int, length: int) -> dict[str, str]:
    """Return the settings of one file, cached.

    Time and size are part of the key, so that a changed file is read again.
    """
    try:
        root = ElementTree.parse(file).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ArgumentError(
            f"{file}: not a readable Hadoop configuration ({error}); repair it, or let HADOOP_CONF_DIR name another"
        ) from error
    found = {}
    for entry in root.iter("property"):
        key, value = entry.findtext("name"), entry.findtext("value")
        if key and value is not None:
            found[key.strip()] = value.strip()
    return found


def default_fs() -> str | None:
    """Return ``fs.defaultFS`` without a trailing slash (``hdfs://ns1``); None without a remote one."""
    value = hadoop_settings().get("fs.defaultFS", "")
    return value.rstrip("/") if value and not value.startswith("file:") else None


def user_name() -> str:
    """Return the user on whose behalf files are written: ``HADOOP_USER_NAME``, else the login user."""
    named = os.environ.get("HADOOP_USER_NAME")
    if named:
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # user id of a container without a name
        return str(os.getuid())


def project_name() -> str:
    """Return the project: ``HOPSML_PROJECT``, else the user's name (``<project>__<user>`` contains both)."""
    return os.environ.get("HOPSML_PROJECT") or user_name().partition("__")[0]


def _profiles_store() -> str:
    """Return the store of the profile in ``HOPSML_PROFILE``; empty without one.

    It is also empty under spark-submit, where the profile's file may not exist and ``HOPSML_PROJECT_URL`` is set.
    """
    if not os.environ.get("HOPSML_PROFILE") or "PYSPARK_GATEWAY_PORT" in os.environ:
        return ""
    from hopsml.core import profiles

    return profiles.load().store


def project_url(project: str | None = None, local: Path | None = None) -> str:
    """Return the root URL of a project's files, without a trailing slash.

    It is ``HOPSML_PROJECT_URL`` if set; else the ``store`` of the profile that ``HOPSML_PROFILE`` names; else
    ``<fs.defaultFS>/Projects/<project>`` if a Hadoop configuration names an HDFS; else the folder ``.hopsml`` of the
    working directory, or ``local``.

    Args:
        project: name of another project, a sibling of this folder; None: the present one.
        local: local folder in place of ``.hopsml``.

    Raises:
        ArgumentError: there is no such profile, or the URL is malformed.
    """
    own = (os.environ.get("HOPSML_PROJECT_URL") or _profiles_store()).rstrip("/")
    name = project or project_name()
    if own.startswith("hdfs:///") and default_fs():
        own = f"{default_fs()}{own[len('hdfs://') :]}"  # so that every displayed path contains the NameNode's name
    if own:
        if found := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", own):
            raise ArgumentError(f"HOPSML_PROJECT_URL={own}: it has one slash after {found[1]}: write {found[1]}:///...")
        if "://" not in own:
            own = f"file://{Path(own).absolute()}"  # workers have other working directories
        return own if name == project_name() else f"{own.rpartition('/')[0]}/{name}"
    base = default_fs()
    if base and base.partition(":")[0] in ("hdfs", "viewfs", "hopsfs"):
        return f"{base}/Projects/{name}"
    local = local or Path.cwd() / ".hopsml"
    return f"file://{local if name == project_name() else local.parent / name}"
