"""``hopsml evaluate RUN``: the checkpoints of a run judged, by a function of one's own or that of its last evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.training.evaluation import CheckpointEvaluation

_EARLIER = "that of the run's last evaluation, else {}"
MODULE = "hopsml_evaluate_"  # before the file's name: a module of that name may be there


def evaluate(
    run: str,
    function: Annotated[str, typer.Option(help="FILE.py:NAME; that of the run's last evaluation by default")] = "",
    args: Annotated[str, typer.Option(help="its further arguments, a JSON object")] = "",
    metric: Annotated[
        str | None,
        typer.Option(help="the key by which checkpoints are compared", show_default=_EARLIER.format("metric")),
    ] = None,
    direction: Annotated[str | None, typer.Option(help="max or min", show_default=_EARLIER.format("max"))] = None,
    order: Annotated[
        str | None, typer.Option(help="oldest or newest first", show_default=_EARLIER.format("oldest"))
    ] = None,
    name: Annotated[str, typer.Option(help="of the evaluation, which has facts of its own")] = "eval",
    profile: Annotated[str | None, typer.Option(help="a file of conf/; $HOPSML_PROFILE, else local")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Judge the complete checkpoints of a run that nobody has judged yet, and show them all.

    RUN is its URL, its path or its id. The function is called with a local copy of a checkpoint's folder and returns a
    number, or a dict of numbers. A run that is under way is followed to its end.
    """
    from hopsml import experiment, settings
    from hopsml.errors import ArgumentError
    from hopsml.storage.run_dir import find
    from hopsml.training.evaluation import EvaluationStore

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # it may say where runs are kept
    directory = find(run, settings.project_url())
    if args and not function:
        raise ArgumentError(f"--args {args:.80}: they are those of --function FILE.py:NAME, which is missing")
    try:
        named = {"metric": metric, "direction": direction, "order": order}
        wishes: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        common: dict[str, Any] = {"name": name, "profile": profile, "progress": not as_json, **wishes}
        if function:
            found = experiment.evaluate(loaded(function), directory.url, args=arguments(args), **common)
        else:
            found = experiment.continue_evaluation(directory.url, **common)
    finally:
        experiment.shutdown()
    judged, outcome = EvaluationStore(directory, name).written(), found.metrics
    print(strict_json.dumps(as_dict(judged, outcome)) if as_json else text(judged, outcome))


def loaded(named: str) -> Callable[..., Any]:
    """The function of ``FILE.py:NAME``; modules beside the file can be imported from then on."""
    from hopsml.errors import ArgumentError
    from hopsml.submission import named_function

    file, colon, name = named.rpartition(":")
    path = Path(file).resolve()
    if not colon or path.suffix != ".py" or not path.is_file():
        raise ArgumentError(f"--function {named}: it must be FILE.py:NAME, with a file that is there")
    return named_function.load(path, name, MODULE)


def arguments(text_: str) -> dict[str, Any]:
    """The function's further arguments from the command line; "" for none."""
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
    """A line a checkpoint, for the terminal; ``*`` marks the best."""
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
    """The same for ``--json``."""
    from msgspec import to_builtins

    return {"best_step": outcome.get("best_step"), "checkpoints": to_builtins(list(judged))}
