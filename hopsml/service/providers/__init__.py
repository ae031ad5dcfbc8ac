"""Providers of nodes, one per module, and the interface between them and the job service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """A machine of a provider, which incurs cost.

    Attributes:
        id: Id of the node.
        group: Name of the node group.
        hosts: Names and addresses that the cluster may use for it; empty at first.
        launched_s: Time of its launch, in seconds since 1970.
        is_draining: True if ``drain`` was called, perhaps before a restart of the service.
        is_ending: True if it is being terminated.
        is_warned: True if the provider has announced its removal.
    """

    id: str
    group: str
    hosts: tuple[str, ...]
    launched_s: float
    is_draining: bool = False
    is_ending: bool = False
    is_warned: bool = False


class NodeProvider(Protocol):
    """Interface of a provider of nodes.

    Each call may block for a minute, and may raise ProviderError. The state that the service needs after a restart must
    be part of the result of ``list``.
    """

    def list(self) -> Sequence[ProviderNode]:
        """Return all nodes of the groups that have not ended, including those that are being launched."""

    def launch(self, group: str, count: int, jobs: Sequence[str]) -> None:
        """Add nodes to a group; when this returns, ``list`` includes them, or placeholders for them.

        Args:
            group: Name of the group.
            count: Number of nodes.
            jobs: Ids of the jobs that need them; empty if the group has fewer nodes than its minimum.
        """

    def drain(self, node: ProviderNode) -> None:
        """Mark a node that takes no more work; ``list`` reports the mark from now on."""

    def recall(self, node: ProviderNode) -> None:
        """Remove the mark that ``drain`` has set."""

    def terminate(self, node: ProviderNode) -> None:
        """Terminate a node, or cancel the launch of one that does not exist yet."""

    def close(self) -> None:
        """Abort a call in progress in another thread, if possible."""
