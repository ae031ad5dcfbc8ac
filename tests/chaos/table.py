"""The table of what was survived: for a terminal, for a page, and in total for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.runner import Outcome

BACKENDS = ("local", "spark", "yarn")


def text(outcomes: Sequence[Outcome]) -> list[str]:
    """For people at a terminal: a line for each time that a scenario was played."""
    width = max(len(outcome.scenario) for outcome in outcomes)
    head = f"{'scenario':{width}}  backend  state     recovered  lost  repeated  skipped  left over"
    rows = [
        f"{one.scenario:{width}}  {one.backend:7}  {one.state:8}  {_seconds(one.recovered_s):>9}  {one.steps_lost:4}  "
        f"{one.samples_repeated:8}  {one.samples_skipped:7}  {one.left_over:9}"
        f"{'' if one.passed else '  FAILED: ' + one.problem}{'  ' + one.detail if one.detail else ''}"
        for one in outcomes
    ]
    return [head, *rows]


def totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """For scripts."""
    return {
        "scenarios": len(outcomes),
        "failed": [f"{one.scenario} ({one.backend})" for one in outcomes if not one.passed],
        "left_over": sum(one.left_over for one in outcomes),
        "samples_repeated": sum(one.samples_repeated for one in outcomes),
        "samples_skipped": sum(one.samples_skipped for one in outcomes),
    }


def page(outcomes: Sequence[Outcome], about: str) -> str:
    """Markdown: a row for each scenario, a column for each backend; of several rounds the worst."""
    played = [backend for backend in BACKENDS if any(one.backend == backend for one in outcomes)]
    names = list(dict.fromkeys(one.scenario for one in outcomes))
    lines = [
        "# What a training survives",
        "",
        f"{about} Each cell: seconds from the harm to the next step that all members of the new group finished (a dash: no",
        "new group was needed), steps that had to be done again, samples repeated or skipped along the history that the",
        "weights come from, processes left behind after 10 s. The weights equal those of an undisturbed training, except",
        "where a cell says FAILED. Made by `make chaos`.",
        "",
        f"| scenario | {' | '.join(played)} |",
        f"|---|{'---|' * len(played)}",
    ]
    for name in names:
        of_name = [one for one in outcomes if one.scenario == name]
        cells = [_cell([one for one in of_name if one.backend == backend]) for backend in played]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    details = list(dict.fromkeys(f"- {one.scenario} ({one.backend}): {one.detail}" for one in outcomes if one.detail))
    return "\n".join([*lines, *(["", *details] if details else []), ""])


def _cell(rounds: Sequence[Outcome]) -> str:
    if not rounds:
        return ""
    failed = sum(not one.passed for one in rounds)
    times = [one.recovered_s for one in rounds if one.recovered_s is not None]
    parts = [
        _seconds(max(times) if times else None),
        f"{max(one.steps_lost for one in rounds)} steps",
        f"{max(one.samples_repeated + one.samples_skipped for one in rounds)} samples",
        f"{max(one.left_over for one in rounds)} processes",
    ]
    expected = "" if all(one.state == "FINISHED" for one in rounds) else f" ({rounds[-1].state}, as it must)"
    verdict = f"**FAILED {failed} of {len(rounds)}** " if failed else ""
    return f"{verdict}{', '.join(parts)}{'' if failed else expected}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
