"""Picture of a study by matplotlib, drawn in a separate environment: draw_study.py STUDY.json PICTURE.png."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

# Distinguishable without colour, too: each line has a different mark.
COLOURS, MARKS = ("#00796b", "#c2571a", "#3f51b5", "#8e24aa", "#616161"), "osD^v"
COLUMNS = 3


def draw(study: dict[str, Any], picture: str) -> None:
    """Draw the means over the seeds, with one standard deviation to each side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = ["epochs", "seconds"] if study["curves"] else list(study["panels"])
    rows, columns = -(-len(panels) // COLUMNS), min(COLUMNS, len(panels))
    size = (7.2, 4.2) if len(panels) == 1 else (4.2 * columns, 3.6 * rows)
    figure, all_axes = pyplot.subplots(rows, columns, figsize=size, dpi=150, layout="constrained", squeeze=False)
    for panel, axes in zip(panels, all_axes.flat, strict=False):
        if study["curves"]:
            draw_curves(axes, study, panel)
        else:
            draw_lines(axes, study, panel)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    for axes in list(all_axes.flat)[len(panels) :]:
        axes.remove()
    handles, labels = all_axes.flat[0].get_legend_handles_labels()
    if len(labels) > 1:
        all_axes.flat[0].legend(handles, labels, frameon=False, fontsize=8)
    figure.suptitle(study["title"], fontsize=10, x=0.02, ha="left")
    figure.savefig(picture)


def draw_curves(axes: Any, study: dict[str, Any], over: str) -> None:
    """Draw the progress of each method over the epochs, or over the seconds of training."""
    for number, curve in enumerate(study["curves"]):
        at = curve["epochs"] if over == "epochs" else [statistics.fmean(one) for one in curve["seconds"]]
        style = {"color": COLOURS[number % len(COLOURS)], "label": curve["label"]}
        mark = MARKS[number % len(MARKS)]
        axes.errorbar(at, *means_and_spreads(curve["values"]), marker=mark, markersize=4, capsize=2, **style)
    axes.set_xlabel("epochs" if over == "epochs" else "seconds of training")
    axes.set_ylabel(study["unit"])


def draw_lines(axes: Any, study: dict[str, Any], panel: str) -> None:
    """Draw the lines or bars of one panel."""
    lines = study["panels"][panel]
    places = list(dict.fromkeys(place for values in lines.values() for place in values))
    for number, (label, values) in enumerate(lines.items()):
        there = [place for place in places if values.get(place)]
        means, spreads = means_and_spreads([values[place] for place in there])
        aside = (number - (len(lines) - 1) / 2) * (0.8 / len(lines) if study["is_bar"] else 0.06)
        at = [places.index(place) + aside for place in there]
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": label}
        if study["is_bar"]:
            axes.bar(at, means, 0.7 / len(lines), yerr=spreads, capsize=3, **style)
        else:
            axes.errorbar(at, means, spreads, marker=MARKS[number % len(MARKS)], capsize=3, **style)
    if study["is_bar"]:
        values = [value for line in lines.values() for place in line.values() for value in place]
        above = 100.0 if "%" in study["unit"] else None
        axes.set_ylim(min(values) - 0.3 * (max(values) - min(values) or 1.0), above)
    if study["reference"] is not None:
        axes.axhline(study["reference"], color="#616161", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(places)), places, fontsize=8 if len(places) > 4 else None)
    axes.set_xlabel(study["axis"])
    axes.set_ylabel(panel or study["unit"])


def means_and_spreads(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean over the seeds at each place, and the standard deviation."""
    spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
    return [statistics.fmean(each) for each in values], spreads


if __name__ == "__main__":
    with open(sys.argv[1]) as content:
        draw(json.load(content), sys.argv[2])
