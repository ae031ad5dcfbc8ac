"""Cases that are run by one process and by several workers, and the comparison of their results. Pure.

A framework's module (``tools.features.keras_features``, ``tools.features.torch_features``) has

* ``FEATURES``: the cases, a list of ``Feature``;
* ``IMPLEMENTATIONS``: names of the workers' collectives, each of which runs all cases that do not limit theirs;
* ``begin()``: called once in each process before its first case;
* ``launch(play, args, workers, implementation)``: runs ``play(**args)`` on ``workers`` workers and returns the value of the
  chief's call. ``workers=1`` is the reference process of the comparison, and has ``implementation=""``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Values = Mapping[str, Any]  # numbers, text, None, and (nested) lists, tuples and mappings of them
_ESCAPES = re.compile("\\x1b\\[[0-9;]*m")  # of terminals
State = Literal["equal", "refused", "differs", "by design"]


@dataclass(frozen=True)
class Feature:
    """Case of the comparison: a small training that runs in one process and in each worker of a group.

    Attributes:
        name: the user's action, in a few words; unique within the framework.
        group: the heading below which the page lists it.
        run: trains and returns the values to compare: weights, losses, counts. It is called in one process, and in every
            worker of a group; ``hopsml.distributed.rank()`` and ``world_size()`` identify the worker, for frameworks in
            which the user selects the worker's share of a global batch. It returns the same value on all ranks.
        expected: "equal": every worker's values equal those of the one process. "refused": every worker raises, and the
            message matches ``reason``. "by design": not compared, as one process and several differ by the framework's
            design; ``reason`` describes the difference.
        reason: for "refused" a regular expression for the error, with its remedy; for "by design" a sentence.
        workers: number of workers of the group.
        relative, absolute: tolerances of numbers, as in ``math.isclose``.
        apart: True for a separate launch, as the case may leave the group in a state in which no further case can run.
        implementations: the implementations that run it; empty: all of the framework's.
    """

    name: str
    group: str
    run: Callable[[], Values]
    expected: Literal["equal", "refused", "by design"] = "equal"
    reason: str = ""
    workers: int = 2
    relative: float = 1e-4
    absolute: float = 1e-5
    apart: bool = False
    implementations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case in one process: its values, or the text of the error that it raised."""

    values: Values | None = None
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    """Result of a case under one implementation; ``note``: the refusal, or the difference of the values."""

    state: State
    note: str = ""


@dataclass(frozen=True)
class Row:
    """Case of a framework with its verdict under each implementation that has run it."""

    framework: str
    feature: Feature
    verdicts: Mapping[str, Verdict]


def judge(feature: Feature, single: Outcome, workers: Sequence[Outcome]) -> Verdict:
    """Return the verdict on a case from the outcome of the one process and those of the workers, in rank order."""
    if feature.expected == "by design":
        return Verdict("by design", feature.reason)
    if single.values is None:
        return Verdict("differs", f"one process fails: {_first_line(single.error)}")
    if feature.expected == "refused":
        return _judge_refusal(feature, workers)
    for rank, outcome in enumerate(workers):
        if outcome.values is None:
            return Verdict("differs", f"rank {rank} fails: {_first_line(outcome.error)}")
        apart = difference(single.values, outcome.values, feature.relative, feature.absolute)
        if apart:
            return Verdict("differs", f"rank {rank}, {apart}")
    return Verdict("equal")


def _judge_refusal(feature: Feature, workers: Sequence[Outcome]) -> Verdict:
    for rank, outcome in enumerate(workers):
        if outcome.values is not None:
            return Verdict("differs", f"rank {rank} trains, where a refusal is expected")
        if not re.search(feature.reason, outcome.error):
            return Verdict(
                "differs", f"rank {rank} fails without {feature.reason!r} in its message: {_first_line(outcome.error)}"
            )
    # The framework may wrap the message of the refusal, and colour it.
    lines = [_ESCAPES.sub("", line).strip() for line in workers[0].error.splitlines()]
    return Verdict("refused", next((line for line in lines if re.search(feature.reason, line)), ""))


def difference(expected: Any, found: Any, relative: float, absolute: float, path: str = "") -> str:
    """Return the first difference of two values, with its path; "" if they are equal within the tolerances."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if expected.keys() != found.keys():
            return f"{path or 'values'}: {sorted(found)} instead of {sorted(expected)}"
        return _first(difference(expected[key], found[key], relative, absolute, f"{path}{key} ") for key in expected)
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        if len(expected) != len(found):
            return f"{path.strip()}: {len(found)} values instead of {len(expected)}"
        pairs = enumerate(zip(expected, found, strict=True))
        return _first(difference(one, other, relative, absolute, f"{path}[{at}] ") for at, (one, other) in pairs)
    if _is_number(expected) and _is_number(found):
        equal = math.isclose(expected, found, rel_tol=relative, abs_tol=absolute)
        same = equal or (math.isnan(expected) and math.isnan(found))
        return "" if same else f"{path.strip()}: {found:.6g} instead of {expected:.6g}"
    return "" if expected == found else f"{path.strip()}: {found!r} instead of {expected!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first(differences: Iterable[str]) -> str:
    return next((one for one in differences if one), "")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def summary(rows: Sequence[Row]) -> dict[str, int]:
    """Return the counts for the closing line: features of each framework, and of all by verdict; not those "by design"."""
    compared = [row for row in rows if row.feature.expected != "by design"]
    states = [_state(row) for row in compared]
    return {
        "keras": sum(row.framework == "Keras" for row in compared),
        "torch": sum(row.framework == "PyTorch" for row in compared),
        **{state: states.count(state) for state in ("equal", "refused", "differs")},
    }


def _state(row: Row) -> State:
    """Return the worst state among a row's verdicts."""
    states = {verdict.state for verdict in row.verdicts.values()}
    order: tuple[State, ...] = ("differs", "refused", "equal", "by design")
    return next(state for state in order if state in states)


_SHOWN = {"equal": "supported", "refused": "refused", "differs": "differs", "by design": "differs by design"}


def page(rows: Sequence[Row]) -> str:
    """Return the page of the documentation, in Markdown: a table for each framework and group of its features."""
    lines = [_HEAD]
    for framework in dict.fromkeys(row.framework for row in rows):
        lines.append(f"## {framework}\n")
        of_framework = [row for row in rows if row.framework == framework]
        names = list(dict.fromkeys(name for row in of_framework for name in row.verdicts))
        for group in dict.fromkeys(row.feature.group for row in of_framework):
            lines += [f"### {framework}: {group}\n", f"| feature | {' | '.join(names)} | |"]
            lines.append("|---|" + "---|" * (len(names) + 1))
            lines += [_line(row, names) for row in of_framework if row.feature.group == group]
            lines.append("")
    return "\n".join(lines)


_HEAD = """# Supported features of Keras and PyTorch

`make features` runs each of these small trainings in one process and in a group of two or three workers with the same
global batch, and compares weights, losses and counts. *Supported*: they are equal within the rounding of sums in another
order. *Refused*: every worker raises the error in the last column. *Differs by design*: one process and several differ
by the framework's design, described in the last column. The columns are the collectives with which the workers reduce.
`make features` writes this page.
"""


def _line(row: Row, names: Sequence[str]) -> str:
    shown = [_SHOWN[row.verdicts[name].state] if name in row.verdicts else "" for name in names]
    notes = list(dict.fromkeys(verdict.note for verdict in row.verdicts.values() if verdict.note))
    return f"| {_cell(row.feature.name)} | {' | '.join(shown)} | {_cell('; '.join(notes))} |"


def _cell(text: str) -> str:
    for special in "\\|<>*_`":
        text = text.replace(special, "\\" + special)
    return text
