"""Result of a study: lines over a common axis, each point with the values of all seeds; pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """One method of a study: for each place on the axis the values of all seeds, in their order.

    ``panel`` is the title of the part of the picture that it is in; "" if there is one part only.
    """

    label: str
    values: dict[str, list[float]]
    panel: str = ""


@dataclass(frozen=True)
class Curve:
    """Progress of one method's trainings: at each evaluation the values of all seeds, in their order."""

    label: str
    epochs: list[float]  # samples seen, in units of the training set
    seconds: list[list[float]]  # of training, without the evaluations
    values: list[list[float]]


@dataclass(frozen=True)
class Study:
    """Lines of a study, with the texts of its picture.

    ``name`` is that of its files, ``title`` is above the picture, ``axis`` and ``unit`` label its axes.
    """

    name: str
    title: str
    axis: str
    unit: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    is_bar: bool = False  # places have no order
    reference: float | None = None  # a line across, with which all are compared
    facts: dict[str, Any] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()  # if given, the picture shows them, by epochs and by seconds, instead of the lines

    def as_json(self) -> str:
        """Return everything as JSON, for programs and for the picture."""
        content = {
            "name": self.name,
            "title": self.title,
            "axis": self.axis,
            "unit": self.unit,
            "is_bar": self.is_bar,
            "reference": self.reference,
            "panels": {
                panel: {line.label: line.values for line in self.lines if line.panel == panel}
                for panel in dict.fromkeys(line.panel for line in self.lines)
            },
            "curves": [asdict(curve) for curve in self.curves],
            "notes": list(self.notes),
            "facts": self.facts,
        }
        return json.dumps(content, indent=1) + "\n"

    def table(self) -> str:
        """Return a Markdown table: a row for each line, with mean and standard deviation over the seeds."""
        places = list(dict.fromkeys(place for line in self.lines for place in line.values))
        rows = [["", *places], ["---"] * (len(places) + 1)]
        rows += [
            [f"{line.panel}, {line.label}".removeprefix(", "), *(_cell(line.values.get(place)) for place in places)]
            for line in self.lines
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {spread:.2f}"
