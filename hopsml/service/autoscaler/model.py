"""Node groups, nodes with their phases, actions on them, and the autoscaler's memory between decisions.

Times are in seconds of the caller's clock. If the memory is lost, idle nodes are only terminated later.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hopsml.core.newer_python import StrEnum
from hopsml.errors import ArgumentError
from hopsml.service.scheduler.reasons import NodeKind
from hopsml.service.scheduler.resources import NOTHING, Resources
from hopsml.storage.backoff import pause_s


class NodePhase(StrEnum):
    """Phase of a node.

    BOOTING: paid for, but not in the cluster (yet, or any more). ENDING: its termination was requested.
    """

    BOOTING = "BOOTING"
    UP = "UP"
    DRAINING = "DRAINING"
    ENDING = "ENDING"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Group of nodes of the same shape.

    Attributes:
        name: Name of the group.
        capacity: Resources of one node.
        most: Maximum number of nodes.
        least: Minimum number of nodes.
        label: Label of the nodes.
        price: Price of a node relative to other groups; of two equal prices the first group is used.
        boot_limit_s: Time in seconds after which a node that is not in the cluster counts as failed.
        idle_s: Time in seconds after which an idle node is removed.
    """

    name: str
    capacity: Resources
    most: int
    least: int = 0
    label: str = ""
    price: float = 1.0
    boot_limit_s: float = 600.0
    idle_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ArgumentError(f"group {self.name!r}: min={self.least} is not between 0 and max={self.most}")
        if self.capacity == NOTHING:
            raise ArgumentError(
                f"group {self.name!r}: its nodes have nothing; say how many gpus, cores, how much memory"
            )


@dataclass(frozen=True, slots=True)
class FleetNode:
    """Node of a group, as the provider and the cluster report it.

    Attributes:
        id: ID that the provider assigned.
        group: Name of its group.
        phase: Phase of the node.
        launched_s: Time of its launch.
        name: Name in the cluster; "" while it is not part of it.
        capacity: Resources in the cluster.
        label: Label in the cluster.
        is_used: True if resources of it are used, by any tenant, or promised.
        is_warned: True if the provider will take it away.
    """

    id: str
    group: str
    phase: NodePhase
    launched_s: float
    name: str = ""
    capacity: Resources = NOTHING
    label: str = ""
    is_used: bool = False
    is_warned: bool = False


@dataclass(frozen=True, slots=True)
class LaunchNodes:
    """Action to add nodes to a group.

    ``jobs`` are the IDs of the jobs that need them; empty if the group is below its minimum.
    """

    group: str
    count: int
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Action to stop placing jobs on a node."""

    node: FleetNode
    why: str


@dataclass(frozen=True, slots=True)
class RecallNode:
    """Action to use a draining node again."""

    node: FleetNode


@dataclass(frozen=True, slots=True)
class TerminateNode:
    """Action to terminate a node, or to give up one that did not arrive."""

    node: FleetNode
    why: str


ScalingAction = LaunchNodes | DrainNode | RecallNode | TerminateNode


@dataclass(frozen=True, slots=True)
class ScalingView:
    """Information about nodes for the scheduler and for users.

    Attributes:
        closed: Names of nodes on which nothing is placed.
        addable: Nodes that could still be added.
        waits: ID of a job -> text about the nodes for which it waits.
        problem: Error of the provider.
    """

    closed: frozenset[str] = frozenset()
    addable: tuple[NodeKind, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


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

    def after_arrival(self, boot_s: float) -> GroupMemory:
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
                told[node.group] = told[node.group].after_arrival(now - node.launched_s)
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
