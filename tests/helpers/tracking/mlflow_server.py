"""Real MLflow server on loopback with a separate database, which tests stop, freeze and restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.helpers import clock

START_S = 120.0  # it takes six seconds on a quiet machine


class MlflowServer:
    """``mlflow server`` with SQLite; the same port and database at every start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it answers."""
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_ALLOWED_HOST_ADDRESSED_ARTIFACT_SCHEMES": "hdfs,memory",  # else no version's source may lie there
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "TMPDIR": str(self.folder),
        }
        environment.pop("MLFLOW_TRACKING_URI", None)
        # It ends with this process in any case.
        command = [sys.executable, "-m", "hopsml.airflow.parent_guard", str(os.getpid())]
        command += [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = clock.awake() + START_S
        while not self.answers():
            if self._process.poll() is not None or clock.awake() > deadline:
                raise RuntimeError(
                    f"MLflow's server did not start:\n{(self.folder / 'server.log').read_text()[-4000:]}"
                )
            time.sleep(0.05)

    def answers(self) -> bool:
        """True if it answers."""
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """Stop it at once, with its child processes; may be repeated."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop its processes: the port stays open without answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume its processes."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def client(self) -> Any:
        """Return MLflow's client, to inspect the stored data."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
