"""Runs as the coordinator carries them out: request, start messages, group state machine, and share of the slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from hopsml.cluster.driver.run_state import Change, GangLog, RunState
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.independent_machine import IndependentGroupMachine
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.cluster.gang.pool import SlotDemand, shares, slot_demand
from hopsml.cluster.gang.server_machine import ServerGroupMachine
from hopsml.cluster.shared import worker_events
from hopsml.cluster.shared.layout import Layout, Member, Placement
from hopsml.cluster.shared.protocol import CommitSource, Formation, Hello, Launch, PortsHeld, Resume
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, IndependentGroup, Roles, RunSpec, ServerGroup
from hopsml.storage.backoff import Reminder


@dataclass(frozen=True)
class SidecarReport:
    """Message of the sidecar process that a run has on each agent, or the reason why it has ``ended``."""

    agent_id: str
    data: bytes = b""
    ended: str = ""
    is_final: bool = False  # True if no other sidecar follows although the agent stays


def _ignore(message: SidecarReport) -> None:
    """Ignore a sidecar's message."""
    pass


@dataclass(frozen=True)
class RunRequest:
    """All data that the coordinator needs to carry out a run."""

    run_id: str  # name of the run directory
    spec: RunSpec
    payload: bytes  # cloudpickle of (function, keyword arguments)
    run_url: str
    resume: Resume = Resume()
    bare: int = 0  # how many of its agents need no GPU, if the cluster can provide agents without one
    on_sidecar: Callable[[SidecarReport], None] = _ignore  # called on the coordinator's thread: it must not block


def member_of(agent_id: str, hello: Hello, ports: PortsHeld) -> Member:
    """Return the agent as input of the layout; ``ports``: those that it holds now."""
    return Member(
        agent_id=agent_id,
        host=hello.host,
        port=ports.port,
        collective_port=ports.collective_port,
        hostname=hello.machine,
        rack=hello.rack,
        gpu_indices=hello.gpu_indices,
        gpu_bus_ids=hello.gpu_bus_ids,
        topology=hello.topology,
        slot=hello.slot,
        guards=hello.guards,
    )


def formation_of(
    request: RunRequest,
    layout: Layout,
    generation: int,
    key: bytes,
    source: CommitSource | None = None,
    joins: bool = False,
) -> Formation:
    """Return the message that all workers of a generation share; it can be long, so it is encoded once.

    Args:
        request: The run.
        layout: Ranks and addresses of the generation.
        generation: Its number.
        key: Secret that its members share.
        source: Where members without the commit can fetch it; None: there is no commit.
        joins: True for workers that prepare to join a running group.
    """
    return Formation(
        run_id=request.run_id,
        generation=generation,
        spec=request.spec,
        payload=request.payload,
        run_url=request.run_url,
        cluster_json=layout.cluster_json if _uses_tf_config(request.spec) else "",
        leader=layout.leader,
        world_size=layout.placements[0].world_size,
        resume=request.resume,
        commit=source or CommitSource(),
        collective=() if request.spec.group.relaunches else layout.collective,  # servers make no collective calls
        collective_key=key,
        guarded=layout.guarded,
        joins=joins,
    )


def _uses_tf_config(spec: RunSpec) -> bool:
    """Return True if the workers find each other by TF_CONFIG.

    That holds for servers, and for TensorFlow without ``all_gpus``, with which a worker trains alone.
    """
    return spec.group.relaunches or (spec.framework == "tensorflow" and not spec.all_gpus)


def launch_of(request: RunRequest, placement: Placement, generation: int, has_commit: bool = False) -> Launch:
    """Return the message that differs from worker to worker.

    Args:
        request: The run.
        placement: The worker's rank, role and devices.
        generation: Generation of its group.
        has_commit: True if its agent holds the commit to continue from.
    """
    return Launch(
        run_id=request.run_id,
        generation=generation,
        rank=placement.rank,
        local_rank=placement.local_rank,
        role=placement.role,
        task_index=placement.task_index,
        gpu_indices=placement.gpu_indices,
        ring_order=placement.ring_order,
        environment=placement.env,
        has_commit=has_commit,
    )


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
    wanted_size: int = field(init=False)  # number of workers
    gang: GroupMachine = field(init=False)
    failures: dict[str, worker_events.FailureReport] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    seats: dict[str, Member] = field(default_factory=dict)  # the layout's input, with the workers' ports
    hosts: dict[str, str] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)  # that members prove to each other
    result: bytes = b""
    waits_for: str = ""  # last published text about missing agents
    checkpoint_notes: Reminder = field(default_factory=Reminder)  # of checkpoints that cannot be written
    behind: dict[str, int] = field(default_factory=dict)  # agents whose mirrors are behind: number of files
    mirror_notes: Reminder = field(default_factory=Reminder)  # of mirrors that are behind
    losses: dict[str, asyncio.Task[str]] = field(default_factory=dict)  # lost agents, and why

    def __post_init__(self) -> None:
        group = self.request.spec.group
        self.wanted_size = group.size
        if isinstance(group, ElasticGroup):
            self.wanted_size = group.first_size
            group = msgspec.structs.replace(group, first_target=self.size)
        elif isinstance(group, IndependentGroup):
            group = msgspec.structs.replace(group, size=self.size)
        self.gang = machine_for(group, self.request.spec.roles)
        self.log = self.state.gang_log = GangLog(self.gang)

    @property
    def size(self) -> int:
        """Number of workers that a group that changes may have now: those requested, at most those allowed."""
        return self.wanted_size if self.allowed is None else min(self.wanted_size, self.allowed)

    @property
    def slot_demand(self) -> SlotDemand:
        """Demand of the run for the slots that all runs share."""
        return slot_demand(self.request.spec.group, self.wanted_size)

    @property
    def run_id(self) -> str:
        """Name of the run directory: ``<application>_<n>``."""
        return self.request.run_id


class SlotShares:
    """Policy by which all runs together use at most ``allowed`` slots, whatever they request; None: no limit."""

    def __init__(self, runs: Mapping[str, ActiveRun], allowed: int | None) -> None:
        """Prepare the policy for ``runs``, which the coordinator adds and removes."""
        self._runs, self.allowed = runs, allowed

    def share_of_newcomer(self, request: RunRequest) -> int | None:
        """Return the share of a run that is about to begin; None if there is no limit."""
        if self.allowed is None:
            return None
        group = request.spec.group
        return shares(
            self.allowed, [*(run.slot_demand for run in self._runs.values()), slot_demand(group, group.size)]
        )[-1]

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
                run.state.publish(Change("slots", total=run.size if run.wanted_size else self.allowed))
