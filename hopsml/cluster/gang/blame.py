"""Which of a group's failures all others follow from; pure.

The failure that is told first need not be the first one: the neighbours of a process that was killed see their connections
break at once, while its own end is known when the kernel has put away its memory. So whoever decides waits a while for
the others' words, and then goes by what can be a cause and what can only be an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """The end of one worker as its agent tells it, or as the loss of its agent does."""

    agent_id: str
    rank: int
    cause: str
    echo: bool = False  # what a member sees when another one breaks: a connection that was reset, an aborted collective
    raised: bool = False  # by the user's own code
    outside: bool = False  # a signal that no crash sends, or the agent is lost: nothing in the group can be the cause
    storage: bool = False  # the store did not answer when the worker was to be prepared

    @property
    def certainty(self) -> int:
        """How likely it follows from another failure: 0 where it cannot, 2 where it can only do so, else 1."""
        return 0 if self.outside else 2 if self.echo else 1


def first_of(failures: Sequence[Failure]) -> Failure:
    """The failure to blame: the surest, and of equally sure ones the one that was told first. ``failures``: at least one."""
    return min(failures, key=lambda failure: failure.certainty)
