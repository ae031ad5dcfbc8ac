"""What a backend must offer: slots for agents. One contract suite (tests/cluster/test_backends.py) holds for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hopsml.cluster.agent.agent import Bootstrap

FAILED_AT_LAUNCH = (
    "Spark has given up, as its executors fail when they are launched"  # begins what ``gone`` then returns
)


@dataclass(frozen=True)
class Capacity:
    """How many agents there can be. ``limit`` is None where the cluster can grow; ``setting`` says what limits it.

    Where slots have GPUs there may be bare agents beside those, which hold none.
    """

    limit: int | None
    setting: str
    preferred: int  # workers when the user names no number: one for each GPU or slot
    bare: int | None = 0  # bare agents, at most; None where the cluster can grow; 0: all its agents are alike
    together: int | None = None  # agents of both kinds, at most, where they share executors
    alike: str = ""  # why all are alike, although slots have GPUs

    def all_slots(self, bare: int) -> int:
        """How many agents a run takes that asks for no number, and of which ``bare`` need no GPU."""
        most = self.preferred + bare
        return most if self.together is None else min(most, self.together)

    def lacks(self, size: int, bare: int) -> str:
        """What this cluster has too little of for ``size`` agents, ``bare`` ones among them; "" where they fit."""
        if bare and self.limit is not None and size - bare > self.limit:
            return f"{size - bare} of them need a GPU, and this cluster has at most {self.limit} slots with one"
        if bare and self.bare is not None and bare > self.bare:
            return f"{bare} of them need no GPU, and this cluster has at most {self.bare} slots without one"
        most = self.together if bare else self.limit
        return f"this cluster has at most {most} slots" if most is not None and size > most else ""


@dataclass(frozen=True)
class Warned:
    """Why an executor is about to go away, and in how many seconds; None where nobody knows."""

    text: str
    time_s: float | None = None


AskEnded = Callable[[int, str], None]  # ask, what went wrong ("" when its agents were simply dismissed)
SlotEnded = Callable[[int, int, str], None]  # the same of one agent of an ask, by its index, while others of it live on


class Backend(Protocol):
    """Starts agents. All but ``addresses`` and ``close`` run on a thread that may block; ``ended`` on any thread."""

    name: str
    restarts_agents: bool  # whether an agent that dies comes back by itself
    grows: bool  # whether agents that are asked for make the cluster give more, in its own time
    gpus_per_agent: int  # to be claimed on the host; 0 where the cluster assigns them, or there are none
    cores_per_agent: int  # that a slot has by the cluster's settings; 0 where they say nothing

    def capacity(self) -> Capacity:
        """How many agents this cluster can give, now or later."""

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        """The address that the coordinator binds, and those that agents shall try."""

    def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Ask for ``count`` agents and return at once; ``ended`` is called when none of them is left to come, ``slot_ended``
        for each that is gone before, where nothing starts it again.
        """

    def cancel(self, ask: int) -> None:
        """Nobody wants the agents of this ask, none of which has connected; ``ended`` follows."""

    def evict(self, task: int, pid: int) -> None:
        """End an agent that does not answer any more, by its task or its process; does nothing when it is gone."""

    def why_missing(self, ask: int) -> str:
        """What is known about the agents of an ask that have not connected, in one sentence."""

    def others_wait(self) -> bool:
        """Whether other work of the application finds no free slot."""

    def leaving(self, tasks: frozenset[int]) -> dict[int, Warned]:
        """Those of these agents' tasks whose executors are about to go away, and why.

        With each call that names some, successors for them have been asked of the cluster.
        """

    def why_lost(self, task: int, pid: int) -> str:
        """Return why an agent that has just disconnected has ended, by its task or process id; "" if it is unknown.

        May wait some seconds, until the cluster manager reports it.
        """

    def gone(self) -> str:
        """Why it can never give an agent any more; empty as long as it may."""

    def close(self) -> None:
        """Give everything back; agents that still run are ended."""
