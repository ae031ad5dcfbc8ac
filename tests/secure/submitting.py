"""Applications on a Kerberized YARN: settings for a keytab or a ticket, submission, and what must be stored afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopsml.core import platforms, profiles
from hopsml.storage.filesystem import for_url
from hopsml.submission import spark_command
from tests.helpers import scenarios
from tools.hadoop import spark
from tools.hadoop.kdc import Kdc

ENCRYPTION = ("spark.authenticate", "spark.network.crypto", "spark.io.encryption")  # what the profile adds to `yarn`
PIPE_BYTES = 1 << 20  # of a program's output
JOBS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class Way:
    """How an application proves who it is, and where its driver runs."""

    credential: str  # keytab or ticket
    deploy_mode: str

    def __str__(self) -> str:
        return f"{self.credential}-{self.deploy_mode}"


def secure_conf(conf: Mapping[str, str], kdc: Kdc, keytab_of: str = "") -> dict[str, str]:
    """Return settings for a Kerberized cluster: Java's processes get its krb5.conf.

    Args:
        conf: settings for a cluster without security.
        kdc: the cluster's KDC.
        keytab_of: user with whose keytab Spark logs in; "" for the ticket of the process that submits.
    """
    secure = dict(conf)
    (option,) = java_options(kdc).values()
    for role in ("spark.driver", "spark.executor", "spark.yarn.am"):
        key = f"{role}.extraJavaOptions"
        secure[key] = f"{conf.get(key, '')} {option}".strip()
    if keytab_of:
        secure["spark.kerberos.keytab"] = str(kdc.keytab(keytab_of))
        secure["spark.kerberos.principal"] = kdc.principal(keytab_of)
    return secure


def java_options(kdc: Kdc) -> dict[str, str]:
    """Return the variable by which spark-submit itself gets the cluster's krb5.conf, as Java does not read KRB5_CONFIG."""
    return {"SPARK_SUBMIT_OPTS": f"-Djava.security.krb5.conf={kdc.config}"}


def settings(cluster: Any, way: Way, project: str, user: str = "alice") -> dict[str, str]:
    """Return Spark's settings for two executors, and a project in HDFS."""
    conf = secure_conf(spark.spark_conf(executors=2), cluster.kdc, user if way.credential == "keytab" else "")
    encrypted = {
        key: value for key, value in profiles.load("yarn-secure").settings().items() if key.startswith(ENCRYPTION)
    }
    named = {"spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": project} if project else {}
    return {**conf, **encrypted, **named}


def environment(cluster: Any, way: Way, project: str, user: str = "alice") -> dict[str, str]:
    """Return the variables of spark-submit: with a keytab there is no ticket."""
    ticket = cluster.kdc.environment(user if way.credential == "ticket" else "")
    named = {"PYTHONPATH": str(spark.ROOT)} | ({"HOPSML_PROJECT_URL": project} if project else {})
    return {**spark.submit_env(cluster.conf_dir), **ticket, **java_options(cluster.kdc), **named}


def submit(
    cluster: Any,
    way: Way,
    project: str,
    script: str,
    *arguments: str,
    conf: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start spark-submit for a program of this folder; its output is a pipe.

    The keytab's path is in a file in memory, as with `hopsml submit`, and not on a command line.

    Args:
        cluster: the Kerberized cluster.
        way: credential, and where the driver runs.
        project: URL of the project; "" for the user's default.
        script: name of the program.
        arguments: arguments of the program.
        conf: further settings of Spark.
        variables: further variables of spark-submit; an empty one is removed.
    """
    chosen = {**settings(cluster, way, project), **(conf or {})}
    shown, hidden = spark_command.split_hidden(chosen)
    command = spark.submit_command(JOBS / script, *arguments, conf=shown, deploy_mode=way.deploy_mode)
    named = {**environment(cluster, way, project), **(variables or {})}
    scenarios.watch(cluster, *([project] if project else []))
    with contextlib.ExitStack() as files:
        file, passed = platforms.hidden_file(spark_command.to_properties(hidden), "hopsml-submit", files)
        command[1:1] = ["--properties-file", file]
        started = subprocess.Popen(
            command,
            env={name: value for name, value in named.items() if value},
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert started.stdout is not None
        # Nobody reads it for minutes; a JVM whose log fills it would obtain no tokens any more.
        fcntl.fcntl(started.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return started


def use_from_here(monkeypatch: Any, cluster: Any, user: str = "alice") -> None:
    """Let this process read HDFS as a user, with a fresh ticket."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
    cluster.kdc.kinit(user)
    for name, value in cluster.kdc.environment(user).items():
        monkeypatch.setenv(name, value)


def exists(url: str) -> bool:
    """Return True if the file is in HDFS."""
    try:
        for_url(url).status(url)
    except FileNotFoundError:
        return False
    return True


def read_json(url: str) -> Any:
    """Return the content of a JSON file in HDFS."""
    return json.loads(for_url(url).read_bytes(url))


def files_below(url: str) -> list[str]:
    """Return the URLs of all files in a folder of HDFS, and in those below."""
    found = []
    for entry in for_url(url).list_dir(url):
        found += files_below(entry.url) if entry.is_dir else [entry.url]
    return found


def logs_of(cluster: Any, application: str) -> str:
    """Return all that the containers of an application have written, as log aggregation is off."""
    texts = []
    for node in cluster.names("nm"):
        for path in (cluster.home / node / "containers").glob(f"{application}/*/*"):
            texts.append(path.read_text(errors="replace"))
    return os.linesep.join(texts)
