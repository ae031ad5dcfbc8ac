"""Runs that the coordinator carries out: request, group state machine, state for observers, and share of the slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.gang_log import GangLog
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.independent_machine import IndependentGroupMachine
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.cluster.gang.server_machine import ServerGroupMachine
from hopsml.cluster.gang.shares import SlotDemand, slot_demand, shares
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import Member, Placement
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, IndependentGroup, Roles, ServerGroup

_ALL_TRAIN = Roles()


def machine_for(group: AnyGroup, roles: Roles = _ALL_TRAIN) -> GroupMachine:
    """Return the state machine for a group: of fixed size, elastic, independent members, or a chief and servers."""
    if isinstance(group, ServerGroup):
        return ServerGroupMachine(group, roles=roles)
    return IndependentGroupMachine(group) if isinstance(group, IndependentGroup) else ElasticGroupMachine(group)


@dataclass
class ActiveRun:
    """State of a run that has begun and not ended; used only on the coordinator's event loop."""

    request: RunRequest
    state: RunState
    # largest number of workers of a group that changes, whatever it requests; None: no limit
    allowed: int | None = None
    asked: int = field(init=False)  # number of workers
    gang: GroupMachine = field(init=False)
    failures: dict[str, protocol.FailureReport] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    seats: dict[str, Member] = field(default_factory=dict)  # the layout's input, with the workers' ports
    hosts: dict[str, str] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)  # that members prove to each other
    result: bytes = b""
    waits_for: str = ""  # last published text about missing agents
    checkpoints_fail: bool = False  # the last one could not be written
    behind: set[str] = field(default_factory=set)  # agents whose mirrors are behind
    losses: dict[str, asyncio.Task[str]] = field(default_factory=dict)  # lost agents, and why
    mirrors_fail: bool = False  # True if a note about failing mirrors was published

    def __post_init__(self) -> None:
        group = self.request.spec.group
        self.asked = group.size
        if isinstance(group, ElasticGroup):
            self.asked = group.first_target or group.size
            group = msgspec.structs.replace(group, first_target=self.size)
        elif isinstance(group, IndependentGroup):
            group = msgspec.structs.replace(group, size=self.size)
        self.gang = machine_for(group, self.request.spec.roles)
        self.log = self.state.gang_log = GangLog(self.gang)

    @property
    def size(self) -> int:
        """Number of workers that a group that changes may have now."""
        return self.asked if self.allowed is None else min(self.asked, self.allowed)

    @property
    def slot_demand(self) -> SlotDemand:
        """Demand of the run for the slots that all runs share."""
        return slot_demand(self.request.spec.group, self.asked)

    @property
    def run_id(self) -> str:
        """Name of the run directory: ``<application>_<n>``."""
        return self.request.run_id


class SlotShares:
    """Policy by which all runs together use at most ``allowed`` slots, whatever they request; None: no limit."""

    def __init__(self, runs: Mapping[str, ActiveRun], allowed: int | None) -> None:
        """Prepare the policy for ``runs``, which the coordinator adds and removes."""
        self._runs, self.allowed = runs, allowed

    def of_newcomer(self, request: RunRequest) -> int | None:
        """Return the share of a run that is about to begin; None if there is no limit."""
        if self.allowed is None:
            return None
        group = request.spec.group
        return shares(self.allowed, [*(run.slot_demand for run in self._runs.values()), slot_demand(group, group.size)])[-1]

    def distribute(self, resize: Callable[[ActiveRun], None]) -> None:
        """Apply the runs' shares of the allowed slots, and inform those whose share changes.

        Args:
            resize: Called with each run whose group may change, and whose share has.
        """
        if self.allowed is None:
            return
        runs = list(self._runs.values())
        parts = zip(runs, shares(self.allowed, [run.slot_demand for run in runs]), strict=True)
        changed = [(run, part) for run, part in parts if run.allowed != part]
        for run, part in changed:
            run.allowed = part
        for run, _ in changed:
            if run.request.spec.group.changes:
                resize(run)
        for run in runs:
            # The search chooses the lanes that end; a search whose trials are separate runs counts on all slots.
            if isinstance(run.request.spec.group, IndependentGroup):
                run.state.publish(Change("slots", total=run.size if run.asked else self.allowed))
