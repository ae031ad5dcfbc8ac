"""``hopsml runs tune-communication``: measure the fastest settings for reducing a script's gradients."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hopsml.cli.options import AsJson, ProfileOption
from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.experiment.options import RunOptions
    from hopsml.experiment.tuning import Tuning


def tune_communication(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="Arguments of the script, behind --.")
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
        raise _Tuned(tuning.of_call(options, lossy=lossy or (), file=file))

    sys.argv[:] = [script, *(arguments or [])]
    sys.path.insert(0, str(Path(script).resolve().parent))
    collective.instead = tune
    try:
        runpy.run_path(script, run_name="__main__")
    except _Tuned as done:
        found = done.found
    else:
        raise ArgumentError(
            f"{script} called neither collective_all_reduce() nor submit(), so that there is nothing to measure"
        )
    finally:
        collective.instead = None
        experiment.shutdown()
    print(strict_json.dumps(as_dict(found)) if as_json else text(found))


class _Tuned(BaseException):
    """Exception that ends a script at its first training; ``except Exception`` does not catch it."""

    def __init__(self, found: Tuning) -> None:
        super().__init__()
        self.found = found


def text(found: Tuning) -> str:
    """Return the times of all settings, fastest first, and the choice."""
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
    result = "the default is used" if choice.chosen == choice.default else f"{choice.ratio:.2f} of the default's time"
    return "\n".join([*lines, f"{result}: {given}", f"recorded in {found.url}; runs with tuned=True use it"])


def as_dict(found: Tuning) -> dict[str, object]:
    """Return the result as ``--json`` prints it."""
    from dataclasses import asdict

    return asdict(found)
