"""What the coordinator knows of one run: what was asked, its gang, and the state that the driver sees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.gang_log import GangLog
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.gang import Gang
from hopsml.cluster.gang.growing_gang import GrowingGang
from hopsml.cluster.gang.independent_gang import IndependentGang
from hopsml.cluster.gang.server_gang import ServerGang
from hopsml.cluster.gang.shares import SlotClaim, claim
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import Member, Placement
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, IndependentGroup, Roles, ServerGroup

_ALL_TRAIN = Roles()
_MACHINES: Mapping[type[AnyGroup], Any] = {
    FixedGroup: Gang,
    ElasticGroup: GrowingGang,
    IndependentGroup: IndependentGang,
}


def gang_for(group: AnyGroup, roles: Roles = _ALL_TRAIN) -> Gang:
    """The state machine of a group of fixed size, of changing size, of independent members, of a chief and servers."""
    if isinstance(group, ServerGroup):
        return ServerGang(group, roles=roles)
    machine: Gang = _MACHINES[type(group)](group)
    return machine


@dataclass
class ActiveRun:
    """A run that has begun and is not over; used on the coordinator's event loop alone."""

    request: RunRequest
    state: RunState
    allowed: int | None = None  # workers, at most, of a group that changes, whatever it asks for; None: no limit
    asked: int = field(init=False)  # workers
    gang: Gang = field(init=False)
    failures: dict[str, protocol.FailureReport] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    seats: dict[str, Member] = field(default_factory=dict)  # that the placements were made of, with the workers' ports
    hosts: dict[str, str] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)  # that members prove to each other
    result: bytes = b""
    waits_for: str = ""  # which people were told
    checkpoints_fail: bool = False  # the last one could not be written
    behind: set[str] = field(default_factory=set)  # agents whose mirrors are
    losses: dict[str, asyncio.Task[str]] = field(default_factory=dict)  # agents that are lost, and why
    mirrors_fail: bool = False  # which people were told

    def __post_init__(self) -> None:
        group = self.request.spec.group
        self.asked = group.size
        if isinstance(group, ElasticGroup):
            self.asked = group.first_target or group.size
            group = msgspec.structs.replace(group, first_target=self.size)
        elif isinstance(group, IndependentGroup):
            group = msgspec.structs.replace(group, size=self.size)
        self.gang = gang_for(group, self.request.spec.roles)
        self.log = self.state.gang_log = GangLog(self.gang)

    @property
    def size(self) -> int:
        """How many workers a group that changes may have now."""
        return self.asked if self.allowed is None else min(self.asked, self.allowed)

    @property
    def claim(self) -> SlotClaim:
        """What it wants of the slots that its program may have."""
        return claim(self.request.spec.group, self.asked)

    @property
    def run_id(self) -> str:
        """``<application>_<n>``, as the run directory is called."""
        return self.request.run_id
