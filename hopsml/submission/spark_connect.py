"""Sessions of Spark Connect, with which hopsml does not work: how they are recognised, and the message about them.

A client of Spark Connect has no SparkContext, by which hopsml starts the tasks that run its agents. Everything that
needs one calls ``check_session`` or ``check_frame`` first; support for Spark Connect would begin in these two functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hopsml.core import extras
from hopsml.errors import ArgumentError, ClusterError

_MODULE = "pyspark.sql.connect"
_PACKAGE = "pyspark_connect"  # makes Spark Connect the default of pyspark 4
_FORCING = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")  # pyspark does not look at their values
_MODES = ("classic", "connect")


@dataclass(frozen=True)
class ConnectFacts:
    """How far this process is a client of Spark Connect.

    Attributes:
        has_session: True if its active session is one of Spark Connect.
        setting: variable or package that makes ``SparkSession.builder.getOrCreate()`` create one; "" if none does.
        is_client_only: True if the installed pyspark is the client of Spark Connect alone.
    """

    has_session: bool = False
    setting: str = ""
    is_client_only: bool = False


def find_connect() -> ConnectFacts:
    """Return the facts about this process; imports no pyspark, and contacts no server."""
    return ConnectFacts(
        _has_session(), connect_setting(os.environ, find_spec(_PACKAGE) is not None), _is_client_only(_pyspark_folder())
    )


def connect_setting(variables: Mapping[str, str], has_package: bool = False) -> str:
    """Return what makes ``SparkSession.builder.getOrCreate()`` create a session of Spark Connect; "" if nothing does.

    Args:
        variables: environment of the process.
        has_package: whether pyspark-connect is installed.
    """
    if forcing := [name for name in _FORCING if name in variables]:
        return forcing[0]
    mode = variables.get("SPARK_API_MODE", "").lower()
    if mode in _MODES:
        return "SPARK_API_MODE" if mode == "connect" else ""
    if "SPARK_CONNECT_MODE" in variables:
        return "SPARK_CONNECT_MODE" if variables["SPARK_CONNECT_MODE"] == "1" else ""
    return "pyspark-connect" if has_package else ""


def why_no_classic_session(facts: ConnectFacts, *, has_context: bool = False, needs_spark: bool = True) -> str:
    """Return why this process has no classic session and cannot create one, with the remedy; "" if it can.

    Args:
        facts: what is known of the process.
        has_context: True if it has a classic SparkContext, which is used instead of a new session.
        needs_spark: False if agents run without Spark unless there is a session.
    """
    if facts.has_session:
        setting = "" if facts.setting == _FORCING[1] else facts.setting  # pyspark itself sets this one with the session
        return _message("the active Spark session is one of Spark Connect", setting)
    if has_context:
        return ""
    if facts.setting:
        cause = f"{facts.setting} is {'installed' if facts.setting == 'pyspark-connect' else 'set'}, so "
        cause += "SparkSession.builder.getOrCreate() creates a session of Spark Connect"
        return _message(cause, facts.setting)
    if facts.is_client_only and needs_spark:
        cause = "only pyspark-client is installed, which has sessions of Spark Connect alone"
        return _message(cause, "", f"pip uninstall pyspark-client, then {extras.install_command('spark')}")
    return ""


def _message(cause: str, setting: str, first: str = "") -> str:
    """Return the message of all verbs.

    Args:
        cause: what has been found.
        setting: what leads to Spark Connect; "" if it is unknown.
        first: first of the remedies, instead of a new process with a classic session.
    """
    match setting:
        case "":
            without = ""
        case "pyspark-connect":
            without = " with SPARK_API_MODE=classic"
        case _:
            without = f" without {setting}"
    first = first or f"start Python{without} and create the session by SparkSession.builder.master(...).getOrCreate()"
    return (
        f"{cause}, but hopsml needs a classic session, whose driver is in this process. Remedy: {first}, or select a "
        "profile without Spark (profile='local' or HOPSML_PROFILE=local), or send the script to the cluster by the job "
        "service (`hopsml jobs run`)"
    )


def check_session(facts: ConnectFacts, *, has_context: bool = False, needs_spark: bool = True) -> None:
    """Raise ClusterError with the text of ``why_no_classic_session``, which has the same arguments, if there is one."""
    if problem := why_no_classic_session(facts, has_context=has_context, needs_spark=needs_spark):
        raise ClusterError(problem)


def check_submission() -> None:
    """Raise ClusterError if a variable makes spark-submit, or the driver that inherits it, use Spark Connect."""
    if setting := connect_setting(os.environ):
        cause = f"{setting} is set, so spark-submit or the driver of the script would use Spark Connect"
        raise ClusterError(_message(cause, setting, f"unset {setting}"))


def is_connect_frame(frame: Any) -> bool:
    """Return True for a DataFrame of Spark Connect, without any access to its server."""
    return type(frame).__module__.startswith(f"{_MODULE}.")


def check_frame(frame: Any, name: str) -> None:
    """Raise ArgumentError for a DataFrame of Spark Connect, before its server is contacted for the schema.

    Args:
        frame: any object.
        name: name of the argument that holds it, for the message.
    """
    if is_connect_frame(frame):
        raise ArgumentError(
            _message(
                f"{name} is a DataFrame of Spark Connect", connect_setting(os.environ, find_spec(_PACKAGE) is not None)
            )
        )


def _has_session() -> bool:
    """Return True if a session of Spark Connect is active in this process."""
    module = sys.modules.get(f"{_MODULE}.session")
    session = getattr(getattr(module, "SparkSession", None), "_default_session", None)  # since Spark 3.5
    return session is not None and not getattr(session, "is_stopped", False)


def _pyspark_folder() -> Path | None:
    """Return the folder of the installed pyspark, which is not imported; None without one."""
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _is_client_only(folder: Path | None) -> bool:
    """Return True for the files of pyspark-client: they have neither the package ``core`` of Spark 4 nor ``context.py``.

    spark-submit imports pyspark from ``pyspark.zip``, of which this is no folder; it has no client alone.
    """
    if folder is None or not folder.is_dir():
        return False
    return not (folder / "core").is_dir() and not (folder / "context.py").is_file()
