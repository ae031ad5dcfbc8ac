"""``hopsml runs evaluate``: evaluate the checkpoints of a run, by a given function or that of its last evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.options import AsJson, ProfileOption, RunArgument
from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.training.evaluation import CheckpointEvaluation

_EARLIER = "Default: as in the run's last evaluation, else {}."
MODULE = "hopsml_evaluate_"  # prefix of the file's name: another module may have that name


def evaluate(
    run: RunArgument,
    function: Annotated[
        str, typer.Option(help="Function to call, FILE.py:NAME. Default: that of the run's last evaluation.")
    ] = "",
    args: Annotated[str, typer.Option(help="Further arguments of the function, a JSON object. Default: none.")] = "",
    metric: Annotated[
        str | None, typer.Option(help=f"Metric by which checkpoints are compared. {_EARLIER.format('metric')}")
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help=f"Direction of the metric, max or min. {_EARLIER.format('max')}")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help=f"Evaluate the oldest or the newest checkpoint first. {_EARLIER.format('oldest')}"),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the evaluation; each name has its own results.")] = "eval",
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the complete checkpoints of a run that have no result yet, and print all results.

    The function is called with the folder of a local copy of each checkpoint, and returns a number or a dict of numbers.
    A run that has not ended is followed to its end.
    """
    from hopsml import experiment
    from hopsml.core import settings
    from hopsml.errors import ArgumentError
    from hopsml.storage.run_dir import find
    from hopsml.training.evaluation import EvaluationStore

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # a profile may set the project, in which runs are searched
    directory = find(run, settings.project_url())
    if args and not function:
        raise ArgumentError(f"--args {args:.80}: these are arguments of --function FILE.py:NAME, which is missing")
    try:
        named = {"metric": metric, "direction": direction, "order": order}
        given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        common: dict[str, Any] = {"name": name, "profile": profile, "progress": not as_json, **given}
        if function:
            found = experiment.evaluate(loaded(function), directory.url, args=arguments(args), **common)
        else:
            found = experiment.continue_evaluation(directory.url, **common)
    finally:
        experiment.shutdown()
    judged, outcome = EvaluationStore(directory, name).written(), found.metrics
    print(strict_json.dumps(as_dict(judged, outcome)) if as_json else text(judged, outcome))


def loaded(named: str) -> Callable[..., Any]:
    """Return the function of ``FILE.py:NAME``, and make modules of the file's folder importable."""
    from hopsml.errors import ArgumentError
    from hopsml.submission import script

    file, colon, name = named.rpartition(":")
    path = Path(file).resolve()
    if not colon or path.suffix != ".py" or not path.is_file():
        raise ArgumentError(f"--function {named}: it must be FILE.py:NAME, and the file must exist")
    return script.load_function(path, name, MODULE)


def arguments(text_: str) -> dict[str, Any]:
    """Parse the function's further arguments from JSON; "" is no arguments."""
    from hopsml.errors import ArgumentError

    try:
        found = json.loads(text_ or "{}")
    except ValueError as error:
        raise ArgumentError(
            f"--args {text_:.80}: it must be a JSON object, as in '{{\"rows\": 100}}' ({error})"
        ) from None
    if not isinstance(found, dict):
        raise ArgumentError(f"--args {text_:.80}: it must be a JSON object, as in '{{\"rows\": 100}}'")
    return found


def text(judged: Sequence[CheckpointEvaluation], outcome: dict[str, Any]) -> str:
    """Return one line per checkpoint for the terminal; ``*`` marks the best one."""
    from hopsml.tracking.listing import figure, table

    if not judged:
        return "the run has no complete checkpoint"
    best = outcome.get("best_step")
    rows = [
        (
            f"{'* ' if one.step == best else '  '}step {one.step}",
            one.problem or "  ".join(f"{key}={figure(value)}" for key, value in one.metrics.items()),
        )
        for one in judged
    ]
    return "\n".join(table(rows))


def as_dict(judged: Sequence[CheckpointEvaluation], outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the results of all checkpoints, as ``--json`` prints them."""
    from msgspec import to_builtins

    return {"best_step": outcome.get("best_step"), "checkpoints": to_builtins(list(judged))}
