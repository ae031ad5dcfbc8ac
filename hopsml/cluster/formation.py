"""What a run asks of the coordinator, and the messages by which a group of agents becomes its workers; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster import protocol
from hopsml.cluster.gang import GangSpec
from hopsml.cluster.layout import Layout, Member, Placement, Roles


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
    environment: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    merge_scope: int | str = 32
    scoped_allocator: bool = True
    storage_timeout_s: float = 30.0
    local_logdir: bool = False


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


def formation_of(request: RunRequest, layout: Layout, generation: int) -> protocol.Formation:
    """What all members share; long, so it is encoded once."""
    return protocol.Formation(
        run_id=request.spec.run_id,
        generation=generation,
        payload=request.payload,
        cluster_json=layout.cluster_json if request.with_tf_config else "",
        leader=layout.leader,
        world_size=layout.placements[0].world_size,
        run_url=request.run_url,
        resume_url=request.resume_url,
        environment=request.environment,
        hooks=request.hooks,
        merge_scope=request.merge_scope,
        scoped_allocator=request.scoped_allocator,
        grace_s=request.spec.grace_s,
        flush_s=request.spec.flush_s,
        storage_timeout_s=request.storage_timeout_s,
        local_logdir=request.local_logdir,
    )


def launch_of(request: RunRequest, placement: Placement, generation: int) -> protocol.Launch:
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
    )
