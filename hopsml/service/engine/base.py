"""Interface between the job service and the engine that runs applications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hopsml.service.lifecycle.record import EngineSnapshot
from hopsml.service.scheduler.resources import Resources
from hopsml.submission import SubmissionPlan


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Node as one poll of the engine returned it.

    Attributes:
        name: Name of the node, unique in the cluster.
        capacity: Resources of the node.
        used: Resources in use, by all tenants of the cluster.
        label: Label of the node; "" if it has none.
        is_open: False if the node is being decommissioned, so that nothing more can be placed on it.
    """

    name: str
    capacity: Resources
    used: Resources
    label: str = ""
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class EngineState:
    """Result of one poll of an engine.

    Attributes:
        sight: Snapshot of the applications.
        nodes: Nodes of the cluster; None if the engine does not answer.
        problem: Error of an engine that does not answer.
    """

    sight: EngineSnapshot
    nodes: tuple[NodeSeen, ...] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Part of a driver's log.

    Attributes:
        data: Bytes of the log.
        offset: Offset of the first byte. It is above the requested one if the engine no longer stores the bytes
            between.
        length: Length of the whole log so far, in bytes.
    """

    data: bytes
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset at which the next part begins."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """Application to be submitted.

    Attributes:
        tag: Tag of the launch.
        plan: Function that creates the submission plan. It is called on the submitting thread, because it reads files,
            and may raise an error.
        variables: Environment variables of the driver, in addition to those of the plan.
    """

    tag: str
    plan: Callable[[], SubmissionPlan]
    variables: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Interface of an engine.

    Only ``poll`` may block, for less than half a minute. The other methods start operations whose results appear in
    later polls.

    Attributes:
        resizes: True if slots can be added and removed while an application runs; otherwise it holds its initial slots.
    """

    resizes: bool

    def poll(self) -> EngineState:
        """Poll all applications of this service, and the nodes."""

    def submit(self, order: SubmitOrder) -> None:
        """Start to submit an application; its tag is listed as being submitted when this method returns."""

    def withdraw(self, tag: str) -> None:
        """Abort the submission of a tag; if an application was started nevertheless, a later poll returns it."""

    def request_end(self, application_id: str) -> None:
        """Request an application to end in order, with a checkpoint.

        Nothing happens if the engine has no means to send the request.
        """

    def grant_slots(self, application_id: str, slots: int) -> None:
        """Grant an application this number of slots; later polls return its driver's answer.

        Repeated calls are harmless.
        """

    def kill(self, application_id: str) -> None:
        """Kill an application without a grace period."""

    def forget_granted_slots(self) -> None:
        """Drop the cached slot numbers that were sent to drivers: another server may have sent different ones."""

    def forget(self, tag: str) -> None:
        """Exclude a launch from later polls: it has ended, and its end is stored. Its log can still be read."""

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Delete the engine's files of launches that ended before a time, and return their number.

        May be called by any thread, and may block.

        Args:
            before_s: Time in seconds since 1970.
            may: Function that returns True for the tag of a launch that may be deleted.
        """

    def worker(self, each: Resources) -> Resources:
        """Return the resources that a worker of this size actually occupies."""

    def driver(self) -> Resources:
        """Return the resources that the driver of a task occupies."""

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Read at most ``limit`` bytes of a driver's log.

        Args:
            application_id: ID of the application.
            offset: Offset of the first byte; a negative value counts from the end of the log.
            limit: Maximum number of bytes.

        Returns:
            None if there is no log (yet).
        """

    def close(self) -> None:
        """Abort submissions and end threads; applications continue to run."""
