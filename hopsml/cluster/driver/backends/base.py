"""Interface of a backend, which provides slots for agents.

Tests/cluster/test_backends.py has the contract suite for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hopsml.cluster.agent.network import Bootstrap

FAILED_AT_LAUNCH = (
    # beginning of the text that ``why_unavailable`` then returns
    "Spark stopped the application, since its executors fail at launch"
)


@dataclass(frozen=True)
class Capacity:
    """Largest number of agents that a cluster can provide, and the setting that limits it.

    ``limit`` is None if the cluster can grow. If slots have GPUs there may also be bare agents, which hold none.
    """

    limit: int | None
    setting: str
    preferred: int  # workers when the user gives no number: one for each GPU or slot
    bare: int | None = 0  # bare agents, at most; None if the cluster can grow; 0: all its agents are alike
    together: int | None = None  # agents of both kinds, at most, if they share executors
    alike: str = ""  # why all are alike, although slots have GPUs
    how_to_enlarge: str = "raise that setting"  # what the user does for more slots; the beginning of a clause

    def default_agents(self, bare: int) -> int:
        """Return the default number of agents of a run, of which ``bare`` need no GPU."""
        most = self.preferred + bare
        return most if self.together is None else min(most, self.together)

    def why_too_small(self, size: int, bare: int) -> str:
        """Return why ``size`` agents, of which ``bare`` need no GPU, exceed the cluster's capacity; "" if they fit."""
        if bare and self.limit is not None and size - bare > self.limit:
            return f"{size - bare} of them need a GPU, and this cluster has at most {self.limit} slots with one"
        if bare and self.bare is not None and bare > self.bare:
            return f"{bare} of them need no GPU, and this cluster has at most {self.bare} slots without one"
        most = self.together if bare else self.limit
        return f"this cluster has at most {most} slot{'s' * (most != 1)}" if most is not None and size > most else ""


@dataclass(frozen=True)
class EndWarning:
    """Warning that an executor is about to end: the reason, and in how many seconds; None if that is unknown."""

    text: str
    time_s: float | None = None


AskEnded = Callable[[int, str], None]  # agent request, error ("" if its agents were dismissed)
# the same for one agent of a request, by its index, while others of it continue
SlotEnded = Callable[[int, int, str], None]


class Backend(Protocol):
    """Interface for starting agents.

    All methods but ``addresses`` and ``close`` are called on a thread that may block; ``ended`` is called on any
    thread.
    """

    name: str
    restarts_agents: bool  # True if an agent that dies is restarted by the backend
    grows: bool  # True if requested agents make the cluster provide more slots, with a delay
    gpus_per_agent: int  # to be locked on the host; 0 if the cluster assigns them, or there are none
    cores_per_agent: int  # of a slot, by the cluster's settings; 0 if they do not define it

    def capacity(self) -> Capacity:
        """Return how many agents this cluster can provide, now or later."""

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        """Return the address that the coordinator binds, and those to which agents may connect."""

    def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Request ``count`` agents and return at once.

        Args:
            bootstrap: Data that each agent needs to connect.
            count: Number of agents.
            ended: Called when no further agent of this request can connect.
            slot_ended: Called for each agent that has ended before that and is not restarted.
        """

    def cancel(self, request_id: int) -> None:
        """Cancel a request of which no agent has connected; ``ended`` is called afterwards."""

    def evict(self, task: int, pid: int) -> None:
        """End an agent that does not respond, by its task or its process id; does nothing if it has ended."""

    def why_missing(self, request_id: int) -> str:
        """Return what is known about the agents of a request that have not connected, as one sentence."""

    def is_contended(self) -> bool:
        """Return True if other work of the application finds no free slot."""

    def other_work(self) -> str:
        """Return which other work of the application holds slots, as text; "" if there is none."""

    def leaving_tasks(self, tasks: frozenset[int]) -> dict[int, EndWarning]:
        """Return those of these agents' tasks whose executors are about to end, each with the reason.

        At each call that returns some, the backend has requested their successors from the cluster.
        """

    def why_lost(self, task: int, pid: int) -> str:
        """Return why an agent that has just disconnected has ended, by its task or process id; "" if it is unknown.

        May wait some seconds, until the cluster manager reports it.
        """

    def why_unavailable(self) -> str:
        """Return why the backend can provide no agent any more; "" while it may."""

    def close(self) -> None:
        """Release all resources, and end agents that still run."""
