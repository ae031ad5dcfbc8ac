"""Simulated cluster that grows and shrinks on request: nodes boot or never come, gangs run where they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hopsml.service.autoscaler import (
    DrainNode,
    FleetMemory,
    FleetNode,
    LaunchNodes,
    NodeGroup,
    NodePhase,
    RecallNode,
    ScalingDecision,
    TerminateNode,
    decide_scaling,
)
from hopsml.service.scheduler.cluster_status import Demand, GangEnd
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangShape, Placement, Resources, SlotGroup


def cores(count: int) -> Resources:
    return Resources(cores=count, memory_mib=1024 * count)


def gang(count: int, each: int = 1, label: str = "") -> GangShape:
    return GangShape((SlotGroup("workers", count, cores(each), label=label),))


def group(name: str = "cpu", each: int = 4, most: int = 4, **more: object) -> NodeGroup:
    return NodeGroup(name, cores(each), most, **more)  # type: ignore[arg-type]


class World:
    """Cluster with gangs ``waiting`` and ``running``; nodes boot in ``boots_s`` seconds, or never if it is None."""

    def __init__(
        self, *groups: NodeGroup, static: Mapping[str, int] | None = None, boots_s: float | None = 60.0
    ) -> None:
        self.groups = {each.name: each for each in groups}
        self.nodes, self.boots_s, self.now = Nodes(), boots_s, 1000.0
        self.fleet: dict[str, FleetNode] = {}
        self.waiting: dict[str, GangShape] = {}
        self.running: dict[str, tuple[GangShape, Placement]] = {}
        self.ends_s: dict[str, float] = {}
        self.memory = FleetMemory()
        self.number = 0
        for name, each in (static or {}).items():
            self.nodes.set_node(name, cores(each))

    def demand(self) -> Demand:
        ends = tuple(GangEnd(self.ends_s[job], *self.running[job]) for job in self.running if job in self.ends_s)
        return Demand(tuple(self.waiting.items()), self.nodes.clone(), ends)

    def seen(self) -> list[FleetNode]:
        return [replace(node, is_used=self.nodes.in_use(node.name)) for node in self.fleet.values()]

    def run_pass(self, seconds: float = 5.0) -> list[str]:
        """Advance the time, boot nodes, start gangs, and carry out the decision; return its actions as texts."""
        self.now += seconds
        for node in list(self.fleet.values()):
            if (
                node.phase == NodePhase.BOOTING
                and self.boots_s is not None
                and self.now - node.launched_s >= self.boots_s
            ):
                of = self.groups[node.group]
                self.fleet[node.id] = replace(
                    node, phase=NodePhase.UP, name=node.id, capacity=of.capacity, label=of.label
                )
                self.nodes.set_node(node.id, of.capacity, of.label)
        self.start()
        return self.carry_out(self.decided())

    def start(self) -> None:
        """Start the gangs that fit."""
        for job, wanted in list(self.waiting.items()):
            if (placement := self.nodes.place(wanted, least=True)) is not None:
                self.nodes.promise(wanted, placement)
                self.nodes.occupy(wanted, placement)
                self.running[job] = (wanted, placement)
                del self.waiting[job]

    def end(self, job: str) -> None:
        wanted, placement = self.running.pop(job)
        self.nodes.forget(wanted, placement)
        self.nodes.vacate(wanted, placement)

    def decided(self) -> ScalingDecision:
        return decide_scaling(self.memory, self.groups, self.demand(), self.seen(), self.now)

    def carry_out(self, decision: ScalingDecision) -> list[str]:
        """Carry out a decision and assert that it is permitted; return its actions as texts."""
        self.memory = decision.memory
        log = []
        for action in decision.actions:
            match action:
                case LaunchNodes(name, count):
                    log.append(f"+{count} {name}")
                    self.launch(name, count)
                case DrainNode(node):
                    log.append(f"drain {node.id}")
                    self.fleet[node.id] = replace(self.fleet[node.id], phase=NodePhase.DRAINING)
                    self.nodes.close(node.name)
                case RecallNode(node):
                    log.append(f"recall {node.id}")
                    self.fleet[node.id] = replace(self.fleet[node.id], phase=NodePhase.UP)
                    self.nodes.set_node(node.name, node.capacity, self.groups[node.group].label)
                case TerminateNode(node):
                    log.append(f"end {node.id}")
                    assert not self.nodes.in_use(node.name)
                    self.nodes.remove_capacity(node.name)
                    del self.fleet[node.id]
        for name, of in self.groups.items():
            assert sum(node.group == name for node in self.fleet.values()) <= of.most
        return log

    def launch(self, name: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.fleet[f"{name}-{self.number}"] = FleetNode(f"{name}-{self.number}", name, NodePhase.BOOTING, self.now)

    def run_passes(self, turns: int = 400, seconds: float = 5.0) -> list[str]:
        """Run several passes and return their actions as texts."""
        return [log for _ in range(turns) for log in self.run_pass(seconds)]

    def up(self, name: str) -> list[str]:
        return [node.id for node in self.fleet.values() if node.group == name and node.phase == NodePhase.UP]
