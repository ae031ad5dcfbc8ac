"""Failures of a group's members: which one caused the others, and for how long hosts that fail often are excluded; pure.

The failure that is reported first need not be the cause: the neighbours of a process that was killed see their
connections break at once, while its own end is known only when the kernel has freed its memory. So the caller waits a
while for further reports, and then prefers failures that can be a cause to those that can only be an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hopsml.storage.backoff import pause_s


@dataclass
class Exclusions:
    """Failure counts by host: ``limit`` of them exclude a host for ``cooldown_s`` seconds, the next for twice that."""

    limit: int
    cooldown_s: float
    failures: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def failed(self, host: str, now: float) -> float | None:
        """Count a failure of the host and return for how many seconds it is excluded now; None if it is not."""
        count = self.failures[host] = self.failures.get(host, 0) + 1
        if count < self.limit:
            return None
        length = pause_s(count - self.limit + 1, self.cooldown_s)
        self.until[host] = now + length
        return length

    def excluded(self, host: str, now: float) -> bool:
        """Return True if the host is excluded at the time ``now``."""
        return now < self.until.get(host, now)


@dataclass(frozen=True)
class Failure:
    """End of one worker, as reported by its agent or implied by the loss of its agent."""

    agent_id: str
    rank: int
    cause: str
    echo: bool = False  # an effect that a member sees when another one fails: a reset connection, an aborted collective
    raised: bool = False  # by the user's code
    # a signal that no crash sends, or the loss of the agent: nothing in the group can be the cause
    outside: bool = False
    storage: bool = False  # shared storage did not respond while the worker was prepared

    @property
    def certainty(self) -> int:
        """Likelihood that it follows from another failure: 0 if it cannot, 2 if it must, else 1."""
        return 0 if self.outside else 2 if self.echo else 1


def first_of(failures: Sequence[Failure]) -> Failure:
    """Return the failure to report as the cause: the one least likely to follow from others, the earliest of equals.

    Args:
        failures: At least one failure, in order of arrival.
    """
    return min(failures, key=lambda failure: failure.certainty)
