"""``hopsml tune-communication SCRIPT``: the fastest way to reduce the gradients of what a script trains."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.experiment.options import RunOptions
    from hopsml.experiment.tuning import Tuning


def tune_communication(
    script: str,
    arguments: Annotated[list[str] | None, typer.Argument(help="what the script gets, behind --")] = None,
    profile: Annotated[str | None, typer.Option(help="a file of conf/; $HOPSML_PROFILE, else local")] = None,
    lossy: Annotated[list[str] | None, typer.Option(help="a compression that may be chosen: fp16, bf16")] = None,
    file: Annotated[str | None, typer.Option(help="where the choice is recorded; in the project by default")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Measure how the gradients of a script's training are reduced the fastest, where it trains, and record it.

    The script runs up to its first collective_all_reduce() or submit(), which then trains nothing: it tries the ways to
    reduce gradients of that function's sizes, by turns, on the same workers. A run of the same function with tuned=True
    uses what was the fastest. Sums that lose by it are tried only where --lossy allows them.
    """
    from hopsml import experiment
    from hopsml.errors import ArgumentError
    from hopsml.experiment import collective, tuning

    if not Path(script).is_file():
        raise ArgumentError(f"{script}: there is no such script")
    if profile:
        os.environ["HOPSML_PROFILE"] = profile

    def tune(options: RunOptions) -> NoReturn:
        raise _Tuned(tuning.of_call(options, lossy=lossy or (), file=file))

    sys.argv[:] = [script, *(arguments or [])]
    sys.path.insert(0, str(Path(script).resolve().parent))
    collective.instead = tune
    try:
        runpy.run_path(script, run_name="__main__")
    except _Tuned as done:
        found = done.found
    else:
        raise ArgumentError(f"{script} called neither collective_all_reduce() nor submit(): there is nothing to tune")
    finally:
        collective.instead = None
        experiment.shutdown()
    print(strict_json.dumps(as_dict(found)) if as_json else text(found))


class _Tuned(BaseException):
    """Ends a script at its first training; no handler of the script's takes it for an error."""

    def __init__(self, found: Tuning) -> None:
        super().__init__()
        self.found = found


def text(found: Tuning) -> str:
    """What each way took, the fastest first, and what was chosen."""
    choice = found.choice
    megabytes = found.gradient_bytes / 1e6
    width = max(map(len, choice.medians_ms))
    lines = [
        f"{found.function}(), {found.workers} workers, {found.gradients} gradients of {megabytes:.1f} MB, ms a step:"
    ]
    for name, value in sorted(choice.medians_ms.items(), key=lambda item: item[1]):
        marks = [mark for mark, of in (("chosen", choice.chosen), ("default", choice.default)) if of == name]
        lines.append(f"  {name:{width}}  {value:9.2f}  {', '.join(marks)}".rstrip())
    given = ", ".join(f"{name}={value!r}" for name, value in found.settings.items())
    kept = "the default stays" if choice.chosen == choice.default else f"{choice.ratio:.2f} of the default's time"
    return "\n".join([*lines, f"{kept}: {given}", f"recorded in {found.url}; a run uses it with tuned=True"])


def as_dict(found: Tuning) -> dict[str, object]:
    """The same for ``--json``."""
    from dataclasses import asdict

    return asdict(found)
