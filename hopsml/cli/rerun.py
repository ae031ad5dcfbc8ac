"""``hopsml runs rerun``: repeat a recorded run, and compare the results."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.options import AsJson, ProfileOption, RunArgument
from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.experiment.repeat import Rerun

DIFFERS = 3  # exit status if the rerun finishes with another result


def rerun(
    run: RunArgument,
    profile: ProfileOption = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Output that may differ, such as a time; may be given more than once.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a recorded run, and compare the results.

    Function and arguments (the same bytes as before), number of workers, merge settings, seed and variables are those
    of the record; profile, packages and cluster are the present ones. The exit status is 0 if the results are equal to
    the bit, 3 if they differ (the differences of the two runs are printed), and 1 if the run could not start or failed.
    """
    from hopsml import experiment
    from hopsml.core import settings
    from hopsml.storage.run_dir import find

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # a profile may set the project, in which runs are searched
    directory = find(run, settings.project_url())
    recorded = directory.read_run()
    _like_the_original(recorded, directory)
    try:
        outcome = experiment.rerun(directory.url, profile=profile, progress=not as_json, ignore=ignore or ())
    finally:
        experiment.shutdown()
    print(strict_json.dumps(as_dict(outcome)) if as_json else text(outcome))
    if not outcome.verdict.same:
        raise typer.Exit(DIFFERS)


def text(outcome: Rerun) -> str:
    """Return the comparison of rerun and original, for the terminal."""
    from hopsml.cli.rows import difference_row
    from hopsml.tracking.listing import table

    verdict = outcome.verdict
    names = (outcome.original.run_id, outcome.result.run_id)
    if verdict.same:
        return (
            f"the same result to the bit: {', '.join(verdict.compared) or 'neither run returned anything'}\n"
            f"{names[0]}  {outcome.original.url}\n{names[1]}  {outcome.result.run_dir}"
        )
    lines = ["the result differs:", *table([("", *names), *map(difference_row, verdict.differing)])]
    if verdict.causes:
        lines += [
            "",
            "recorded differences between the runs:",
            *table([("", *names), *map(difference_row, verdict.causes)]),
        ]
    else:
        lines += [
            "",
            "no recorded difference explains it: check for random numbers without a seed, and values that depend on time",
        ]
    return "\n".join(lines)


def as_dict(outcome: Rerun) -> dict[str, Any]:
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
