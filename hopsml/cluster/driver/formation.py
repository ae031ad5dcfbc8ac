"""Request of a run to the coordinator, and the messages by which agents start its workers; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopsml.cluster.shared.layout import Layout, Member, Placement
from hopsml.cluster.shared.protocol import CommitSource, Formation, Hello, Launch, PortsHeld, Resume
from hopsml.cluster.shared.spec import RunSpec


@dataclass(frozen=True)
class SidecarWord:
    """Message of the sidecar process that a run has on each agent, or the reason why it has ``ended``."""

    agent_id: str
    data: bytes = b""
    ended: str = ""
    is_final: bool = False  # True if no other sidecar follows although the agent stays


def _unheard(word: SidecarWord) -> None:
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
    on_sidecar: Callable[[SidecarWord], None] = _unheard  # called on the coordinator's thread: it must not block


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
        cluster_json=layout.cluster_json if _finds_others_by_tf_config(request.spec) else "",
        leader=layout.leader,
        world_size=layout.placements[0].world_size,
        resume=request.resume,
        commit=source or CommitSource(),
        collective=() if request.spec.group.relaunches else layout.collective,  # servers make no collective calls
        collective_key=key,
        guarded=layout.guarded,
        joins=joins,
    )


def _finds_others_by_tf_config(spec: RunSpec) -> bool:
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
