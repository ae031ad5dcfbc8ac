"""Response models of the cluster's routes: nodes and queues."""

from __future__ import annotations

from pydantic import BaseModel, Field

from hopsml.service.rest.job_models import Amount
from hopsml.service.scheduler.cluster_status import NodeStatus, QueueStatus
from hopsml.service.scheduler.resources import UNLIMITED, Resources


class JobOnNodeAnswer(BaseModel):
    """Resources that a job uses on a node."""

    id: str
    owner: str
    uses: Amount


class NodeAnswer(BaseModel):
    """A node of the cluster, with the jobs that use it."""

    name: str
    label: str = Field(description="As YARN's partitions; empty for none.")
    capacity: Amount
    free: Amount = Field(description="What is promised to nobody.")
    others: Amount = Field(description="What other tenants of the cluster use.")
    jobs: list[JobOnNodeAnswer]

    @classmethod
    def of(cls, node: NodeStatus) -> NodeAnswer:
        """Convert the manager's status of a node."""
        jobs = [JobOnNodeAnswer(id=one.job_id, owner=one.owner, uses=Amount.of(one.uses)) for one in node.jobs]
        amounts = {name: Amount.of(getattr(node, name)) for name in ("capacity", "free", "others")}
        return cls(name=node.name, label=node.label, jobs=jobs, **amounts)


class NodesAnswer(BaseModel):
    """All nodes by name; empty if another server is the leader, or before the first response of the cluster."""

    nodes: list[NodeAnswer]


class LimitAnswer(BaseModel):
    """Limits of each resource; null where there is no limit."""

    gpus: int | None
    cores: int | None
    memory_mib: int | None

    @classmethod
    def of(cls, limit: Resources | None) -> LimitAnswer:
        """Convert the scheduler's limit; None is no limit."""
        values = (None, None, None) if limit is None else (limit.gpus, limit.cores, limit.memory_mib)
        gpus, cores, memory_mib = (None if value is None or value >= UNLIMITED else value for value in values)
        return cls(gpus=gpus, cores=cores, memory_mib=memory_mib)


class QueueAnswer(BaseModel):
    """A queue of the cluster, with its shares and their use."""

    name: str
    weight: float = Field(description="Of its share in what all queues want.")
    guaranteed: Amount = Field(description="So much it gets back from queues that have more than theirs.")
    limit: LimitAnswer
    used: Amount = Field(description="What its jobs have, or are promised.")
    running: int = Field(description="How many jobs.")
    waiting: int = Field(description="How many jobs; those that are paused are not counted.")

    @classmethod
    def of(cls, found: QueueStatus) -> QueueAnswer:
        """Convert the manager's status of a queue."""
        return cls(
            name=found.queue.name,
            weight=found.queue.weight,
            guaranteed=Amount.of(found.queue.guaranteed),
            limit=LimitAnswer.of(found.queue.limit),
            used=Amount.of(found.has),
            running=found.running,
            waiting=found.waiting,
        )


class QueuesAnswer(BaseModel):
    """All queues of the cluster."""

    queues: list[QueueAnswer]
