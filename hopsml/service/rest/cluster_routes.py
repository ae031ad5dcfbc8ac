"""The addresses of the cluster, below ``/api/v1``: what is where, and who has how much of its share."""

from __future__ import annotations

from fastapi import APIRouter

from hopsml.service.rest import cluster_models as models
from hopsml.service.rest.job_routes import TheJobs

router = APIRouter(prefix="/api/v1")


@router.get("/nodes")
def nodes(jobs: TheJobs) -> models.NodesAnswer:
    """Nodes: what each has, what of it is free, and which jobs are there."""
    return models.NodesAnswer(nodes=[models.NodeAnswer.of(node) for node in jobs.manager.nodes()])


@router.get("/queues")
def queues(jobs: TheJobs) -> models.QueuesAnswer:
    """Queues: their shares, and what their jobs have of them."""
    return models.QueuesAnswer(queues=[models.QueueAnswer.of(queue) for queue in jobs.manager.queues()])
