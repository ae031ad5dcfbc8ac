"""What a run requests of the coordinator, and the messages by which a group of agents becomes its workers; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopsml.cluster.shared.layout import Layout, Member, Placement
from hopsml.cluster.shared.protocol import CommitSource, Formation, Hello, Launch, PortsHeld, Resume
from hopsml.cluster.shared.spec import RunSpec


@dataclass(frozen=True)
class SidecarWord:
    """What the process beside a run's workers on an agent has said when it began, or why it has ``ended``."""

    agent_id: str
    data: bytes = b""
    ended: str = ""
    is_final: bool = False  # whether none follows though the agent stays


def _unheard(word: SidecarWord) -> None:
    pass


@dataclass(frozen=True)
class RunRequest:
    """Everything that the coordinator needs to carry out a run."""

    run_id: str  # as in the run directory's name
    spec: RunSpec
    payload: bytes  # cloudpickle of (function, keyword arguments)
    run_url: str
    resume: Resume = Resume()
    bare: int = 0  # how many of its agents need no GPU, where the cluster can give such ones
    on_sidecar: Callable[[SidecarWord], None] = _unheard  # on the coordinator's thread: it must not wait


def member_of(agent_id: str, hello: Hello, ports: PortsHeld) -> Member:
    """The agent as input of the layout; ``ports``: those that it holds now."""
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
    """The message that all workers of a generation share; it can be long, so it is encoded once. ``key``: their secret."""
    return Formation(
        run_id=request.run_id,
        generation=generation,
        spec=request.spec,
        payload=request.payload,
        run_url=request.run_url,
        cluster_json=layout.cluster_json if _finds_others_by_tf_config(request.spec) else "",
        leader=layout.leader,
        world_size=layout.placements[0].world_size,
        resume=request.resume,
        commit=source or CommitSource(),
        collective=() if request.spec.group.relaunches else layout.collective,  # servers make no calls of their own
        collective_key=key,
        guarded=layout.guarded,
        joins=joins,
    )


def _finds_others_by_tf_config(spec: RunSpec) -> bool:
    """Not a worker that has no others, nor one of another framework, unless it is told so by what it runs."""
    return spec.group.relaunches or (spec.framework == "tensorflow" and not spec.all_gpus)


def launch_of(request: RunRequest, placement: Placement, generation: int, has_commit: bool = False) -> Launch:
    """The message that differs from worker to worker."""
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
