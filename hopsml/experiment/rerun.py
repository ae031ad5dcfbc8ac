"""``rerun``: a recorded run once more, with the same bytes of the function, and whether the same came of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hopsml import settings
from hopsml.cluster import kept_secrets
from hopsml.cluster.capture import Captured
from hopsml.cluster.layout import Roles
from hopsml.errors import ArgumentError
from hopsml.experiment import arguments, plan
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.storage.run_dir import RunDir
from hopsml.storage.runs import find
from hopsml.tracking import catalog, compare, record, seeds
from hopsml.tracking.compare import Verdict


@dataclass(frozen=True)
class Rerun:
    """What came of it, and how that compares with the original."""

    original: RunDir
    result: Result
    verdict: Verdict


def rerun(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    ignore: Collection[str] = (),
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Rerun:
    """Run a recorded run again, wait for its end and compare; ``run`` is its URL, path, id, handle or result.

    The same function and arguments (``code/function.pickle``, byte for byte), number of workers, merge settings, seed and
    variables, under the profile of now; ``preflight`` as recorded, unless it is given. ``ignore`` names outputs that may
    differ. ``secrets``: by name, what was left out of the record, where it is neither in ``HOPSML_SECRET_<name>`` nor in
    the variable that it came from. Raises as ``submit``, and what ended the rerun if it failed.
    """
    original = find(run, settings.project_url())
    result = submit(original.url, profile=profile, progress=progress, secrets=secrets, preflight=preflight).result()
    verdict = compare.same_result(catalog.read(original), catalog.read(RunDir(result.run_dir)), ignore)
    return Rerun(original, result, verdict)


def submit(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> Run:
    """As ``rerun``, but returns at once with the run's handle.

    Raises ArgumentError where the run was not recorded well enough to be repeated, naming what is missing.
    """
    return plan.start(build(run, profile=profile, progress=progress, secrets=secrets, preflight=preflight))


def build(
    run: Any,
    *,
    profile: str | None = None,
    progress: bool = True,
    secrets: Mapping[str, str] | None = None,
    preflight: str | None = None,
) -> plan.Plan:
    """The plan of a recorded run; nothing is started, and nothing of its code is run."""
    directory = find(run, settings.project_url())
    recorded = directory.read_run()
    if "search" in recorded:
        raise ArgumentError(
            f"run {directory.run_id} is a search: experiment.continue_search({directory.run_id!r}, num_trials=...) goes "
            "on with it; to repeat it, start its script again with the same seed"
        )
    if "combinations" in recorded:
        names = ", ".join(recorded["combinations"])
        raise ArgumentError(
            f"run {directory.run_id} is a launch of several combinations: take one of them by its folder in "
            f"{directory.url}: {names:.200}"
        )
    options = recorded.get("options")
    if not isinstance(options, dict):
        raise ArgumentError(
            f"run {directory.run_id} cannot be repeated: its run.json holds no 'options', so it was made by an older "
            "hopsml; start its script again instead"
        )
    shipped = record.shipped(directory, recorded)
    environment = record.given_environment(options["environment"], {**os.environ, **(secrets or {})})
    what = f"run {directory.run_id}"
    captured = Captured(
        name=recorded["function"],
        payload=shipped.payload,
        preload=tuple(options["preload"]),
        own_imports=tuple(options["own_imports"]),
        source=recorded["source"],
        sha256=shipped.sha256,
        code_sha256=recorded["code_sha256"],
        secrets=kept_secrets.given_again(recorded.get("secrets", ()), secrets or {}, os.environ, what),
    )
    return plan.Plan(
        verb=recorded["verb"],
        function=None,
        arguments=recorded["arguments"],
        name=recorded["name"],
        description=recorded["description"],
        size=recorded["workers"],
        roles=Roles(evaluator=options["evaluator"]),
        with_tf_config=options["with_tf_config"],
        merge_scope=recorded["merge_scope"],
        scoped_allocator=recorded["scoped_allocator"],
        resume=recorded["resume"],
        start_timeout_s=options["start_timeout_s"],
        keep_warm_s=options["keep_warm_s"],
        preload=tuple(options["preload"]),
        honour_environment=options["honour_environment"],
        profile=profile,
        progress=progress,
        environment={**environment, seeds.VARIABLE: str(recorded["seed"])},
        local_logdir=options["local_logdir"],
        metric_key=options["metric_key"],
        checkpoint_every_s=options.get("checkpoint_every_s", 60.0),
        elastic=plan.Elastic(**options["elastic"]) if options.get("elastic") else None,
        captured=captured,
        rerun_of=directory,
        register_as=options.get("register_as"),
        preflight=arguments.preflight(options.get("preflight", "warn") if preflight is None else preflight),
    )
