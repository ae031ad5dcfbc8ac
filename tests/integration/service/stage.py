"""Job service in a separate process, on a simulated cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hopsml.client import Client, ServiceJob
from hopsml.core.states import Lifecycle
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.service.project import ProjectOnDisk

LIVING = tuple(state for state in Lifecycle if not state.is_final)
QUEUES = "research: {weight: 2, limit: {gpus: 16, cores: 64, memory: 256g}}\ndefault: {}\n"


class Stage:
    """Service process; ``submit`` queues jobs, ``prints`` and ``ends`` act as their drivers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._code = folder, folder / "code"
        self._code.mkdir(parents=True)
        (self._code / "train.py").write_text("")
        (folder / "queues.yaml").write_text(QUEUES)
        self.project = ProjectOnDisk(folder / "project")
        self._address, self._tokens = "", dict[str, str]()
        self._begin()

    def _begin(self, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.integration.service.staged_server", str(self.folder), str(port)]
        with open(self.folder / "server.log", "a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        started = json.loads(self._process.stdout.readline() or "{}")
        assert started, (self.folder / "server.log").read_text()
        self._address, self._tokens = started["address"], started["tokens"]
        wait_until(lambda: self.client("ana").cluster()["capacity"]["gpus"], "the nodes")

    def restart(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """End the service and start another one at the same address, with the same valid tokens."""
        tokens = self._tokens
        self.close()
        meanwhile()
        self._begin(int(self._address.rstrip("/").rpartition(":")[2]))
        self._tokens = tokens

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(END_S) == 0 and self._process.stdout is not None
        self._process.stdout.close()

    def client(self, user: str) -> Client:
        """Return a client of a user."""
        return Client(self._address, self._tokens[user])

    def token(self, user: str) -> str:
        """Return the access token of a user."""
        return self._tokens[user]

    def page(self, user: str) -> str:
        """Return the address that a user opens in a browser."""
        return f"{self._address}?token={self._tokens[user]}"

    def submit(self, name: str, gpus: int, *, user: str = "ana", tasks: int = 1, **more: object) -> ServiceJob:
        """Submit a job with ``gpus`` workers of one GPU in each task."""
        path = self._code / f"{name}.yaml"
        names = ("train", "evaluate", "search")[:tasks]
        each = f"{{script: train.py, count: {gpus}, resources: {{gpus: 1, cores: 2, memory: 8g}}}}"
        lines = [f"name: {name}", *(f"{key}: {value}" for key, value in more.items())]
        lines += ["tasks:", *(f"  {task}: {each}" for task in names)]
        path.write_text("\n".join(lines) + "\n")
        return self.client(user).submit(path)

    def reaches(self, job: ServiceJob, state: Lifecycle) -> None:
        """Wait until a job has a state."""
        wait_until(lambda: self.client("ana").job(job.id).state == state, f"{job.id} to be {state}")

    def prints(self, job: ServiceJob, text: str) -> None:
        """Append text to the log of a job's drivers."""
        with open(self.folder / "stage" / f"{job.serial}.log", "a") as file:
            file.write(text)

    def ends(self, job: ServiceJob, started: str = "FINISHED") -> None:
        """End the applications of a job with a state and an optional cause."""
        fresh = self.folder / "stage" / f"{job.serial}.fresh"
        fresh.write_text(started)
        fresh.rename(fresh.with_suffix(".end"))

    def clear(self) -> None:
        """End all jobs, so that the next test has the whole cluster."""
        client = self.client("olga")
        for job in client.jobs(states=LIVING, limit=1000):
            client.cancel(job.id)
        wait_until(lambda: not client.jobs(states=LIVING), "the end of all jobs")
