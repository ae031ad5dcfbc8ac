"""Groups of real TensorFlow worker processes for tests, started with TF_CONFIG and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import clock
from tests.helpers.training.forking import Forked

ROOT = Path(__file__).resolve().parents[3]
_STOP_WITHIN_S = 10.0
LATER = {"TF_USE_LEGACY_KERAS"}


class GroupFailed(AssertionError):
    """A worker of the group failed; the message has every worker's last output."""


class Group:
    """Worker processes that run one job; ``wait`` returns each rank's result."""

    def __init__(
        self,
        job: str,
        folder: Path,
        workers: int = 2,
        env: dict[str, str] | None = None,
        fresh: bool = False,
        **arguments: Any,
    ) -> None:
        """Start ``workers`` processes that run ``job`` ("module:function" below tests.helpers.training.jobs).

        ``folder`` holds all their files; ``arguments`` are JSON for the job. They are forked with TensorFlow imported,
        unless ``fresh``, or ``env`` has a variable that its import reads: those in LATER are read only by Keras at its
        first use.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = [_held_port() for _ in range(workers)]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in self._ports]
        self._specs = [
            {
                "job": job,
                "rank": rank,
                "world_size": workers,
                "addresses": addresses,
                "folder": str(folder),
                "arguments": arguments,
            }
            for rank in range(workers)
        ]
        forked = not (fresh or (env or {}).keys() - LATER)
        self.processes = [self._start(spec, env or {}, forked) for spec in self._specs]

    def _start(self, spec: dict[str, Any], env: dict[str, str], forked: bool) -> subprocess.Popen[bytes] | Forked:
        rank, addresses = spec["rank"], spec["addresses"]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_GRPC_REUSE_PORT": "1",
            "OMP_NUM_THREADS": "1",
            **env,
        }
        environment.pop("TF_CONFIG", None)
        if len(addresses) > 1:
            environment["TF_CONFIG"] = json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            )
        specification, log_file = self.folder / f"spec-{rank}.json", self.folder / f"log-{rank}.txt"
        specification.write_text(json.dumps(spec))
        if forked:
            return Forked(specification, log_file, environment)
        with log_file.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.training.worker", str(specification)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 200.0) -> list[dict[str, Any]]:
        """Return the results by rank; raise GroupFailed when a worker fails or the time is up."""
        deadline = clock.awake() + timeout_s
        for rank in range(len(self.processes)):
            while self.processes[rank].poll() is None:
                failed = [process for process in self.processes if process.poll() not in (None, 0)]
                if failed or clock.awake() > deadline:
                    raise GroupFailed(self._story("a worker failed" if failed else f"not done in {timeout_s:g} s"))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.processes[rank].wait(0.1)
        if any(process.returncode for process in self.processes):
            raise GroupFailed(self._story("a worker failed"))
        return [json.loads((self.folder / f"result-{spec['rank']}.json").read_text()) for spec in self._specs]

    def wait_for(self, rank: int, timeout_s: float = 100.0) -> dict[str, Any]:
        """Return the result of one rank, even if others fail; raise GroupFailed when it fails or the time is up."""
        try:
            status = self.processes[rank].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise GroupFailed(self._story(f"rank {rank} was not done in {timeout_s:g} s")) from None
        if status:
            raise GroupFailed(self._story(f"rank {rank} failed"))
        return dict(json.loads((self.folder / f"result-{rank}.json").read_text()))

    def log(self, rank: int) -> str:
        """Return the output of the worker so far."""
        return (self.folder / f"log-{rank}.txt").read_text(errors="replace")

    def _story(self, what: str) -> str:
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGUSR1)
        for process in running:
            # The answer cannot be awaited otherwise; a process that is ending anyway needs no second.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        parts = [
            f"--- rank {rank}, exit status {process.poll()}\n{self.log(rank)[-4000:]}"
            for rank, process in enumerate(self.processes)
        ]
        return "\n".join([what, *parts])

    def close(self) -> None:
        """End the running workers (they ignore SIGTERM once the strategy exists), and release the ports."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(_STOP_WITHIN_S)
        for port in self._ports:
            port.close()


def _held_port() -> socket.socket:
    """Yield a port that is reserved, and that TensorFlow can also bind (TF_GRPC_REUSE_PORT)."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


@contextlib.contextmanager
def group(job: str, folder: Path, workers: int = 2, **options: Any) -> Iterator[Group]:
    """Yield a group that is ended with the block."""
    started = Group(job, folder, workers, **options)
    try:
        yield started
    finally:
        started.close()


def run_group(
    job: str, folder: Path, workers: int = 2, timeout_s: float = 200.0, **options: Any
) -> list[dict[str, Any]]:
    """Start a group, wait for it, and return the results by rank."""
    with group(job, folder, workers, **options) as started:
        return started.wait(timeout_s)
