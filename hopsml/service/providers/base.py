"""What the service asks of whoever gives nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GivenNode:
    """A machine that is paid for. ``hosts``: names and addresses by which the cluster may call it; none are known at first.

    ``launched_s``: seconds since 1970. ``is_draining``: ``drain`` was called, perhaps by an earlier life of the service.
    """

    id: str
    group: str
    hosts: tuple[str, ...]
    launched_s: float
    is_draining: bool = False
    is_ending: bool = False
    is_warned: bool = False  # it will be taken away


class NodeProvider(Protocol):
    """Each call may block for a minute, and raises ProviderError. What the service has to know later, ``list`` says."""

    def list(self) -> Sequence[GivenNode]:
        """All nodes of the groups, those that were launched by an earlier call among them, until they are gone."""

    def launch(self, group: str, count: int, jobs: Sequence[str]) -> None:
        """Add nodes; ``list`` has them, or what stands for them, when this returns. ``jobs``: for whom."""

    def drain(self, node: GivenNode) -> None:
        """A node is to take no more work; ``list`` says so from now on."""

    def recall(self, node: GivenNode) -> None:
        """Undo ``drain``."""

    def terminate(self, node: GivenNode) -> None:
        """End a node, or the wait for one that has not come."""

    def close(self) -> None:
        """Break off a call that is under way in another thread, where that can be done."""
