"""Repetition (``rerun``) or continuation (``resume``) of a recorded run, by the stored bytes of its function."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hopsml.cluster.driver import secret_extraction
from hopsml.cluster.driver.capture import Captured
from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import RunSpec
from hopsml.core import decoding, settings
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from hopsml.experiment import applications, plan, takeover
from hopsml.experiment.result import Result
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog, compare, named_runs, record
from hopsml.tracking.compare import Comparison


@dataclass(frozen=True)
class Rerun:
    """The result of a repeated run, and how it compares with the original."""

    original: RunDir
    result: Result
    verdict: Comparison


def rerun(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    ignore: Collection[str] = (),
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Rerun:
    """Repeat a recorded run, wait for its end and compare the results.

    It has the same function and arguments (``code/function.pickle``, byte for byte), number of workers, merge settings,
    seed and variables, under the present profile.

    Args:
        run: the run's URL, path, id, handle or result.
        profile: name of a file in conf/; used if there is no Spark application yet.
        progress: show progress.
        ignore: names of outputs that may differ.
        secrets: values by name that the record does not contain, if they are neither in ``HOPSML_SECRET_<name>`` nor in
            the original variable.
        preflight: as in ``submit``; by default as recorded.

    Raises:
        ArgumentError: the record is not sufficient to repeat the run; names what is missing. Otherwise as ``submit``,
            and the error that ended the rerun if it failed.
    """
    applications.set_profile_variables(profile)  # which may set the project's URL
    original = named_runs.find(run, settings.project_url())
    again = build(original.url, profile=profile, progress=progress, secrets=secrets, preflight=preflight)
    result = plan.start(again).result()
    verdict = compare.compare_results(catalog.read(original), catalog.read(RunDir(result.run_dir)), ignore)
    return Rerun(original, result, verdict)


def resume(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Result:
    """Continue a run from its last checkpoint, as a new run, and wait for its end.

    The function and its arguments are those of the record; a ``hopsml.elastic.State`` or a
    ``hopsml.tensorflow.Checkpointer`` in it restores what was saved. Workers of the first run have exited by then, as
    their lease depends on their driver. The first run counts as ended (LOST) from now on, and a disconnected agent adds
    no checkpoint to it any more. If two drivers resume the same run at once, one of them gets an error. A run whose
    driver was on another machine is watched for 25 s, as it may be under way.

    Args:
        run: the run's URL, path, id, handle or result.
        profile: name of a file in conf/; used if there is no Spark application yet.
        progress: show progress.
        secrets: values by name that the record does not contain, as in ``rerun``.
        preflight: as in ``submit``; by default as recorded.

    Raises:
        ArgumentError: the run is under way, has finished, is continued elsewhere, or its record is not sufficient;
            otherwise as ``submit``.
    """
    applications.set_profile_variables(profile)
    directory = named_runs.find(run, settings.project_url())
    _check_may_go_on(directory)
    again = build(directory.url, profile=profile, progress=progress, secrets=secrets, preflight=preflight)
    return plan.start(continuation_plan(again, directory)).result()


def _check_may_go_on(directory: RunDir) -> None:
    """Raise ArgumentError for a run that is under way, has finished, or is continued elsewhere."""
    status = directory.read_status()
    if status is not None and status.get("state") == Lifecycle.FINISHED:
        raise ArgumentError(
            f"run {directory.run_id} has finished, so it cannot be resumed; experiment.rerun repeats it, and "
            f"collective_all_reduce(..., resume={directory.run_id!r}) continues training from its last checkpoint"
        )
    if successor := directory.read_successor():
        raise takeover.already_resumed_error(directory, successor)
    if status is None and takeover.driver_lives(directory):
        raise ArgumentError(f"run {directory.run_id} is still running; cancel it first, or wait for its end")


def continuation_plan(again: plan.Plan, directory: RunDir) -> plan.Plan:
    """Return the plan of a rerun, changed to start from the run's last checkpoint and to replace the run."""
    spec = msgspec.structs.replace(again.spec, resume=directory.url)
    return dataclasses.replace(again, spec=spec, continues=directory.url)


def build(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> plan.Plan:
    """Return the plan for repeating a recorded run; starts nothing, and does not run its code."""
    directory = named_runs.find(run, settings.project_url())
    with decoding.understood(f"the records of run {directory.run_id} are", "start its script again instead"):
        return _rebuilt(directory, profile, progress, secrets or {}, preflight)


def _rebuilt(
    directory: RunDir, profile: str | None, progress: bool, secrets: Mapping[str, str], preflight: str | None
) -> plan.Plan:
    """Return the plan of ``build`` for this directory; errors of a malformed record have any of the classes of Python."""
    recorded = directory.read_run()
    if "search" in recorded:
        raise ArgumentError(
            f"run {directory.run_id} is a search: experiment.continue_search({directory.run_id!r}, num_trials=...) "
            "continues it; to repeat it, start its script again with the same seed"
        )
    if "combinations" in recorded:
        names = ", ".join(recorded["combinations"])
        raise ArgumentError(
            f"run {directory.run_id} is a launch of several combinations; give the folder of one of them in "
            f"{directory.url}: {names:.200}"
        )
    shipped = record.read_shipped_function(directory, recorded)
    spec = _spec(directory, recorded, secrets)
    what = f"run {directory.run_id}"
    captured = Captured(
        name=recorded["function"],
        payload=shipped.payload,
        preload=spec.modules,
        own_imports=tuple(recorded["own_imports"]),
        source=recorded["source"],
        sha256=shipped.sha256,
        code_sha256=recorded["code_sha256"],
        secrets=secret_extraction.supply_secrets_again(recorded.get("secrets", ()), secrets, os.environ, what),
    )
    if preflight is not None:
        spec = msgspec.structs.replace(spec, preflight=checks.preflight("preflight", preflight))
    return plan.Plan(
        spec=spec,
        function=None,
        arguments=recorded["arguments"],
        profile=profile,
        progress=progress,
        captured=captured,
        rerun_of=directory,
    )


def _spec(directory: RunDir, recorded: Mapping[str, Any], secrets: Mapping[str, str]) -> RunSpec:
    """Return the specification of the recorded run, completed by secrets, which the record leaves out."""
    try:
        spec = msgspec.convert(recorded["spec"], RunSpec)
    except (KeyError, msgspec.ValidationError) as error:
        raise ArgumentError(
            f"run {directory.run_id} cannot be repeated: its run.json holds no 'spec' that this hopsml reads ({error}), so "
            "it was made by an older or newer one; start its script again instead"
        ) from None
    environment = record.given_environment(spec.environment, {**os.environ, **secrets})
    return msgspec.structs.replace(spec, environment=environment)
