"""What is remembered of groups and nodes while the service lives; without it ``decide`` is only slower to end what idles."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hopsml.service.autoscaler.model import FleetNode, NodeGroup, NodePhase
from hopsml.service.scheduler.resources import Resources
from hopsml.storage.backoff import pause_s

BOOTS = 15  # that the median is of
FIRST_REST_S, LONGEST_REST_S = 60.0, 3600.0
GRACE_S = 120.0  # a service that has just come back does not give up what it has only now seen


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """``boots_s``: how long its nodes took, the newest last. ``seen``: (what it has, its label) of a node that came."""

    boots_s: tuple[float, ...] = ()
    failures: int = 0  # since a node came
    rests_until_s: float = 0.0
    seen: tuple[Resources, str] | None = None

    def usual_boot_s(self, group: NodeGroup) -> float:
        """What is to be expected: the median; the bound as long as none has come."""
        return statistics.median(self.boots_s) if self.boots_s else group.boot_limit_s

    def shape(self, group: NodeGroup) -> tuple[Resources, str]:
        """What a further node would have, and its label: what came counts more than what was said."""
        return self.seen or (group.capacity, group.label)

    def failed(self, now: float) -> GroupMemory:
        """Something that was asked for has not come."""
        failures = self.failures + 1
        return replace(self, failures=failures, rests_until_s=now + pause_s(failures, FIRST_REST_S, LONGEST_REST_S))

    def came(self, boot_s: float) -> GroupMemory:
        """A node has."""
        return GroupMemory((*self.boots_s, boot_s)[-BOOTS:], seen=self.seen)


@dataclass(frozen=True, slots=True)
class FleetMemory:
    """By id of the node: since when it is not in the cluster, since when it has had no work; which have been there."""

    groups: Mapping[str, GroupMemory] = field(default_factory=dict)
    absent_s: Mapping[str, float] = field(default_factory=dict)
    idle_s: Mapping[str, float] = field(default_factory=dict)
    came: frozenset[str] = frozenset()
    known: Mapping[str, str] | None = None  # id -> group, of the look before; None: there was none

    def group(self, name: str) -> GroupMemory:
        """Of a group, whatever was seen of it."""
        return self.groups.get(name, GroupMemory())

    def failed(self, group: str, now: float) -> FleetMemory:
        """A group has not given what it was asked for."""
        return replace(self, groups={**self.groups, group: self.group(group).failed(now)})

    def looked(
        self, groups: Mapping[str, NodeGroup], fleet: Iterable[FleetNode], now: float
    ) -> tuple[FleetMemory, list[FleetNode]]:
        """After a look at the nodes; with those that have been absent for longer than their group allows."""
        nodes = [node for node in fleet if node.group in groups]
        told = {name: self.group(name) for name in groups}
        absent = {node.id: self.absent_s.get(node.id, now) for node in nodes if node.phase == NodePhase.BOOTING}
        for node in nodes:
            if node.phase != NodePhase.UP:
                continue
            if node.id in self.absent_s and node.id not in self.came:
                told[node.group] = told[node.group].came(now - node.launched_s)
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
        limit_s = groups[node.group].boot_limit_s
        if node.id in self.came:
            return now - absent_since_s >= limit_s
        return now - node.launched_s >= limit_s and now - absent_since_s >= min(limit_s, GRACE_S)

    def _vanished(self, nodes: list[FleetNode]) -> set[str]:
        """Groups of which nodes have gone that never came, and no others in their place."""
        there = {node.id for node in nodes}
        gone = [
            self.known[each]
            for each in self.absent_s
            if self.known and each in self.known and each not in there | self.came
        ]
        fresh = [node.group for node in nodes if self.known is not None and node.id not in self.known]
        return {group for group in gone if gone.count(group) > fresh.count(group) and group in self.groups}
