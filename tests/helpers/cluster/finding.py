"""Search for the processes of a run."""

from __future__ import annotations

import psutil

from hopsml.experiment import applications
from hopsml.experiment.run import Run
from tests.helpers.cluster.workloads import wait_until


def agent_of(run: Run, rank: int) -> psutil.Process:
    """Return the agent of a worker, which is not its ancestor if the fork servers come from a zygote."""
    coordinator = applications.get_or_start().coordinator

    def of_rank() -> list[str]:
        known = coordinator.runs.get(run.run_id)  # it learns of a run in a separate thread
        placements = known.placements.values() if known is not None else ()
        return [placement.agent_id for placement in placements if placement.rank == rank]

    (agent_id,) = wait_until(of_rank, f"an agent of rank {rank}")  # a group may begin with fewer
    return psutil.Process(coordinator.door.agents[agent_id].hello.pid)
