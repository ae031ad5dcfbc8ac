"""Groups of nodes, nodes as they stand, and what can be done to them. Times: seconds of the caller's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.admission import NodeKind
from hopsml.service.scheduler.resources import NOTHING, Resources


class NodePhase(StrEnum):
    """BOOTING: paid for, and not in the cluster (yet, or any more). ENDING: its end has been asked for."""

    BOOTING = "BOOTING"
    UP = "UP"
    DRAINING = "DRAINING"
    ENDING = "ENDING"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one shape. ``price``: of a node, beside those of other groups; of two that cost the same the first is taken.

    ``boot_limit_s``: a node that is not in the cluster after so long does not count on coming. ``idle_s``: so long a node
    stays without work.
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
    """A node of a group. ``id``: of whoever gives nodes; ``name``: of the cluster, "" while it is not there.

    ``is_used``: anything of ours or of others is on it, or promised to it. ``is_warned``: it will be taken away.
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
    """Add nodes; ``jobs``: for whom, none where a group has fewer than it should."""

    group: str
    count: int
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Place nothing more on it."""

    node: FleetNode
    why: str


@dataclass(frozen=True, slots=True)
class RecallNode:
    """It was being drained, and is needed."""

    node: FleetNode


@dataclass(frozen=True, slots=True)
class TerminateNode:
    """End it; also one that has not come."""

    node: FleetNode
    why: str


ScalingAction = LaunchNodes | DrainNode | RecallNode | TerminateNode


@dataclass(frozen=True, slots=True)
class ScalingView:
    """What others need to know. ``closed``: names of nodes on which nothing is placed. ``addable``: what could still come.

    ``waits``: of a job, which nodes it waits for, in words.
    """

    closed: frozenset[str] = frozenset()
    addable: tuple[NodeKind, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
