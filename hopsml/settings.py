"""Where things lie and how long to wait: the environment and Hadoop's client configuration, read when asked.

A changed environment or file counts at once.
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
SYSTEM_METRICS = "HOPSML_SYSTEM_METRICS_S"  # workers get it as a variable
DEFAULT_SYSTEM_METRICS_S = 5.0
ENCRYPTION = "HOPSML_ENCRYPTION"  # of the driver
CORES = "HOPSML_CORES"  # of the driver, or of a run's environment; agents read it there
PORT_RANGE = "HOPSML_PORT_RANGE"  # of the driver; workers get it as a variable
AGENT_PORTS = 6  # two of its worker, two held for the next one, commits, the check of the network
PORT_NEEDS = (
    f"of {PORT_RANGE} each agent on a host needs {AGENT_PORTS} ports, two more in a run with data=, one more for each "
    "process group of gloo's; the driver needs one"
)
KEEPALIVE = "HOPSML_KEEPALIVE_S"  # workers get it as a variable
DEFAULT_KEEPALIVE_S = 15.0  # firewalls drop the state of idle connections after a minute or more
DEFAULT_DRAIN_S = 30.0  # what Kubernetes gives, and the least that clouds give
LOCAL_LOGDIR = "HOPSML_LOCAL_LOGDIR"  # workers get it as "1" where the run was asked for with local_logdir=True
HDFS_CLIENT = "HOPSML_HDFS_CLIENT"  # settings for TensorFlow's hdfs://: key=value, with commas between
_CONF_FILES = ("core-default.xml", "core-site.xml", "hdfs-default.xml", "hdfs-site.xml")  # later ones win


def storage_timeout_s() -> float:
    """Deadline of one storage step (one remote call, or one chunk of a transfer), in seconds.

    From ``HOPSML_STORAGE_TIMEOUT_S``, else 30.
    """
    return _seconds("HOPSML_STORAGE_TIMEOUT_S", DEFAULT_STORAGE_TIMEOUT_S, " above 0", least=sys.float_info.min)


def system_metrics_s() -> float:
    """How often a worker's use of its machine is looked at, in seconds; 0: never.

    From ``HOPSML_SYSTEM_METRICS_S``, else 5.
    """
    return _seconds(SYSTEM_METRICS, DEFAULT_SYSTEM_METRICS_S, ", or 0 to look at nothing")


def port_range() -> tuple[int, int] | None:
    """Return the ports (first, last; both included) that ``HOPSML_PORT_RANGE`` allows; None for any. ArgumentError."""
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
    """How long a node has from its warning to its end, in seconds, where the cluster does not say.

    From ``HOPSML_DRAIN_S``, else 30.
    """
    return _seconds("HOPSML_DRAIN_S", DEFAULT_DRAIN_S, ", or 0 to leave at once")


def ui_memory_bytes() -> int:
    """Return the memory that the web page's server may use for cached data of viewed runs, in bytes.

    The value of ``HOPSML_UI_MEMORY_MB``, by default 256. Raises ArgumentError.
    """
    text = os.environ.get("HOPSML_UI_MEMORY_MB", "") or "256"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise ArgumentError(f"HOPSML_UI_MEMORY_MB={text!r}: write a whole number of megabytes, 1 to {1 << 20}")
    return int(text) << 20


def encryption() -> bool:
    """Whether hopsml's collective encrypts in all runs, whatever they are asked for.

    From ``HOPSML_ENCRYPTION``: 1, or 0 or nothing. Raises ArgumentError.
    """
    text = os.environ.get(ENCRYPTION, "") or "0"
    if text not in ("0", "1"):
        raise ArgumentError(
            f"{ENCRYPTION}={text!r}: it must be 1 to encrypt in all runs, or 0 for those that ask for it"
        )
    return text == "1"


def cores_of(environment: Mapping[str, str]) -> int | None:
    """Cores that each worker shall have for itself, of these variables' ``HOPSML_CORES``: a number, 0 to leave them to the
    system, None for "auto" and where nothing is said. Raises ArgumentError.
    """
    text = environment.get(CORES, "") or "auto"
    if text != "auto" and not text.isdecimal():
        raise ArgumentError(
            f"{CORES}={text!r}: it must be a number of cores for each worker, 0 to leave that to the system, or auto"
        )
    return None if text == "auto" else int(text)


def num_parameter_servers() -> int | None:
    """The predecessor's NUM_TF_PS; None without it. Raises ArgumentError for a value that is no whole number."""
    value = os.environ.get("NUM_TF_PS", "").strip()
    if not value:
        return None
    if not re.fullmatch("[0-9]+", value):
        raise ArgumentError(f"NUM_TF_PS={value!r}: a number of parameter servers, 0 or more, was expected")
    return int(value)


def _seconds(variable: str, default_s: float, which: str, least: float = 0.0) -> float:
    """The number in an environment variable, else the default; ``which`` are allowed is for the error's text."""
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
    """Where runs are tracked: ``MLFLOW_TRACKING_URI``, else what the profile's ``environment`` says; "" for nowhere.

    MLflow's own ``set_tracking_uri`` sets the variable. ``HOPSML_MLFLOW=0`` switches tracking off.
    """
    if os.environ.get("HOPSML_MLFLOW", "") == "0":
        return ""
    return os.environ.get("MLFLOW_TRACKING_URI") or profile_environment.get("MLFLOW_TRACKING_URI", "")


def hadoop_conf_dir() -> Path | None:
    """Hadoop's client configuration: ``HADOOP_CONF_DIR``, else what Spark ships into a YARN container, else None."""
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
    """Settings of the Hadoop client configuration (core-site.xml and the like); empty without one."""
    folder = hadoop_conf_dir()
    settings: dict[str, str] = {}
    for name in _CONF_FILES if folder else ():
        file = Path(str(folder), name)
        with contextlib.suppress(FileNotFoundError):
            facts = file.stat()
            settings.update(_read_conf(file, facts.st_mtime_ns, facts.st_size))
    return settings


def yarn_settings() -> Mapping[str, str]:
    """Key -> value of yarn-site.xml, of ``YARN_CONF_DIR`` where that is set, else of Hadoop's configuration;
    empty without one.
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
    """The settings of one file, cached; time and size are part of the key, so a changed file is read again."""
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
    """``fs.defaultFS`` without a slash at the end (``hdfs://ns1``); None without a configuration."""
    value = hadoop_settings().get("fs.defaultFS", "")
    return value.rstrip("/") if value and not value.startswith("file:") else None


def user_name() -> str:
    """The user in whose name files are written: ``HADOOP_USER_NAME``, else the login user."""
    named = os.environ.get("HADOOP_USER_NAME")
    if named:
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's uid without a name
        return str(os.getuid())


def project_name() -> str:
    """The project: ``HOPSML_PROJECT``, else the user's name (``<project>__<user>`` names both)."""
    return os.environ.get("HOPSML_PROJECT") or user_name().partition("__")[0]


def _profiles_store() -> str:
    """Under spark-submit the variable says it: the profile's file is where the job was submitted."""
    if not os.environ.get("HOPSML_PROFILE") or "PYSPARK_GATEWAY_PORT" in os.environ:
        return ""
    from hopsml import profiles

    return profiles.load().store


def project_url(project: str | None = None, local: Path | None = None) -> str:
    """Root of a project's files, without a slash at the end.

    ``HOPSML_PROJECT_URL`` if set; else the ``store`` of the profile that ``HOPSML_PROFILE`` names; else
    ``<fs.defaultFS>/Projects/<project>`` where a Hadoop configuration names an HDFS; else the folder ``.hopsml`` of the
    working directory, or ``local``. Another ``project`` is a sibling of this folder. Raises ArgumentError if there is no
    such profile.
    """
    own = (os.environ.get("HOPSML_PROJECT_URL") or _profiles_store()).rstrip("/")
    name = project or project_name()
    if own.startswith("hdfs:///") and default_fs():
        own = f"{default_fs()}{own[len('hdfs://') :]}"  # the NameNode's name stands in every path that is told
    if own:
        if found := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", own):
            raise ArgumentError(f"HOPSML_PROJECT_URL={own}: it has one slash after {found[1]}: write {found[1]}:///...")
        if "://" not in own:
            own = f"file://{Path(own).absolute()}"  # workers run in folders of their own
        return own if name == project_name() else f"{own.rpartition('/')[0]}/{name}"
    base = default_fs()
    if base and base.partition(":")[0] in ("hdfs", "viewfs", "hopsfs"):
        return f"{base}/Projects/{name}"
    local = local or Path.cwd() / ".hopsml"
    return f"file://{local if name == project_name() else local.parent / name}"
