"""Causes with which Spark cannot start: no suitable Java, an unknown or unreachable master, no Hadoop configuration."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hopsml.core import processes, suggestions
from hopsml.core.profiles import Profile
from hopsml.core.variables import SETTINGS, Settings
from hopsml.core.versions import SPARK_NEEDS, check_java, spark_needs, version_text

STEP_S = 5.0  # seconds for a connection to a master
MASTER_WAIT_S = 10.0  # seconds for a master that starts at the same time
_MASTERS = ("yarn", "local", "local[4]", "local-cluster[2,2,1024]", "spark://HOST:7077", "k8s://URL")
_KNOWN_MASTER = re.compile(r"yarn|local(-cluster)?(\[.*\])?|(spark|k8s|mesos)://.+")


@dataclass(frozen=True)
class JavaFacts:
    """Java that Spark would start; ``path`` is empty if there is none."""

    path: str
    source: str  # JAVA_HOME | PATH
    output: str = ""  # of ``java -version``
    problem: str = ""


def find_java(variables: Mapping[str, str] = os.environ) -> JavaFacts:
    """Find Java as Spark does: $JAVA_HOME/bin/java if the variable is set, else the one on the path."""
    home = variables.get("JAVA_HOME")
    source = "JAVA_HOME" if home else "PATH"
    path = str(Path(home, "bin", "java")) if home else shutil.which("java", path=variables.get("PATH")) or ""
    if not path:
        return JavaFacts("", source)
    output, problem = processes.run_with_deadline([path, "-version"])
    return JavaFacts(path, source, output, problem)


def java_version(output: str) -> int | None:
    """Return the feature version in the output of ``java -version``: 17 for "17.0.15", 8 for "1.8.0_402"."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if not found:
        return None
    return int(found.group(2) or 0) if found.group(1) == "1" else int(found.group(1))


def install_java(pyspark: str) -> str:
    """Return how to install a Java that this version of Spark supports."""
    suitable = spark_needs(pyspark).javas
    return (
        f"install Java {17 if 17 in suitable else suitable[-1]} (for instance openjdk-17-jre-headless), and set "
        "JAVA_HOME to its folder"
    )


def why_java_fails(facts: JavaFacts, pyspark: str) -> str:
    """Return why this version of Spark cannot start with this Java; "" if it may."""
    if not facts.path:
        return "no java was found on the PATH, and JAVA_HOME is not set"
    version = java_version(facts.output)
    where = f"{facts.path} (from {facts.source})"
    if facts.problem or version is None:
        why = facts.problem or f"its version cannot be read from {facts.output.strip()[:80]!r}"
        return f"{where} does not work: {why}"
    needs = spark_needs(pyspark)
    return (
        f"Java {version} at {where} is too old for Spark {version_text(needs.spark)}"
        if version < needs.javas[0]
        else ""
    )


def why_jvm_fails(
    java: JavaFacts, pyspark: str, master: str, variables: Mapping[str, str], source: str
) -> tuple[str, str] | None:
    """Return why Spark's JVM cannot start, and the remedy; None if no cause is found.

    Args:
        java: Java that Spark starts.
        pyspark: version of pyspark.
        master: Spark's master; "" if it is unknown.
        variables: environment of Spark.
        source: name of the setting that contains the master.
    """
    if master and not _KNOWN_MASTER.fullmatch(master):
        meant = suggestions.suggestion_text(master, _MASTERS, f"a master is {', '.join(_MASTERS)}")
        return f"{master!r} is no master of Spark", f"correct {source}: {meant}"
    if master == "yarn" and not (variables.get("HADOOP_CONF_DIR") or variables.get("YARN_CONF_DIR")):
        return (
            "master yarn needs the Hadoop configuration of the cluster, and HADOOP_CONF_DIR is not set",
            "set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml and yarn-site.xml",
        )
    why = why_java_fails(java, pyspark)
    return (why, install_java(pyspark)) if why else None


def why_submit_fails(profile: Profile, variables: Mapping[str, str]) -> str:
    """Return why spark-submit cannot start Spark, with the remedy, as one sentence; "" if no cause is found.

    Args:
        profile: profile of the submission.
        variables: environment of spark-submit.
    """
    # The version of a Spark that is not the package's is unknown: the oldest one accepts most versions of Java.
    version = version_text(SPARK_NEEDS[0].spark)
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = version if variables.get("SPARK_HOME") else metadata.version("pyspark")
    master, source = profile.master, master_setting(profile)
    cause = why_jvm_fails(find_java(variables), version, master, variables, source)
    cause = cause or why_master_unreachable(master, source)
    return f"Spark cannot start with profile {profile.name!r}: {cause[0]}. Remedy: {cause[1]}" if cause else ""


def check_submission_java(variables: Mapping[str, str]) -> None:
    """Raise UnsupportedVersion if Java is too old for spark-submit, or warn if it has not been tried with its Spark.

    A missing Java is left to spark-submit. Of the Spark in SPARK_HOME only the oldest Java of all versions is known.

    Args:
        variables: environment of spark-submit.
    """
    found = java_version(find_java(variables).output)
    if found is None:
        return
    with contextlib.suppress(metadata.PackageNotFoundError):
        if not variables.get("SPARK_HOME"):
            check_java(found, metadata.version("pyspark"))
        elif found < SPARK_NEEDS[0].javas[0]:
            check_java(found, version_text(SPARK_NEEDS[0].spark))


def master_setting(profile: Profile) -> str:
    """Return the name of the setting from which the profile's master is taken."""
    return Settings.spark_master.name if SETTINGS.spark_master else f"master in profile {profile.name!r}"


@dataclass(frozen=True)
class MasterFacts:
    """Addresses of a standalone Spark master; ``problems`` has one line for each that does not respond."""

    master: str
    answered: str = ""
    problems: tuple[str, ...] = ()


def probe_spark_master(master: str) -> MasterFacts:
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


def why_master_unreachable(master: str, source: str, wait_s: float = 0.0) -> tuple[str, str] | None:
    """Return why no standalone master can be reached, and the remedy; None if one can, or ``master`` is of another kind.

    Args:
        master: Spark's master.
        source: name of the setting that contains it.
        wait_s: seconds for which the connection is tried again.
    """
    if not master.startswith("spark://"):
        return None
    deadline = time.monotonic() + wait_s
    while not (found := probe_spark_master(master)).answered:
        if time.monotonic() >= deadline:
            why = f"no Spark master accepts connections at {master} ({'; '.join(found.problems)})"
            return why, f"start the master there (sbin/start-master.sh of Spark), or correct {source}"
        time.sleep(0.2)
    return None
