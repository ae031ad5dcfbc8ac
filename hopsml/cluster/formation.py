"""What a run asks of the coordinator, and the messages by which a group of agents becomes its workers; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster import protocol
from hopsml.cluster.gang import GangSpec
from hopsml.cluster.layout import Layout, Member, Placement, Roles
from hopsml.cluster.preflight.gate import Mode


@dataclass(frozen=True)
class RunRequest:
    """Everything that a run needs from the coordinator."""

    spec: GangSpec
    payload: bytes
    run_url: str
    preload: tuple[str, ...] = ()
    roles: Roles = field(default_factory=Roles)
    with_tf_config: bool = True
    resume_url: str = ""
    resume_step: int = -1  # of the checkpoint there; -1: the newest
    resume_fits: tuple[tuple[str, int, int], ...] = ()  # run directory, number and step of further calls of fit
    environment: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    merge_scope: int | str = 32
    scoped_allocator: bool = True
    storage_timeout_s: float = 30.0
    heartbeat_timeout_s: float = 10.0  # silence after which an agent of an elastic run counts as lost
    checkpoint_every_s: float = 60.0  # between two checkpoints that are made of commits
    preflight: Mode = "off"  # what becomes of slots that are not good enough


@dataclass(frozen=True)
class CommitSource:
    """Where the members of a generation get the training state from; step -1: from no agent.

    ``stored``: then from this checkpoint of the run; -1: from its newest.
    """

    step: int = -1
    holder: str = ""
    certificate: str = ""
    stored: int = -1


def member_of(agent_id: str, hello: protocol.Hello, port: int) -> Member:
    """An agent as the layout sees it; ``port`` is the one that it holds now."""
    return Member(
        agent_id=agent_id,
        host=hello.host,
        port=port,
        hostname=hello.hostname,
        rack=hello.rack,
        executor_id=hello.executor_id,
        gpu_indices=hello.gpu_indices,
        gpu_bus_ids=hello.gpu_bus_ids,
        topology=hello.topology,
        slot=hello.slot,
    )


def formation_of(
    request: RunRequest, layout: Layout, generation: int, source: CommitSource | None = None
) -> protocol.Formation:
    """What all members share; long, so it is encoded once."""
    source = source or CommitSource()
    return protocol.Formation(
        run_id=request.spec.run_id,
        generation=generation,
        payload=request.payload,
        cluster_json=layout.cluster_json if request.with_tf_config else "",
        leader=layout.leader,
        world_size=layout.placements[0].world_size,
        run_url=request.run_url,
        resume_url=request.resume_url,
        resume_step=request.resume_step,
        resume_fits=request.resume_fits,
        environment=request.environment,
        hooks=request.hooks,
        merge_scope=request.merge_scope,
        scoped_allocator=request.scoped_allocator,
        grace_s=request.spec.grace_s,
        flush_s=request.spec.flush_s,
        storage_timeout_s=request.storage_timeout_s,
        elastic=request.spec.elastic,
        independent=request.spec.independent,
        commit_step=source.step,
        commit_holder=source.holder,
        commit_certificate=source.certificate,
        stored_step=source.stored,
        checkpoint_every_s=request.checkpoint_every_s,
    )


def launch_of(request: RunRequest, placement: Placement, generation: int, has_commit: bool = False) -> protocol.Launch:
    """What differs from member to member."""
    return protocol.Launch(
        run_id=request.spec.run_id,
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
