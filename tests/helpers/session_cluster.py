"""Cluster of a test session: daemons that a test restarts belong to the session, not to the test."""

from __future__ import annotations

from tests.helpers import leaks
from tools.hadoop.cluster import Cluster


class SessionCluster(Cluster):
    """Hadoop cluster that several tests share."""

    def revive(self, *names: str) -> None:
        """Restart daemons, as ``Cluster.revive`` does."""
        with leaks.not_of_this_test():
            super().revive(*names)

    def add_nodemanager(self, *, wait: bool = True) -> str:
        """Add a NodeManager, as ``Cluster.add_nodemanager`` does."""
        with leaks.not_of_this_test():
            return super().add_nodemanager(wait=wait)
