"""``hopsml doctor``: checks whether runs can work on this machine or cluster, on one screen."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.tracking import strict_json

if TYPE_CHECKING:
    from hopsml.doctor import Examination


def doctor(
    profile: Annotated[str | None, typer.Option(help="a file of conf/; $HOPSML_PROFILE, else local")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Look whether runs can work here under a profile, and say what to do where they cannot.

    Nothing is started and nothing is left behind. Exit status 1 if something fails, 0 otherwise; never takes longer than
    half a minute.
    """
    from hopsml.doctor import Status, examine
    from hopsml.doctor.examination import as_dict
    from hopsml.storage import filesystem

    try:
        report = examine(profile)
    finally:
        filesystem.close_all()
    print(strict_json.dumps(as_dict(report)) if as_json else screen(report))
    if report.status is Status.FAIL:
        raise typer.Exit(1)


def screen(report: Examination, width: int | None = None) -> str:
    """The report as text: a line for each finding, and the remedy below each that is not ok. ``width`` in characters."""
    width = width or shutil.get_terminal_size((120, 24)).columns
    column = max(len(finding.name) for finding in report.findings)
    margin = " " * (6 + column + 2)
    lines: list[str] = []
    for finding in report.findings:
        head = f"{finding.status.value:4}  {finding.name:{column}}  "
        lines += _wrapped(head, finding.summary, margin, width)
        if finding.remedy:
            lines += _wrapped(f"{margin}-> ", finding.remedy, margin + "   ", width)
    counts = {name: sum(finding.status.value == name for finding in report.findings) for name in ("ok", "warn", "fail")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines += ["", f"profile {report.profile}: {told} ({report.seconds:.1f} s)"]
    return "\n".join(lines)


def _wrapped(head: str, text: str, margin: str, width: int) -> list[str]:
    room = max(width, len(margin) + 40)
    return textwrap.wrap(text, room, initial_indent=head, subsequent_indent=margin, break_long_words=False) or [head]
