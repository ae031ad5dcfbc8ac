"""Engine that runs applications on a standalone Spark cluster.

Spark has no cluster mode for Python programs there, so drivers run on the machine of the service, as ``LocalEngine`` runs
them: under supervisors that outlive it. The master's web interface lists the workers. It is asked at the port that the
profile's ``spark.master.ui.port`` names, Spark's default without it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsml.core import hadoop_http
from hopsml.core.profiles import Profile
from hopsml.errors import StorageError
from hopsml.service.driver import driver_requests
from hopsml.service.engine.base import EngineState, NodeSeen
from hopsml.service.engine.local import LocalEngine
from hopsml.service.scheduler.resources import Resources

log = logging.getLogger("hopsml.service")

SCHEME = "spark://"
DRIVER_MIB = 1024  # Spark's default, spark.driver.memory
UI_PORT = 8080  # Spark's default, spark.master.ui.port
ANSWER_S = 5.0  # timeout of a request to a master, with its answer
MOST_NAME = 256  # characters of a host
MOST_AMOUNT = 1 << 31  # cores, or MiB of memory, of a worker
_MALFORMED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def status_urls(profile: Profile) -> tuple[str, ...]:
    """Return the URLs of the status of each master of a profile, which may name several for high availability."""
    port = profile.spark.get("spark.master.ui.port", str(UI_PORT))
    masters = profile.master.removeprefix(SCHEME).split(",")
    return tuple(f"http://{master.rpartition(':')[0] or master}:{port}/json/" for master in masters)


class StandaloneEngine(LocalEngine):
    """Engine that runs drivers on this machine, and their workers on a standalone Spark cluster."""

    def __init__(self, folder: Path, memory_mib: int, status: Sequence[str], project_url: str) -> None:
        """Initialize the engine and create its folders.

        Args:
            folder: Folder for the state of applications.
            memory_mib: Memory of this machine for drivers, in MiB. It is a node without cores, so that no worker is
                placed there, and drivers are placed there first.
            status: URLs of the masters' status.
            project_url: Storage through which drivers receive requests to end.
        """
        super().__init__(folder, Resources(memory_mib=memory_mib))
        self._status, self._requests_url = tuple(status), project_url
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="hopsml-end-requests")

    def poll(self) -> EngineState:
        """Read the folders of applications, and request the workers from the master.

        Applications are known also while no master answers; nothing is placed then.
        """
        seen = super().poll()
        try:
            workers = seen_workers(active_master(self._status)["workers"])
            return replace(seen, nodes=(*(seen.nodes or ()), *workers))
        except _MALFORMED as error:
            problem = f"no master of {', '.join(self._status)} answers as one that is ALIVE: {error}"
            return replace(seen, nodes=None, problem=problem)

    def request_end(self, application_id: str) -> None:
        """Request an application to end in order, by a file that its driver polls.

        SIGINT would reach the JVM of spark-submit as well, which ends at once.
        """
        if application_id not in self._asked:
            self._asked.add(application_id)
            self._threads.submit(self._request_end, application_id)

    def _request_end(self, tag: str) -> None:
        """Write the request to end of one launch."""
        try:
            driver_requests.request_end(self._requests_url, tag)
        except StorageError as error:  # the application is killed at the end of its grace period
            log.warning("%s could not be requested to end: %s", tag, error)

    def driver(self) -> Resources:
        """Return the resources of a driver: memory and no core, as for ``LocalEngine``; with that of its JVM."""
        return Resources(memory_mib=DRIVER_MIB)

    def close(self) -> None:
        """End this engine's threads; drivers and their supervisors continue to run."""
        super().close()
        self._threads.shutdown(wait=True, cancel_futures=True)


def active_master(urls: Iterable[str]) -> Mapping[str, Any]:
    """Return the status of the first master that is ALIVE, as its web interface reports it.

    Raises:
        OSError: No master answers.
        ValueError: Each master is in another state, as STANDBY.
        _MALFORMED: An answer is not one of a master.
    """
    problem: Exception = ValueError("no master is named")
    for url in urls:
        try:
            status: Mapping[str, Any] = json.loads(hadoop_http.request(url, ANSWER_S).body)
            if status["status"] == "ALIVE":
                return status
            problem = ValueError(f"it is {status['status']}")
        except _MALFORMED as error:
            problem = error
    raise problem


def seen_workers(workers: Sequence[Mapping[str, Any]]) -> tuple[NodeSeen, ...]:
    """Return the workers of a master's status that are ALIVE, named by host; with the port if several share a host."""
    alive = [worker for worker in workers if worker["state"] == "ALIVE"]
    for worker in alive:
        _check(worker)
    on_host = Counter(worker["host"] for worker in alive)
    return tuple(
        NodeSeen(
            worker["host"] if on_host[worker["host"]] == 1 else f"{worker['host']}:{worker['port']}",
            Resources(_gpus(worker.get("resources")), int(worker["cores"]), int(worker["memory"])),
            Resources(_gpus(worker.get("resourcesused")), int(worker["coresused"]), int(worker["memoryused"])),
        )
        for worker in alive
    )


def _check(worker: Mapping[str, Any]) -> None:
    """Raise ValueError for a worker whose name cannot be shown, or whose amounts are not those of a machine."""
    host, amounts = worker["host"], [worker[f"{name}{used}"] for name in ("cores", "memory") for used in ("", "used")]
    if not isinstance(host, str) or not host.isprintable() or not 0 < len(host) < MOST_NAME:
        raise ValueError(f"a worker has the host {str(host)[:100]!r}")
    if not all(isinstance(one, int) and 0 <= one < MOST_AMOUNT for one in amounts):
        raise ValueError(f"worker {host} has cores and memory {str(amounts)[:100]}")


def _gpus(resources: Mapping[str, Any] | None) -> int:
    """Return the number of GPUs in the resources of a worker."""
    return len((resources or {}).get("gpu", {}).get("addresses", ()))
