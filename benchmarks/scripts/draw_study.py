"""Picture of a study by matplotlib, drawn in a separate environment: draw_study.py STUDY.json PICTURE.png."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

# Distinguishable without colour, too: each line has a different mark.
COLOURS, MARKS = ("#00796b", "#c2571a", "#3f51b5", "#8e24aa", "#616161"), "osD^v"


def draw(study: dict[str, Any], picture: str) -> None:
    """Draw the means over the seeds, with one standard deviation to each side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    places = list(dict.fromkeys(place for values in study["lines"].values() for place in values))
    for number, (label, values) in enumerate(study["lines"].items()):
        there = [place for place in places if values.get(place)]
        means = [statistics.fmean(values[place]) for place in there]
        spreads = [statistics.stdev(values[place]) if len(values[place]) > 1 else 0.0 for place in there]
        aside = (number - (len(study["lines"]) - 1) / 2) * (0.8 / len(study["lines"]) if study["is_bar"] else 0.06)
        at = [places.index(place) + aside for place in there]
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": label}
        if study["is_bar"]:
            axes.bar(at, means, 0.7 / len(study["lines"]), yerr=spreads, capsize=3, **style)
        else:
            axes.errorbar(at, means, spreads, marker=MARKS[number % len(MARKS)], capsize=3, **style)
    if study["is_bar"]:
        values = [value for line in study["lines"].values() for place in line.values() for value in place]
        above = 100.0 if "%" in study["unit"] else None
        axes.set_ylim(min(values) - 0.3 * (max(values) - min(values) or 1.0), above)
    if study["reference"] is not None:
        axes.axhline(study["reference"], color="#616161", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(places)), places, fontsize=8 if len(places) > 4 else None)
    axes.set_xlabel(study["axis"])
    axes.set_ylabel(study["unit"])
    axes.set_title(study["title"], fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    if len(study["lines"]) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(picture)


if __name__ == "__main__":
    with open(sys.argv[1]) as content:
        draw(json.load(content), sys.argv[2])
