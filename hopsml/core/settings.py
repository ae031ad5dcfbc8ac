"""Locations from environment variables and Hadoop's client configuration: the project, the user, ports.

They are read at each call, so that a changed variable or file takes effect at once.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from hopsml.core import delegation_tokens, krb5, ownership, principals
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError

PORT_RANGE = Settings.port_range.name
AGENT_PORTS = 6  # two of its worker, two reserved for the next one, commits, the check of the network
PORT_NEEDS = (
    f"from {PORT_RANGE}, each agent on a host needs {AGENT_PORTS} ports, two more in a run with data=, and one more "
    "for each gloo process group; the driver needs one port"
)
# Later ones override earlier ones.
_CONF_FILES = ("core-default.xml", "core-site.xml", "hdfs-default.xml", "hdfs-site.xml")
SPARK_USER = "SPARK_USER"  # variable of Spark: the short name of the user, by Hadoop's rules in a JVM


def no_free_port_text(first: int, last: int, host: str) -> str:
    """Return the error text for a range (both ends included) in which no port of ``host`` is free."""
    return (
        f"no port of {PORT_RANGE}={first}-{last} is free on {host}; widen the range, or end the processes that use "
        f"these ports (ss -tlnp lists them); {PORT_NEEDS}"
    )


def num_parameter_servers() -> int | None:
    """Return the value of the predecessor's variable NUM_TF_PS; None without it.

    Raises:
        ArgumentError: the variable is not a whole number.
    """
    value = os.environ.get("NUM_TF_PS", "").strip()
    if not value:
        return None
    if not re.fullmatch("[0-9]+", value):
        raise ArgumentError(f"NUM_TF_PS={value!r}: the number of parameter servers must be a whole number, 0 or more")
    return int(value)


def mlflow_tracking_uri(profile_environment: Mapping[str, str]) -> str:
    """Return MLflow's tracking URI: ``MLFLOW_TRACKING_URI``, else that of the profile's ``environment``.

    Empty for none. MLflow's own ``set_tracking_uri`` sets the variable. ``HOPSML_MLFLOW=0`` disables tracking.
    """
    if SETTINGS.mlflow == "0":
        return ""
    return os.environ.get("MLFLOW_TRACKING_URI") or profile_environment.get("MLFLOW_TRACKING_URI", "")


def hadoop_conf_dir() -> Path | None:
    """Return the folder of Hadoop's client configuration; None without one.

    It is ``HADOOP_CONF_DIR``, else the folder that Spark ships into a YARN container, else ``etc/hadoop`` in
    ``HADOOP_HOME``. Outside of containers a folder of another user with that name is ignored.
    """
    named = os.environ.get("HADOOP_CONF_DIR")
    if named:
        return Path(named).absolute()
    for base in (os.environ.get("PWD"), os.getcwd()):  # a container's Python has PWD, not HADOOP_CONF_DIR
        shipped = Path(base or ".").absolute() / "__spark_conf__" / "__hadoop_conf__"
        if shipped.is_dir() and (
            "CONTAINER_ID" in os.environ or not ownership.why_foreign(shipped, shipped.parents[1])
        ):
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


def ssl_client_settings() -> Mapping[str, str]:
    """Return the settings of TLS clients (ssl-client.xml, or the file that core-site.xml names); empty without one."""
    folder = hadoop_conf_dir()
    if folder is None:
        return {}
    file = folder / (hadoop_settings().get("hadoop.ssl.client.conf") or "ssl-client.xml")
    try:
        facts = file.stat()
    except FileNotFoundError:
        return {}
    return _read_conf(file, facts.st_mtime_ns, facts.st_size)


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
            f"{file}: the Hadoop configuration cannot be read ({error}); repair the file, or set HADOOP_CONF_DIR to "
            "another folder"
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


def is_kerberized() -> bool:
    """Return True if the client configuration says that the cluster requires Kerberos."""
    return hadoop_settings().get("hadoop.security.authentication", "").lower() == "kerberos"


def user_name() -> str:
    """Return the user on whose behalf files are written and applications run.

    It is the proxy user (``HADOOP_PROXY_USER``); else, without Kerberos, ``HADOOP_USER_NAME``; else ``login_name``. Tokens
    decide for their owner: a proxy user does not matter to them.
    """
    proxied = os.environ.get("HADOOP_PROXY_USER", "")
    if not is_kerberized():
        return proxied or os.environ.get("HADOOP_USER_NAME") or login_name()
    return (short_name(_token_owner()) if proxied else "") or proxied or login_name()


def login_name() -> str:
    """Return this process's user: with Kerberos the owner of its tokens, else of its ticket, by Hadoop's short name.

    Without both it is the user as whom Spark's JVM has logged in, as by a keytab. Without Kerberos, or without all of
    these, it is the operating system's user, or the uid as text if that has no name, as in many containers.
    """
    try:
        found = (
            short_name(_token_owner() or _ticket_owner()) or os.environ.get(SPARK_USER, "") if is_kerberized() else ""
        )
    except ArgumentError:  # a broken configuration, which whatever needs it reports
        found = ""
    return found or _system_name()


def _system_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def use_name_of_spark(name: str) -> None:
    """Let this process and its child processes know the user's name in Spark's JVM, which has the default realm.

    Spark itself sets the variable in the containers of executors, and of drivers that YARN starts.
    """
    if is_kerberized():
        os.environ.setdefault(SPARK_USER, name)


def short_name(principal: str) -> str:
    """Return the short name of a principal, or "" for none.

    Java's krb5.conf is often unknown to the libraries of this process, in containers above all. The rule ``DEFAULT``,
    which requires the default realm, then depends on the name that Spark's JVM has found.
    """
    if not re.search(r"[/@]", principal):
        return principal
    found = principals.short_name(principal, hadoop_settings().get("hadoop.security.auth_to_local", ""), _realm())
    first = re.split("[/@]", principal)[0]
    return first if found == principal and first == os.environ.get(SPARK_USER) else found


def _token_owner() -> str:
    """Return the owner of this process's HDFS token as the token names it; "" without one."""
    try:
        held = delegation_tokens.from_environment().tokens
        owners = [token.describe().owner for token in held if token.kind == delegation_tokens.HDFS_KIND]
    except ArgumentError:
        return ""
    return owners[0] if owners else ""


def _ticket_owner() -> str:
    """Return the principal of this process's ticket, which may have expired; "" without one.

    With a client keytab it is the same before and after Kerberos has obtained the first ticket.
    """
    with contextlib.suppress(krb5.KerberosError):
        return krb5.ticket().principal
    with contextlib.suppress(krb5.KerberosError):
        return krb5.client_keytab_principal()
    return ""


def _realm() -> str:
    """Return the default realm; "" if it is unknown."""
    try:
        return krb5.default_realm()
    except krb5.KerberosError:
        return ""


def project_name() -> str:
    """Return the project: ``HOPSML_PROJECT``, else the user's name (``<project>__<user>`` contains both)."""
    return SETTINGS.project or user_name().partition("__")[0]


def _profiles_store() -> str:
    """Return the store of the profile in ``HOPSML_PROFILE``; empty without one.

    It is also empty under spark-submit, where the profile's file may not exist and ``HOPSML_PROJECT_URL`` is set.
    """
    if not SETTINGS.profile or "PYSPARK_GATEWAY_PORT" in os.environ:
        return ""
    from hopsml.core import profiles

    return profiles.load().store


def _local_project() -> Path:
    """Return the folder ``.hopsml`` of the working directory. Raises ArgumentError if it is another user's."""
    folder = Path.cwd() / ".hopsml"
    for part in (folder, folder / "Experiments"):
        if reason := ownership.why_foreign(part, folder.parent):
            raise ArgumentError(
                f"{reason}, so that others could change the runs stored there; use another working directory, or name the "
                f"project's folder by {Settings.project_url.name}"
            )
    return folder


def project_url(project: str | None = None, local: Path | None = None) -> str:
    """Return the root URL of a project's files, without a trailing slash.

    It is ``HOPSML_PROJECT_URL`` if set; else the ``store`` of the profile that ``HOPSML_PROFILE`` names; else
    ``<fs.defaultFS>/Projects/<project>`` if a Hadoop configuration names an HDFS; else the folder ``.hopsml`` of the
    working directory, or ``local``.

    Args:
        project: name of another project, a sibling of this folder; None: the present one.
        local: local folder in place of ``.hopsml``.

    Raises:
        ArgumentError: there is no such profile, the URL is malformed, or ``.hopsml`` belongs to another user.
    """
    own = (SETTINGS.project_url or _profiles_store()).rstrip("/")
    name = project or project_name()
    if own.startswith("hdfs:///") and default_fs():
        own = f"{default_fs()}{own[len('hdfs://') :]}"  # so that every displayed path contains the NameNode's name
    if own:
        if found := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", own):
            raise ArgumentError(
                f"HOPSML_PROJECT_URL={own}: there is one slash after {found[1]}; write {found[1]}:///..."
            )
        if "://" not in own:
            own = f"file://{Path(own).absolute()}"  # workers have other working directories
        return own if name == project_name() else f"{own.rpartition('/')[0]}/{name}"
    base = default_fs()
    if base and base.partition(":")[0] in ("hdfs", "viewfs", "hopsfs"):
        return f"{base}/Projects/{name}"
    local = local or _local_project()
    return f"file://{local if name == project_name() else local.parent / name}"
