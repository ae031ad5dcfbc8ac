"""Node groups, nodes with their phases, and actions on them. Times are in seconds of the caller's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.admission import NodeKind
from hopsml.service.scheduler.resources import NOTHING, Resources


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
