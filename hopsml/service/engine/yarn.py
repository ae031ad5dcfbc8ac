"""Engine for YARN: one request returns all applications of the service, by its tag; another one returns the nodes."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hopsml import submission
from hopsml.core import settings
from hopsml.errors import ClusterError, StorageError
from hopsml.service.driver import driver_requests
from hopsml.service.engine.base import (
    INTERRUPTED,
    EngineState,
    LogPiece,
    NodeSeen,
    SlotChannel,
    Submissions,
    SubmitOrder,
)
from hopsml.service.lifecycle.record import EngineSnapshot, SeenApplication
from hopsml.service.scheduler.resources import Resources
from hopsml.service.spec import job
from hopsml.yarn import ResourceManager, YarnApplication, YarnNode, logs
from hopsml.yarn.logs import LogReader

log = logging.getLogger("hopsml.service")

KILLS_AT_ONCE = 8
STEP_MIB = 1024  # default of YARN
INTERRUPTION = f"exited with status {INTERRUPTED}"  # text of Spark's application master in the diagnostics


class YarnEngine:
    """Engine that submits drivers to YARN in cluster mode."""

    def __init__(
        self,
        tag: str,
        project_url: str,
        driver_mib: int = job.DRIVER_MIB,
        *,
        resizes: bool = False,
    ) -> None:
        """Initialize the engine for one ResourceManager.

        Args:
            tag: Tag of the service, which all its applications have in addition to their own.
            project_url: Storage through which drivers receive requests to end and numbers of slots.
            driver_mib: ``spark.driver.memory`` of the profile, in MiB.
            resizes: True if executors are added and removed by Spark's dynamic allocation.
        """
        self.resizes = resizes
        self._talk = SlotChannel(project_url)
        self._tag, self._project_url, self._driver_mib = tag, project_url, driver_mib
        self._manager = ResourceManager.from_environment()
        self._step_mib = int(settings.yarn_settings().get("yarn.scheduler.minimum-allocation-mb", STEP_MIB))
        self._tags: dict[str, str] = {}  # application ID -> tag of its launch, of applications that have not ended
        self._asked: set[str] = set()  # tags of launches that were requested to end
        self._submissions = Submissions()
        self._logs = LogReader(self._manager.application)
        self._threads = ThreadPoolExecutor(KILLS_AT_ONCE, thread_name_prefix="hopsml-yarn")

    def poll(self) -> EngineState:
        """Request applications and nodes from the ResourceManager."""
        submitting, refused = (
            self._submissions.state()
        )  # read first: a submission that ends afterwards is listed now or at the next poll
        try:
            found, nodes = self._manager.find_by_tag(self._tag), self._manager.nodes()
        except ClusterError as error:
            return EngineState(EngineSnapshot(None, submitting, refused), None, str(error))
        by_tag: defaultdict[str, list[SeenApplication]] = defaultdict(list)
        for application in reversed(found):
            for tag in application.tags:
                if tag.startswith(f"{self._tag}-"):
                    by_tag[tag].append(self._seen(application, tag))
                    if application.is_final:
                        self._tags.pop(application.id, None)
                    else:
                        self._tags[application.id] = tag
        seen = EngineSnapshot({tag: tuple(each) for tag, each in by_tag.items()}, submitting, refused)
        return EngineState(seen, seen_nodes(nodes))

    def submit(self, order: SubmitOrder) -> None:
        """Start spark-submit, which ends as soon as YARN has accepted the application."""
        self._submissions.begin(order.tag, lambda waiter: submission.start(order.plan(), interrupts=waiter))

    def withdraw(self, tag: str) -> None:
        """End the spark-submit of a launch."""
        self._submissions.withdraw(tag)

    def request_end(self, application_id: str) -> None:
        """Request an application to end in order, by a file that its driver polls; YARN itself can only kill."""
        if (tag := self._tags.get(application_id)) and tag not in self._asked:
            self._asked.add(tag)
            self._threads.submit(self._ask, tag)

    def _ask(self, tag: str) -> None:
        """Write the request to end of one launch."""
        try:
            driver_requests.request_end(self._project_url, tag)
        except StorageError as error:  # the application is killed at the end of its grace period
            log.warning("%s could not be asked to end: %s", tag, error)

    def _seen(self, application: YarnApplication, tag: str) -> SeenApplication:
        """Return an application with its driver's answer; executors that YARN still counts are included in ``held``.

        An idle executor is released only after a while, whatever the driver reports.
        """
        seen = SeenApplication(
            application.id,
            application.lifecycle,
            application.diagnostics,
            application.containers,
            was_interrupted=INTERRUPTION in application.diagnostics,
        )
        if seen.state.is_final:
            self._talk.forget(tag)
            return seen
        answer = self._talk.newest_answer(tag)
        if answer is not None:
            answer = replace(answer, held=max(answer.held, (seen.containers or 1) - 1))
        return replace(seen, answer=answer)

    def grant_slots(self, application_id: str, slots: int) -> None:
        """Grant an application this number of slots, by a file that its driver polls."""
        if self.resizes and (tag := self._tags.get(application_id)):
            self._talk.write_slots(tag, slots)

    def kill(self, application_id: str) -> None:
        """Request YARN to kill an application, on a thread; the next step repeats it if the application still runs."""
        self._threads.submit(self._kill, application_id)

    def _kill(self, application_id: str) -> None:
        """Send the kill request to the ResourceManager."""
        with contextlib.suppress(ClusterError):  # the next poll shows the application, and the kill is repeated
            self._manager.kill(application_id)

    def forget_granted_slots(self) -> None:
        """Drop the cached slot numbers; the next ones are written even if they are unchanged."""
        self._talk.forget_all()

    def forget(self, tag: str) -> None:
        """Drop the launch from the caches; YARN lists it for as long as it is configured to."""
        self._submissions.forget(tag)
        self._asked.discard(tag)

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Return 0: YARN deletes its logs by its own settings."""
        return 0

    def worker(self, each: Resources) -> Resources:
        """Return the requested size with the memory rounded up to YARN's allocation step."""
        return replace(each, memory_mib=-(-each.memory_mib // self._step_mib) * self._step_mib)

    def driver(self) -> Resources:
        """Return the resources of the application master's container."""
        size = job.size_of_driver(self._driver_mib)
        return self.worker(Resources(0, size.cores, size.memory_mib))

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Read a part of the driver's stdout: from its node while it runs, from HDFS afterwards."""
        try:
            if offset >= 0:
                part = self._logs.read(application_id, "stdout", offset, limit)
            else:
                part = logs.read(self._manager.application(application_id), "stdout", offset=offset, limit=limit)
        except (ClusterError, StorageError):
            return None
        return LogPiece(part.data, part.offset, part.length) if part is not None else None

    def close(self) -> None:
        """Abort submissions and end threads; applications continue to run."""
        self._submissions.abort_all()
        self._logs.close()
        self._talk.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def seen_nodes(nodes: Iterable[YarnNode]) -> tuple[NodeSeen, ...]:
    """Return the nodes that are open or being decommissioned, named by host as workers know them.

    If several NodeManagers share a host, the port is part of the name. A NodeManager that restarts at another port is
    the same node.
    """
    there = [node for node in nodes if node.accepts_containers or node.is_decommissioning]
    on_host = Counter(node.host for node in there)
    return tuple(
        NodeSeen(
            node.host if on_host[node.host] == 1 else node.name,
            Resources(node.gpus, node.cores, node.memory_mib),
            Resources(node.used_gpus, node.used_cores, node.used_memory_mib),
            node.label,
            node.accepts_containers,
        )
        for node in there
    )
