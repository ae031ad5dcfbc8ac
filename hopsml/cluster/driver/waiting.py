"""What people read about a run that waits for its agents, and why some never came."""

from __future__ import annotations

from collections.abc import Iterable

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.backends.base import Backend
from hopsml.cluster.gang.gang import Conclude
from hopsml.cluster.gang.pool import Pool


def waiting_text(run: ActiveRun, pool: Pool) -> str:
    """How many agents are there, and how many it takes."""
    there, wanted = run.gang.attendance(pool.agents.idle_count)
    return f"waiting for executors: {there} of {wanted} agents there"


def why_missing(run: ActiveRun, outcome: Conclude, pool: Pool, backend: Backend, others: Iterable[str]) -> str:
    """Why a run could not begin in time; ``others`` are the runs that go on."""
    if run.placements:
        return "; ".join(
            f"rank {rank} on {run.state.members[rank].host} has not begun the training function: its worker "
            f"{run.state.members[rank].state} but is still importing or unpickling"
            for rank, _ in outcome.missing
        )
    held = [f"{run_id} holds some" for run_id in others]
    reasons = [backend.why_missing(ask) for ask in sorted({ask for ask, _ in pool.expected})]
    there = pool.agents.idle_count
    why = [*reasons, *held] or [
        "those that were asked for have ended, and no other is on its way; see the driver's log"
    ]
    return f"{there} of {run.gang.spec.minimum} agents are connected; " + "; ".join(why)
