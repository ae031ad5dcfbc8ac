"""State of groups and nodes between decisions; if it is lost, idle nodes are only terminated later."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hopsml.service.autoscaler.model import FleetNode, NodeGroup, NodePhase
from hopsml.service.scheduler.resources import Resources
from hopsml.storage.backoff import pause_s

BOOTS = 15  # number of boot times in the median
FIRST_REST_S, LONGEST_REST_S = 60.0, 3600.0
GRACE_S = 120.0  # a restarted service does not give up nodes that it has just discovered


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """State of a group between decisions.

    Attributes:
        boots_s: Boot times of its nodes in seconds, the newest last.
        failures: Number of failed launches since a node arrived.
        rests_until_s: End of the pause after a failed launch.
        seen: (capacity, label) of a node that arrived; None before the first one.
    """

    boots_s: tuple[float, ...] = ()
    failures: int = 0
    rests_until_s: float = 0.0
    seen: tuple[Resources, str] | None = None

    def usual_boot_s(self, group: NodeGroup) -> float:
        """Return the expected boot time: the median, or the group's limit before any node has arrived."""
        return statistics.median(self.boots_s) if self.boots_s else group.boot_limit_s

    def shape(self, group: NodeGroup) -> tuple[Resources, str]:
        """Return capacity and label of a further node; those of an arrived node override the configured ones."""
        return self.seen or (group.capacity, group.label)

    def failed(self, now: float) -> GroupMemory:
        """Return the state after a failed launch, with a longer pause."""
        failures = self.failures + 1
        return replace(self, failures=failures, rests_until_s=now + pause_s(failures, FIRST_REST_S, LONGEST_REST_S))

    def node_arrived(self, boot_s: float) -> GroupMemory:
        """Return the state after a node arrived in the cluster."""
        return GroupMemory((*self.boots_s, boot_s)[-BOOTS:], seen=self.seen)


@dataclass(frozen=True, slots=True)
class FleetMemory:
    """State of all groups and nodes between decisions.

    Attributes:
        groups: Name -> state of a group.
        absent_s: ID of a node -> time since which it is not in the cluster.
        idle_s: ID of a node -> time since which it is idle.
        came: IDs of nodes that have been in the cluster.
        known: ID -> group of each node in the previous poll; None before the first one.
    """

    groups: Mapping[str, GroupMemory] = field(default_factory=dict)
    absent_s: Mapping[str, float] = field(default_factory=dict)
    idle_s: Mapping[str, float] = field(default_factory=dict)
    came: frozenset[str] = frozenset()
    known: Mapping[str, str] | None = None

    def group(self, name: str) -> GroupMemory:
        """Return the state of a group; empty if the group is new."""
        return self.groups.get(name, GroupMemory())

    def failed(self, group: str, now: float) -> FleetMemory:
        """Return the state after a failed launch of a group."""
        return replace(self, groups={**self.groups, group: self.group(group).failed(now)})

    def looked(
        self, groups: Mapping[str, NodeGroup], fleet: Iterable[FleetNode], now: float
    ) -> tuple[FleetMemory, list[FleetNode]]:
        """Return the state after a poll of the nodes, and the overdue nodes.

        A node is overdue if it has been absent for longer than its group allows.
        """
        nodes = [node for node in fleet if node.group in groups]
        told = {name: self.group(name) for name in groups}
        absent = {node.id: self.absent_s.get(node.id, now) for node in nodes if node.phase == NodePhase.BOOTING}
        for node in nodes:
            if node.phase != NodePhase.UP:
                continue
            if node.id in self.absent_s and node.id not in self.came:
                told[node.group] = told[node.group].node_arrived(now - node.launched_s)
            told[node.group] = replace(told[node.group], seen=(node.capacity, node.label))
        overdue = [node for node in nodes if node.id in absent and self._is_overdue(node, groups, absent[node.id], now)]
        for name in {node.group for node in overdue} | self._vanished(nodes):
            told[name] = told[name].failed(now)
        there = {node.id for node in nodes}
        came = {node.id for node in nodes if node.phase == NodePhase.UP} | (self.came & there)
        idle = {name: since for name, since in self.idle_s.items() if name in there}
        left = {name: since for name, since in absent.items() if name not in {node.id for node in overdue}}
        known = {node.id: node.group for node in nodes}
        return FleetMemory(told, left, idle, frozenset(came), known), overdue

    def _is_overdue(self, node: FleetNode, groups: Mapping[str, NodeGroup], absent_since_s: float, now: float) -> bool:
        """Return True if an absent node exceeds the boot limit of its group."""
        limit_s = groups[node.group].boot_limit_s
        if node.id in self.came:
            return now - absent_since_s >= limit_s
        return now - node.launched_s >= limit_s and now - absent_since_s >= min(limit_s, GRACE_S)

    def _vanished(self, nodes: list[FleetNode]) -> set[str]:
        """Return the groups in which nodes disappeared before they arrived, and were not replaced."""
        there = {node.id for node in nodes}
        gone = [
            self.known[each]
            for each in self.absent_s
            if self.known and each in self.known and each not in there | self.came
        ]
        fresh = [node.group for node in nodes if self.known is not None and node.id not in self.known]
        return {group for group in gone if gone.count(group) > fresh.count(group) and group in self.groups}
