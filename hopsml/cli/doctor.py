"""``hopsml doctor``, ``hopsml profiles`` and ``hopsml class-data``: check and prepare this machine."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli.terminal import AsJson, ProfileOption
from hopsml.tracking import listing

if TYPE_CHECKING:
    from hopsml.doctor import Examination


def class_data(
    profile: Annotated[
        str, typer.Option(help="Profile with class_data: true, by the name of its file in conf/.")
    ] = "local-cluster",
) -> None:
    """Make archives of Spark's classes, with which later launches on this machine start faster.

    They are made for the JVM options of a profile, once for each version of Java and Spark. It takes about 15 seconds.
    """
    from hopsml import class_data as archives
    from hopsml.core import profiles
    from hopsml.errors import ArgumentError
    from hopsml.submission import spark_command

    known = profiles.load(profile)
    if not known.class_data:
        raise ArgumentError(
            f"profile '{profile}' does not use class-data archives. If driver and executors share the disk of one "
            "machine, set class_data: true in the profile"
        )
    for role, path in archives.make_archives(known.spark, spark_command.spark_submit_path()).items():
        print(f"{role:8} {path.stat().st_size / 1e6:5.0f} MB  {path}")


def profiles() -> None:
    """List the profiles of conf/ with their masters and descriptions."""
    from hopsml.core import profiles as known

    for name in known.names():
        profile = known.load(name)
        print(f"{name:16} {profile.master:28} {profile.description}")


def doctor(
    profile: ProfileOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers of the largest group, for the limit of open files. Default: 1920."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that this host can run a profile, and print a remedy for each problem.

    It starts nothing, leaves no files, and takes at most 30 seconds. The exit status is 1 if a check fails, else 0.
    """
    from hopsml.doctor import Status, examine
    from hopsml.doctor.checks import USUAL_WORKERS
    from hopsml.doctor.examination import as_dict
    from hopsml.storage import filesystem

    try:
        report = examine(profile, workers=workers or USUAL_WORKERS)
    finally:
        filesystem.close_all()
    print(listing.json_line(as_dict(report)) if as_json else report_text(report))
    if report.status is Status.FAIL:
        raise typer.Exit(1)


def report_text(report: Examination, width: int | None = None) -> str:
    """Return the report as text: a line for each finding, with the remedy below each finding that is not ok.

    Args:
        report: findings of all checks.
        width: characters of a line; the terminal's width by default.
    """
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
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines += ["", f"profile {report.profile}: {summary} ({report.seconds:.1f} s)"]
    return "\n".join(lines)


def _wrapped(head: str, text: str, margin: str, width: int) -> list[str]:
    room = max(width, len(margin) + 40)
    return textwrap.wrap(text, room, initial_indent=head, subsequent_indent=margin, break_long_words=False) or [head]
