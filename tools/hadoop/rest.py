"""HTTP interfaces of the daemons: JMX of HDFS, the ResourceManager's REST API."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.hadoop.errors import HadoopError
from tools.hadoop.settings import LOOPBACK, user

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Web:
    """Requests to the daemons of a cluster.

    Attributes:
        host: host in the URLs of all but NodeManagers.
        ticket: variables that name a Kerberos ticket for SPNEGO; None to send requests without authentication.
        certificate: PEM file with the certificate that the daemons show; None where they use HTTP.
    """

    host: str = LOOPBACK
    ticket: Mapping[str, str] | None = None
    certificate: Path | None = None

    def url(self, port: int) -> str:
        """Return the beginning of the URLs of the web service at a port."""
        return f"{'https' if self.certificate else 'http'}://{self.host}:{port}"

    def get_json(self, url: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the JSON document at ``url``; OSError while no server answers there."""
        if self.ticket is not None:
            return json.loads(self.negotiated(url, timeout_s))
        context = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        with urllib.request.urlopen(url, timeout=timeout_s, context=context) as answer:
            return json.load(answer)

    def bean(self, base: str, service: str, name: str) -> dict[str, Any]:
        """Return a JMX bean of a daemon; LookupError until the daemon has registered it."""
        beans: list[dict[str, Any]] = self.get_json(f"{base}/jmx?qry=Hadoop:service={service},name={name}")["beans"]
        return beans[0]

    def negotiated(self, url: str, timeout_s: float, method: str = "GET") -> bytes:
        """Return the answer to a request with the ticket; Debian's curl speaks SPNEGO."""
        command = ["curl", "-s", "-S", "-f", "-m", str(timeout_s), "-X", method, "--negotiate", "-u", ":", url]
        command += ["--cacert", str(self.certificate)] if self.certificate else []
        done = subprocess.run(command, env={**os.environ, **(self.ticket or {})}, capture_output=True)
        if done.returncode:
            raise OSError(f"{url}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


@dataclass(frozen=True)
class ApplicationState:
    """State of an application in YARN's terms, for instance ``FINISHED`` and ``SUCCEEDED``."""

    state: str
    final_status: str
    diagnostics: str

    @property
    def over(self) -> bool:
        """True if the application has ended."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


@dataclass(frozen=True)
class ResourceManager:
    """Calls to the ResourceManager's REST API at ``base``, for instance ``http://127.0.0.1:8088``."""

    base: str
    web: Web = Web()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the ResourceManager's data of each node by host; of a restarted node the newest."""
        listed: list[dict[str, Any]] = (self._get("nodes")["nodes"] or {}).get("node", [])
        listed.sort(key=lambda node: int(node["lastHealthUpdate"]))
        return {node["nodeHostName"]: node for node in listed}

    def is_active(self) -> bool:
        """Return True if it is the active one of two; one on standby answers this, and redirects all else."""
        return bool(self._get("info")["clusterInfo"]["haState"] == "ACTIVE")

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications that it lists, oldest first."""
        listed: list[dict[str, Any]] = (self._get("apps")["apps"] or {}).get("app", [])
        return sorted(listed, key=lambda app: int(app["startedTime"]))

    def application(self, app_id: str) -> dict[str, Any]:
        """Return all data of an application; HadoopError if it is unknown."""
        found: dict[str, Any] = self._get(f"apps/{app_id}")["app"]
        return found

    def application_state(self, app_id: str) -> ApplicationState:
        """Return the state of an application; HadoopError if it is unknown."""
        app = self.application(app_id)
        return ApplicationState(app["state"], app["finalStatus"], app.get("diagnostics", ""))

    def kill_application(self, app_id: str) -> None:
        """Request the end of an application, without waiting for it; do nothing if it has ended."""
        request = urllib.request.Request(
            f"{self.base}/ws/v1/cluster/apps/{app_id}/state?user.name={user()}",
            data=json.dumps({"state": "KILLED"}).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            raise _refused(f"kill of {app_id}", error) from None

    def _get(self, what: str) -> Any:
        try:
            return self.web.get_json(f"{self.base}/ws/v1/cluster/{what}")
        except urllib.error.HTTPError as error:
            raise _refused(what, error) from None


def _refused(what: str, error: urllib.error.HTTPError) -> HadoopError:
    with error:
        said = error.read(2000).decode(errors="replace")
        return HadoopError(f"the ResourceManager refused {what}: HTTP {error.code} {said}")
