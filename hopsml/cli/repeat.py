"""Commands of ``hopsml runs`` that compute: ``rerun``, ``resume``, ``evaluate``, ``tensorboard``, ``tune-communication``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hopsml.cli.terminal import AsJson, ProfileOption, RunArgument, found_run
from hopsml.tracking import listing

if TYPE_CHECKING:
    from hopsml.experiment.options import RunOptions
    from hopsml.experiment.repeat import Rerun
    from hopsml.experiment.tuning import Tuning
    from hopsml.training.evaluation import CheckpointEvaluation


def tensorboard(
    run: RunArgument,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 6006,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve TensorBoard for a run until Ctrl-C.

    Events on remote storage are copied to a temporary folder, and updated every few seconds.
    """
    from hopsml.notebook import tensorboard_server

    events = tensorboard_server.events_url(found_run(run))
    with tensorboard_server.run_tensorboard(events, host=host, port=port) as server:
        tensorboard_server.serve_until_interrupt(
            server, f"TensorBoard: http://{host}:{server.port()}/ (Ctrl-C stops it)"
        )


def tune_communication(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the script, after --.")
    ] = None,
    profile: ProfileOption = None,
    lossy: Annotated[
        list[str] | None,
        typer.Option(help="Lossy compression that may be chosen, fp16 or bf16; may be given twice. Default: none."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Path or URL of the record. Default: a file in Communication/ of the project.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the fastest settings for reducing a script's gradients, and record them.

    The script runs up to its first collective_all_reduce() or submit(). Instead of training, it measures all settings
    on gradients of that function's sizes, in alternation on the same workers. Later runs of the function with
    tuned=True use the fastest settings. Lossy compressions are measured only if --lossy names them.
    """
    from hopsml import experiment
    from hopsml.errors import ArgumentError
    from hopsml.experiment import collective, tuning

    if not Path(script).is_file():
        raise ArgumentError(f"there is no script {script}")
    if profile:
        os.environ["HOPSML_PROFILE"] = profile

    def tune(options: RunOptions) -> NoReturn:
        raise _Tuned(tuning.tune_for_options(options, lossy=lossy or (), file=file))

    sys.argv[:] = [script, *(arguments or [])]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        collective.run_script(script, submit_hook=tune)
    except _Tuned as done:
        found = done.found
    else:
        raise ArgumentError(
            f"{script} called neither collective_all_reduce() nor submit(), so there is nothing to measure; call one "
            "of them in the script"
        )
    finally:
        experiment.shutdown()
    print(listing.json_line(tuning_as_dict(found)) if as_json else tuning_text(found))


class _Tuned(BaseException):
    """Exception that ends a script at its first training; ``except Exception`` does not catch it."""

    def __init__(self, found: Tuning) -> None:
        super().__init__()
        self.found = found


def tuning_text(found: Tuning) -> str:
    """Return the times of all settings, fastest first, and the choice."""
    choice = found.choice
    megabytes = found.gradient_bytes / 1e6
    width = max(map(len, choice.medians_ms))
    lines = [
        f"{found.function}(), {found.workers} workers, {found.gradients} gradients of {megabytes:.1f} MB, in ms per "
        "step:"
    ]
    for name, value in sorted(choice.medians_ms.items(), key=lambda item: item[1]):
        marks = [mark for mark, of in (("chosen", choice.chosen), ("default", choice.default)) if of == name]
        lines.append(f"  {name:{width}}  {value:9.2f}  {', '.join(marks)}".rstrip())
    given = ", ".join(f"{name}={value!r}" for name, value in found.settings.items())
    result = (
        "the default settings are used"
        if choice.chosen == choice.default
        else f"{choice.ratio:.2f} of the time with the default settings"
    )
    return "\n".join([*lines, f"{result}: {given}", f"recorded in {found.url}; runs with tuned=True use it"])


def tuning_as_dict(found: Tuning) -> dict[str, object]:
    """Return the result as ``--json`` prints it."""
    from dataclasses import asdict

    return asdict(found)


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
    from hopsml.errors import ArgumentError
    from hopsml.training.evaluation import EvaluationStore

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # a profile may set the project, in which runs are searched
    directory = found_run(run)
    if args and not function:
        raise ArgumentError(
            f"--args {args:.80} needs --function FILE.py:NAME, the function that receives the arguments"
        )
    try:
        named = {"metric": metric, "direction": direction, "order": order}
        given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        common: dict[str, Any] = {"name": name, "profile": profile, "progress": not as_json, **given}
        if function:
            found = experiment.evaluate(load_function(function), directory.url, args=parse_arguments(args), **common)
        else:
            found = experiment.continue_evaluation(directory.url, **common)
    finally:
        experiment.shutdown()
    judged, outcome = EvaluationStore(directory, name).read_results(), found.metrics
    print(listing.json_line(evaluation_as_dict(judged, outcome)) if as_json else evaluation_text(judged, outcome))


def load_function(named: str) -> Callable[..., Any]:
    """Return the function of ``FILE.py:NAME``, and make modules of the file's folder importable."""
    from hopsml.errors import ArgumentError
    from hopsml.submission import script

    file, colon, name = named.rpartition(":")
    path = Path(file).resolve()
    if not colon or path.suffix != ".py" or not path.is_file():
        raise ArgumentError(f"--function {named}: the function must be given as FILE.py:NAME, and the file must exist")
    return script.load_function(path, name, MODULE)


def parse_arguments(text_: str) -> dict[str, Any]:
    """Parse the function's further arguments from JSON; "" is no arguments."""
    from hopsml.errors import ArgumentError

    try:
        found = json.loads(text_ or "{}")
    except ValueError as error:
        raise ArgumentError(
            f"--args {text_:.80}: the arguments must be a JSON object, as in '{{\"rows\": 100}}' ({error})"
        ) from None
    if not isinstance(found, dict):
        raise ArgumentError(f"--args {text_:.80}: the arguments must be a JSON object, as in '{{\"rows\": 100}}'")
    return found


def evaluation_text(judged: Sequence[CheckpointEvaluation], outcome: dict[str, Any]) -> str:
    """Return one line per checkpoint for the terminal; ``*`` marks the best one."""
    from hopsml.tracking.listing import format_table, number_text

    if not judged:
        return "the run has no complete checkpoint"
    best = outcome.get("best_step")
    rows = [
        (
            f"{'* ' if one.step == best else '  '}step {one.step}",
            one.problem or "  ".join(f"{key}={number_text(value)}" for key, value in one.metrics.items()),
        )
        for one in judged
    ]
    return "\n".join(format_table(rows))


def evaluation_as_dict(judged: Sequence[CheckpointEvaluation], outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the results of all checkpoints, as ``--json`` prints them."""
    from msgspec import to_builtins

    return {"best_step": outcome.get("best_step"), "checkpoints": to_builtins(list(judged))}


DIFFERS = 3  # exit status if the rerun finishes with another result


def rerun(
    run: RunArgument,
    profile: ProfileOption = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of an output that may differ between the runs, such as a time; may be given more than once."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a recorded run, and compare the results.

    Function and arguments (the same bytes as before), number of workers, merge settings, seed and variables are those
    of the record; profile, packages and cluster are the present ones. The exit status is 0 if the results are equal to
    the bit, 3 if they differ (the differences of the two runs are printed), and 1 if the run could not start or failed.
    """
    from hopsml import experiment

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # a profile may set the project, in which runs are searched
    directory = found_run(run)
    recorded = directory.read_run()
    _like_the_original(recorded, directory)
    try:
        outcome = experiment.rerun(directory.url, profile=profile, progress=not as_json, ignore=ignore or ())
    finally:
        experiment.shutdown()
    print(listing.json_line(comparison_as_dict(outcome)) if as_json else comparison_text(outcome))
    if not outcome.verdict.same:
        raise typer.Exit(DIFFERS)


def resume(
    run: RunArgument,
    num_trials: Annotated[
        int, typer.Option(min=0, help="Of a search: number of trials in addition to those planned.")
    ] = 0,
    profile: ProfileOption = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run that has not finished from its newest checkpoint, as a new run; or a search in its directory.

    Function, arguments, number of workers and variables are those of the record. A run whose function was given
    DataFrames, and several combinations of one launch, are continued by their script.
    """
    from hopsml import experiment
    from hopsml.errors import ArgumentError

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # a profile may set the project, in which runs are searched
    directory = found_run(run)
    recorded = directory.read_run()
    if num_trials and "search" not in recorded:
        raise ArgumentError(f"--num-trials {num_trials}: run {directory.run_id} is no search; omit it")
    _like_the_original(recorded, directory)
    common: dict[str, Any] = {"profile": profile, "progress": not as_json}
    try:
        if "search" in recorded:
            found: Any = experiment.continue_search(directory.url, num_trials, **common)
        else:
            found = experiment.resume(directory.url, **common)
    finally:
        experiment.shutdown()
    print(found.json() if as_json else found.summary())


def comparison_text(outcome: Rerun) -> str:
    """Return the comparison of rerun and original, for the terminal."""
    from hopsml.cli.terminal import difference_row
    from hopsml.tracking.listing import format_table

    verdict = outcome.verdict
    names = (outcome.original.run_id, outcome.result.run_id)
    if verdict.same:
        return (
            "the results are identical to the last bit: "
            f"{', '.join(verdict.compared) or 'neither run returned a value'}\n{names[0]}  "
            f"{outcome.original.url}\n{names[1]}  {outcome.result.run_dir}"
        )
    lines = ["the results differ:", *format_table([("", *names), *map(difference_row, verdict.differing)])]
    if verdict.causes:
        lines += [
            "",
            "recorded differences between the runs:",
            *format_table([("", *names), *map(difference_row, verdict.causes)]),
        ]
    else:
        lines += [
            "",
            "no recorded difference explains this: check for random numbers without a seed, and for values that "
            "depend on time",
        ]
    return "\n".join(lines)


def comparison_as_dict(outcome: Rerun) -> dict[str, Any]:
    """Return the comparison of rerun and original, as ``--json`` prints it."""
    from dataclasses import asdict

    return {
        "same": outcome.verdict.same,
        "original": outcome.original.url,
        "rerun": outcome.result.run_dir,
        "compared": list(outcome.verdict.compared),
        "differing": [asdict(found) for found in outcome.verdict.differing],
        "causes": [asdict(found) for found in outcome.verdict.causes],
    }


def _like_the_original(recorded: dict[str, Any], directory: Any) -> None:
    """Set the original's hash seed and import path in this process, for the interpreters that it starts."""
    from hopsml.errors import PathNotFound

    try:
        hash_seed = directory.read_json(directory.worker_json).get("python", {}).get("hash_seed", "random")
    except PathNotFound:
        hash_seed = "random"
    if hash_seed != "random":
        os.environ.setdefault("PYTHONHASHSEED", hash_seed)
    # The function may import modules of the script's folder when it runs; local workers use the driver's import path.
    if recorded.get("own_imports"):
        for folder in (str(Path(recorded.get("script") or ".").parent), recorded.get("working_directory", "")):
            if folder and Path(folder).is_dir() and folder not in sys.path:
                sys.path.append(folder)
