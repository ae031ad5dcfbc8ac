"""Verb ``evaluate``: evaluate the checkpoints of a run on a separate executor, during its training or afterwards."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import FIRST_EVALUATION, ElasticGroup, Evaluation, RunSpec, section_from_options
from hopsml.core import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import applications, plan, repeat, verbs
from hopsml.experiment.options import EvaluationOptions
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.verbs import Verb
from hopsml.tracking import named_runs
from hopsml.training.evaluation import EvaluationStore, function_name

BODY = "hopsml.training.evaluation:play"
DEATHS = 5  # consecutive failures of the evaluator's process


@Verb(EvaluationOptions, "evaluate")
def evaluate(options: EvaluationOptions) -> Result:
    """Evaluate each complete checkpoint of a run once; blocks until the run has ended and all are evaluated.

    ``train_fn(folder, **args)`` gets a local copy of a checkpoint's folder and returns a number, or a dict of numbers.
    The results are stored in the evaluated run's directory as ``evaluations/step-000000120.json``, with ``best.json``
    next to them; an evaluator that fails is restarted and continues there, as does a later call. Another function needs
    another ``name``, whose results are in ``evaluations/NAME/``. A run whose driver was killed counts as ended. A
    checkpoint that the training deletes before its evaluation is recorded as skipped. The result's metrics are those of
    the best checkpoint.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, for a run that does not exist, or one that
            another function has evaluated under this name, among others.
        RunError: the function failed; the message has its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return plan.start(build(options)).result()


@Verb(EvaluationOptions, "submit_evaluation")
def submit_evaluation(options: EvaluationOptions) -> Run:
    """Start ``evaluate`` and return at once with a handle, in parallel with a training that is under way."""
    return plan.start(build(options))


def continue_evaluation(
    run: Any,
    *,
    name: str = FIRST_EVALUATION,
    metric: str | None = None,
    direction: str | None = None,
    order: str | None = None,
    profile: str | None = None,
    progress: bool = True,
) -> Result:
    """Evaluate the remaining checkpoints of a run by the recorded function of an earlier ``evaluate``.

    It blocks until the run has ended and all are evaluated.

    Args:
        run: run whose checkpoints are evaluated: its URL, path, id, handle or result.
        name: name of the evaluation.
        metric: key by which checkpoints are compared, including those evaluated already; by default unchanged.
        direction: "max" or "min"; by default unchanged.
        order: "oldest" or "newest" first; by default unchanged.
        profile: name of a file in conf/; used if there is no Spark application yet.
        progress: show progress.

    Raises:
        ArgumentError: the run was never evaluated, or the evaluator's record cannot be used; otherwise as ``evaluate``.
    """
    applications.set_profile_variables(profile)  # which may set the project's URL
    directory = named_runs.find(run, settings.project_url())
    facts = EvaluationStore(directory, checks.evaluation_name("name", name))
    earlier = str(facts.read_evaluator_record().get("run") or "")
    if not earlier:
        first = name == FIRST_EVALUATION
        how, named, option = ("", "", "") if first else (f" as {name!r}", f", name={name!r}", f" --name {name}")
        raise ArgumentError(
            f"run {directory.run_id} was never evaluated{how}, so there is no recorded function; call  "
            f"experiment.evaluate(function, {directory.run_id!r}{named}), or 'hopsml runs evaluate "
            f"{directory.run_id} --function FILE.py:NAME{option}'"
        )
    again = repeat.build(earlier, profile=profile, progress=progress)
    requested = again.spec.evaluation
    if requested is None:
        raise ArgumentError(f"{facts.evaluator_json} contains {earlier}, which is not an evaluation; remove that file")
    wishes = {
        "metric": metric if metric is None else checks.text("metric", metric),
        "direction": direction if direction is None else checks.direction("direction", direction),
        "order": order if order is None else checks.order("order", order),
    }
    given = {key: value for key, value in wishes.items() if value is not None}
    # The run's present URL: if the run was moved, the evaluator's results were moved with it.
    spec = msgspec.structs.replace(
        again.spec, evaluation=msgspec.structs.replace(requested, run=directory.url, **given)
    )
    return plan.start(dataclasses.replace(again, spec=spec)).result()


def build(options: EvaluationOptions) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    applications.set_profile_variables(options.profile)
    directory = named_runs.find(options.run, settings.project_url())
    evaluation = section_from_options(Evaluation, options, run=directory.url)
    _check_function(options.train_fn, EvaluationStore(directory, evaluation.name))
    group = ElasticGroup(
        size=1, min_size=1, commits=False, fruitless_limit=DEATHS, start_timeout_s=float(options.start_timeout)
    )
    return plan.Plan(
        spec=section_from_options(
            RunSpec,
            options,
            verb="evaluate",
            framework="none",
            group=group,
            evaluation=evaluation,
            body=BODY,
            environment=verbs.worker_environment(options.environment, options.share),
        ),
        function=options.train_fn,
        arguments=_arguments(options.train_fn, options.args),
        profile=options.profile,
        progress=bool(options.progress),
    )


def _check_function(function: Callable[..., Any], facts: EvaluationStore) -> None:
    """Raise ArgumentError if the results under this name are those of another function."""
    earlier, now = str(facts.read_evaluator_record().get("function") or ""), function_name(function)
    if earlier and earlier != now:
        raise ArgumentError(
            f"{now}: the evaluation {facts.name!r} of run {facts.run.run_id} uses the function {earlier}; give the "
            f"evaluation with this function another name, such as name={now.rpartition('.')[2]!r}, or remove "
            f"{facts.folder}"
        )


def _arguments(function: Callable[..., Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentTypeError(f"args={given!r:.80} is a {type(given).__name__}; it must be a dict")
    found = dict(given or {})
    try:
        inspect.signature(function).bind(Path(), **found)
    except TypeError as error:
        raise ArgumentError(
            f"evaluate(): the function must accept the folder of a checkpoint and args={found!r:.80}: {error}"
        ) from None
    return found
