"""Applications of YARN over Hadoop's RPC, for a ResourceManager whose web services refuse or do not answer.

Hadoop's command line client, which is part of Spark, is run by Spark's ``spark-class``; it starts a JVM for each request,
so requests take seconds. It uses the configuration, ticket and tokens that spark-submit has used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopsml.errors import ApplicationNotFound, ClusterError, ClusterUnavailable
from hopsml.yarn.resource_manager import YarnApplication, checked_application_id

CLIENT = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
TIMEOUT_S = 90.0  # of a request, with the start of its JVM; Hadoop's client retries for minutes
_ROW = re.compile(r"^\t([A-Z][A-Za-z -]*?) : (.*)$", re.MULTILINE)
_KILLED = re.compile(r"Killed application|has already finished")
_MISSING = "doesn't exist in RM"


@dataclass(frozen=True)
class RpcClient:
    """Client of the ResourceManager over RPC, with the calls of ``ResourceManager`` that following an application needs.

    Calls raise ClusterUnavailable if there is no answer, and ApplicationNotFound.

    Attributes:
        spark_submit: The spark-submit whose installation is used.
        environment: Environment of the command, as for spark-submit.
        timeout_s: Time limit of a request in seconds.
    """

    spark_submit: str
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    timeout_s: float = TIMEOUT_S

    def application(self, application_id: str) -> YarnApplication:
        """Return the state of one application; it has no address of the driver's log."""
        return parse_report(application_id, self._call("-status", checked_application_id(application_id)))

    def kill(self, application_id: str) -> None:
        """End an application; one that has ended is unchanged."""
        said = self._call("-kill", checked_application_id(application_id))
        if not _KILLED.search(said):
            raise ClusterUnavailable(f"{application_id} could not be ended over RPC: {_last_line(said)}")

    def _call(self, *arguments: str) -> str:
        """Run Hadoop's client, and return its output."""
        command = [self._spark_class(), CLIENT, "application", *arguments]
        try:
            done = subprocess.run(
                command,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ClusterUnavailable(
                f"the ResourceManager did not answer over RPC within {self.timeout_s:g} s"
            ) from None
        except OSError as error:
            raise ClusterUnavailable(f"{command[0]} could not be started: {error.strerror or error}") from error
        said = done.stdout.decode(errors="replace")
        if _MISSING in said or "ApplicationNotFoundException" in said:
            raise ApplicationNotFound(f"the ResourceManager has no record of {arguments[-1]}")
        if done.returncode:
            raise ClusterUnavailable(f"the ResourceManager cannot be asked over RPC: {_last_line(said)}")
        return said

    def _spark_class(self) -> str:
        """Return the path of spark-class, next to spark-submit."""
        found = shutil.which(self.spark_submit, path=self.environment.get("PATH")) or self.spark_submit
        return str(Path(found).with_name("spark-class"))

    def _variables(self) -> dict[str, str]:
        """Return the command's environment; the options of spark-submit's JVM, such as a krb5.conf, are passed on."""
        options = [self.environment.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS")]
        joined = " ".join(option for option in options if option)
        return {**self.environment, **({"JAVA_TOOL_OPTIONS": joined} if joined else {})}


def parse_report(application_id: str, said: str) -> YarnApplication:
    """Return the application of a report of Hadoop's client. Pure.

    Raises:
        ClusterError: the text is no such report.
    """
    rows = {name.strip(): value.strip() for name, value in _rows(said)}
    if rows.get("Application-Id") != application_id or "State" not in rows:
        raise ClusterError(f"the report of {application_id} over RPC cannot be read: {_last_line(said)}")
    return YarnApplication(
        id=application_id,
        name=rows.get("Application-Name", ""),
        state=rows["State"],
        final_status=rows.get("Final-State", "UNDEFINED"),
        diagnostics="" if rows.get("Diagnostics") in (None, "null") else rows["Diagnostics"],
        user=rows.get("User", ""),
        queue=rows.get("Queue", ""),
        started_s=_seconds(rows.get("Start-Time", "")),
        finished_s=_seconds(rows.get("Finish-Time", "")),
    )


def _rows(said: str) -> Sequence[tuple[str, str]]:
    return _ROW.findall(said)


def _seconds(milliseconds: str) -> float:
    return int(milliseconds) / 1000 if milliseconds.isascii() and milliseconds.isdecimal() else 0.0


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("\tat ")]
    return lines[-1][:300] if lines else "it printed nothing"
