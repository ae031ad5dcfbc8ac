"""Choice of the failure of a group from which all its other failures follow; pure.

The failure that is reported first need not be the first one: the neighbours of a process that was killed see their
connections break at once, while its own end is known only when the kernel has freed its memory. So the caller waits a
while for further reports, and then prefers failures that can be a cause to those that can only be an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
