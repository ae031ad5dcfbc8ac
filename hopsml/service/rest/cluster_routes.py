"""Routes of the cluster's nodes and queues, below ``/api/v1``."""

from __future__ import annotations

from fastapi import APIRouter

from hopsml.service.rest import cluster_models as models
from hopsml.service.rest.job_routes import TheJobs

router = APIRouter(prefix="/api/v1")


@router.get("/nodes")
def nodes(jobs: TheJobs) -> models.NodesAnswer:
    """Return the nodes with their capacity, free resources and jobs."""
    return models.NodesAnswer(nodes=[models.NodeAnswer.of(node) for node in jobs.manager.nodes()])


@router.get("/queues")
def queues(jobs: TheJobs) -> models.QueuesAnswer:
    """Return the queues with their shares and what their jobs use."""
    return models.QueuesAnswer(queues=[models.QueueAnswer.of(queue) for queue in jobs.manager.queues()])
