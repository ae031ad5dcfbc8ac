"""``resume``: go on with a run whose driver has died, or that failed, from its newest complete checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hopsml import settings
from hopsml.errors import ArgumentError
from hopsml.experiment import plan, rerun, sign_of_life, taking_up
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.states import State
from hopsml.storage.runs import find


def resume(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Result:
    """Continue a run and wait for its end; a run of its own, which begins where the other's last checkpoint stands.

    ``run`` is its URL, path, id, handle or result. The function and its arguments are those of the record; a
    ``hopsml.elastic.State`` or a ``hopsml.tensorflow.Checkpointer`` in it restores what was saved. Workers of the first run
    are gone by then: they live on a lease of their driver. The first run counts as ended (LOST) from now on, and an agent
    that was cut off adds no checkpoint to it any more.

    Raises ArgumentError for a run that is under way, has finished or goes on elsewhere, or was not recorded well enough;
    otherwise as ``submit``. Of two that take the same run up at once one is refused. A run whose driver was on another
    machine is watched for 25 s: it may be under way.
    """
    return submit(run, profile=profile, progress=progress, secrets=secrets, preflight=preflight).result()


def submit(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Run:
    """As ``resume``, but returns at once with the run's handle."""
    directory = find(run, settings.project_url())
    status = directory.read_status()
    if status is not None and status.get("state") == State.FINISHED:
        raise ArgumentError(
            f"run {directory.run_id} has finished: there is nothing to go on with; experiment.rerun repeats it, and "
            f"collective_all_reduce(..., resume={directory.run_id!r}) trains on from its last checkpoint"
        )
    if successor := directory.successor():
        raise taking_up.refusal(directory, successor)
    if status is None and sign_of_life.driver_lives(directory):
        raise ArgumentError(
            f"run {directory.run_id} is under way: its driver lives; cancel it there first, or wait for its end"
        )
    again = rerun.build(directory.url, profile=profile, progress=progress, secrets=secrets, preflight=preflight)
    return plan.start(dataclasses.replace(again, resume=directory.url, continues=directory.url))
