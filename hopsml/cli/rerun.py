"""``hopsml rerun RUN``: a recorded run once more, and whether the same came of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.experiment.repeat import Rerun

DIFFERS = 3  # exit status where the rerun finished with another result


def rerun(
    run: str,
    profile: Annotated[str | None, typer.Option(help="a file of conf/; $HOPSML_PROFILE, else local")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="an output that may differ, such as a time")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Run a recorded run again and compare; RUN is its URL, its path or its id.

    The same function and arguments (byte for byte what was shipped then), number of workers, merge settings, seed and
    variables; the profile, the packages and the cluster are those of now. Exit status 0: the same result to the bit;
    3: another result, with what differs in how the two were made; 1: it could not be started, or failed.
    """
    from hopsml import experiment, settings
    from hopsml.storage.run_dir import find

    if profile:
        os.environ["HOPSML_PROFILE"] = profile  # it may say where runs are kept
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
    """Whether the rerun gave the same as the original, for the terminal."""
    from hopsml.cli.runs import difference_row
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
        lines += ["", "so does how they were made:", *table([("", *names), *map(difference_row, verdict.causes)])]
    else:
        lines += [
            "",
            "nothing recorded differs in how they were made: unseeded random numbers, or something that depends on time",
        ]
    return "\n".join(lines)


def as_dict(outcome: Rerun) -> dict[str, Any]:
    """Whether the rerun gave the same as the original, for ``--json``."""
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
    """Set in this process, which is the driver alone, what child interpreters of the original read at their start."""
    from hopsml.errors import PathNotFound

    try:
        hash_seed = directory.read_json(directory.worker_json).get("python", {}).get("hash_seed", "random")
    except PathNotFound:
        hash_seed = "random"
    if hash_seed != "random":
        os.environ.setdefault("PYTHONHASHSEED", hash_seed)
    # Modules beside the script that the function imports when it runs: local workers take the driver's import path.
    if recorded.get("own_imports"):
        for folder in (str(Path(recorded.get("script") or ".").parent), recorded.get("working_directory", "")):
            if folder and Path(folder).is_dir() and folder not in sys.path:
                sys.path.append(folder)
