"""Presentation of a search by commands, from its event log."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from hopsml.core.states import Lifecycle

if TYPE_CHECKING:
    from hopsml.experiment.searches.recorded import SearchReader
    from hopsml.storage.run_dir import RunDir

PLACES = 80  # characters of a line
RUNNING_SHOWN = 8  # maximum number of running trials that are printed


def seen(directory: RunDir, record: dict[str, Any]) -> SearchReader | None:
    """Return a reader of the search that ``record``, its ``run.json``, describes; None for any other run."""
    search = record.get("search")
    if not isinstance(search, dict):
        return None
    from hopsml.experiment.searches.recorded import SearchReader

    return SearchReader(directory, search)


def facts(search: SearchReader, state: str) -> dict[str, Any]:
    """Return counts, best trial and running trials of a search.

    If its driver has ended, unfinished trials count as waiting, since a resumed search runs them again.
    """
    search.more()
    counts = search.counts()
    running = search.running() if state == Lifecycle.RUNNING else []
    if state != Lifecycle.RUNNING:
        counts["waiting"] += counts.pop("running")
    return {
        "trials": {"planned": search.planned, "over": search.ended_count, **counts},
        "direction": search.direction,
        "metric": search.metric,
        "best": search.best(),
        "trials_running": running,
    }


def lines(found: dict[str, Any]) -> dict[str, str]:
    """Return the result of ``facts()`` for the terminal, name -> text; a text may have several lines."""
    metric, best, running = found["metric"], found["best"], found["trials_running"]
    texts = {"trials": trials(found["trials"])}
    if best is not None:
        texts[f"best {metric}"] = f"{best['value']:.6g} ({found['direction']}), trial {best['trial_id']}"
        texts["with"] = config(best["config"])
    for one in running[:RUNNING_SHOWN]:
        value = "" if one["value"] is None else f"  step {one['step']}  {metric}={one['value']:.6g}"
        texts[f"trial {one['number']}"] = f"{one['trial_id']}{value}"
    if len(running) > RUNNING_SHOWN:
        texts["..."] = f"{len(running) - RUNNING_SHOWN} more running"
    return texts


def trials(counts: dict[str, Any]) -> str:
    """Return counts of trials as text, such as ``3 of 5 over (1 stopped), 2 running``."""
    planned = "" if counts["planned"] is None else f" of {counts['planned']}"
    ends = ", ".join(f"{counts[name]} {name}" for name in ("stopped", "failed") if counts[name])
    others = [f"{counts[name]} {name}" for name in ("running", "paused", "waiting") if counts.get(name)]
    return ", ".join([f"{counts['over']}{planned} over" + (f" ({ends})" if ends else ""), *others])


def config(values: dict[str, Any]) -> str:
    """Return a configuration as text, such as ``lr=0.1  act=relu``."""
    from hopsml.tracking.listing import short

    return "  ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={short(value)}"
        for name, value in values.items()
    )


def progress(found: dict[str, Any]) -> str:
    """Return trials, best value and its configuration in a line of at most 80 characters including "hopsml: "."""
    from hopsml.tracking.listing import cut

    best = found["best"]
    text = f"trials {trials(found['trials'])}"
    if best is not None:
        text += f"; best {found['metric']} {best['value']:.6g}  {config(best['config'])}"
    return cut(text, PLACES - len("hopsml: "))


def wrapped(text: str, indent: int) -> str:
    """Wrap the text into lines of at most ``PLACES`` characters; further lines are indented by ``indent``."""
    broken = textwrap.wrap(text, max(20, PLACES - indent), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(broken)
