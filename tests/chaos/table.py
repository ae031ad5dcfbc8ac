"""Table of passed scenarios: for a terminal, for a page, and as totals for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.runner import Outcome

BACKENDS = {
    "local": "local",
    "spark": "Spark",
    "yarn": "YARN",
    "fit": "local, Keras `fit`",
    "torch": "local, PyTorch",
    "torch-spark": "Spark, PyTorch",
    "torch-yarn": "YARN, PyTorch",
}  # in this order
WAYS = {
    "hopsml": "Over hopsml's collective: the other workers continue in their processes, where possible",
    "tensorflow": "As over TensorFlow's collectives: all begin anew",
    "": "By what a run chooses",
}


def text(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each outcome, for a terminal."""
    width = max(len(outcome.scenario) for outcome in outcomes)
    head = f"{'scenario':{width}}  backend  over        state     recovered  lost  repeated  skipped  left over"
    rows = [
        f"{one.scenario:{width}}  {one.backend:7}  {one.over:10}  {one.state:8}  {_seconds(one.recovered_s):>9}  "
        f"{one.steps_lost:4}  {one.samples_repeated:8}  {one.samples_skipped:7}  {one.left_over:9}"
        f"{'' if one.passed else '  FAILED: ' + one.problem}{'  ' + one.detail if one.detail else ''}"
        for one in outcomes
    ]
    return [head, *rows]


def totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the totals, for scripts."""
    return {
        "scenarios": len(outcomes),
        "failed": [f"{one.scenario} ({_where(one)})" for one in outcomes if not one.passed],
        "left_over": sum(one.left_over for one in outcomes),
        "samples_repeated": sum(one.samples_repeated for one in outcomes),
        "samples_skipped": sum(one.samples_skipped for one in outcomes),
    }


def page(outcomes: Sequence[Outcome], about: str) -> str:
    """Return a Markdown page with a table of scenarios by backend for each collective; of several rounds the worst."""
    lines = [
        "# What a training survives",
        "",
        f"{about} Each cell: seconds from the harm to the next step that all members of the new group finished (a dash: no",
        "new group was needed), steps that had to be done again, samples repeated or skipped along the history that the",
        "weights come from, processes left behind after 10 s. Where the other workers continue in place, the lost members'",
        "shares of the batches under way may be given up: no other sample, and of two batches at most. The weights equal",
        "those of an undisturbed training that sees the same samples, except where a cell says FAILED. The loops of the",
        "columns local, Spark and YARN keep in step by hopsml's collective or, in place of TensorFlow's, by files; `fit`",
        "uses the collectives themselves; PyTorch has `hopsml.torch.prepare` in the first table,",
        "DDP over gloo in the second. Made by `make chaos`.",
    ]
    newest = max(one.on for one in outcomes)
    for over, title in WAYS.items():
        if rows := [one for one in outcomes if one.over == over]:
            lines += ["", f"## {title}", "", *_table(rows, newest)]
    details = list(dict.fromkeys(f"- {one.scenario} ({_where(one)}): {one.detail}" for one in outcomes if one.detail))
    return "\n".join([*lines, *(["", "## Measured besides", "", *details] if details else []), ""])


def _where(one: Outcome) -> str:
    return f"{one.backend}, over {one.over}" if one.over else one.backend


def _table(outcomes: Sequence[Outcome], newest: str) -> list[str]:
    played = [backend for backend in BACKENDS if any(one.backend == backend for one in outcomes)]
    lines = [f"| scenario | {' | '.join(BACKENDS[one] for one in played)} |", f"|---|{'---|' * len(played)}"]
    for name in dict.fromkeys(one.scenario for one in outcomes):
        of_name = [one for one in outcomes if one.scenario == name]
        cells = [_cell([one for one in of_name if one.backend == backend], newest) for backend in played]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(rounds: Sequence[Outcome], newest: str) -> str:
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
    if given_up := max(one.samples_given_up for one in rounds):
        parts.append(f"{given_up} given up")
    expected = "" if all(one.state == "FINISHED" for one in rounds) else f" ({rounds[-1].state}, as it must)"
    verdict = f"**FAILED {failed} of {len(rounds)}** " if failed else ""
    earlier = "" if rounds[-1].on == newest else f" (played on {rounds[-1].on})"
    return f"{verdict}{', '.join(parts)}{'' if failed else expected}{earlier}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
