"""What the service asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hopsml.service.lifecycle.sight import Sight
from hopsml.service.scheduler.resources import Resources
from hopsml.submission import SubmissionPlan


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node. ``used``: by everybody. Where it is not open it is being taken out of service, and takes nothing more."""

    name: str
    capacity: Resources
    used: Resources
    label: str = ""
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an engine. ``nodes`` is None where it does not answer; ``problem`` then says why."""

    sight: Sight
    nodes: tuple[NodeSeen, ...] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some of what a driver has printed. ``offset``: of its first byte, above the one that was asked for where an engine
    does not give those between any more; ``length``: of the whole log so far.
    """

    data: bytes
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """An application to be submitted. ``plan`` is made on the thread that submits: it looks at files, and may refuse.

    ``variables``: of its driver, which has the plan's besides.
    """

    tag: str
    plan: Callable[[], SubmissionPlan]
    variables: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Only ``look`` may block, and for less than half a minute; what the others begin shows in the looks that follow.

    ``resizes``: whether slots come and go while an application runs; where not, each keeps those that it begins with.
    """

    resizes: bool

    def look(self) -> Look:
        """How all applications of this service stand, and the nodes."""

    def submit(self, order: SubmitOrder) -> None:
        """Begin to submit; the tag is among those that are being submitted when this returns."""

    def withdraw(self, tag: str) -> None:
        """Break a submission off; what came of it all the same is seen later."""

    def ask(self, application_id: str) -> None:
        """Ask an application to end in order, with a checkpoint; nothing happens where there is no way to ask."""

    def tell(self, application_id: str, slots: int) -> None:
        """Let an application have so many slots; what its driver answers is in later looks. Once more does no harm."""

    def kill(self, application_id: str) -> None:
        """End an application now."""

    def forget_orders(self) -> None:
        """Drop the cached orders to drivers: another server may have sent them others since."""

    def forget(self, tag: str) -> None:
        """Exclude a launch from later polls: it has ended, and its end is stored. Its log can still be read."""

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Delete this engine's files of launches that ended before a time (seconds since 1970); return their number.

        ``may``: returns True for the tag of a launch that may be deleted. Called by any thread; may block.
        """

    def worker(self, each: Resources) -> Resources:
        """What a worker of this size really takes."""

    def driver(self) -> Resources:
        """What the driver of a task takes."""

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Of what its driver has printed, at most ``limit`` bytes from ``offset`` on; below 0: from the end.

        None where there is no log (yet).
        """

    def close(self) -> None:
        """Break off submissions and end threads. Applications go on."""
