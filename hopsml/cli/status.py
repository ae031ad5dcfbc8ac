"""``hopsml runs status``: state of a run, from any machine that can read its directory."""

from __future__ import annotations

from typing import Any

from hopsml.cli.options import AsJson, RunArgument
from hopsml.cli.terminal_text import print_plain
from hopsml.tracking import strict_json


def status(run: RunArgument, as_json: AsJson = False) -> None:
    """Print the state of a run or a search: duration, workers, last metrics, driver, error."""
    from hopsml.cli import searches
    from hopsml.core import settings
    from hopsml.storage.run_dir import find
    from hopsml.tracking import catalog, live

    stored = catalog.read(find(run, settings.project_url()), brief=True)
    facts = _facts(stored, live.last_report(stored.directory))
    search = searches.seen(stored.directory, stored.run)
    of_search = {} if search is None else searches.facts(search, stored.state)
    if as_json:
        print(strict_json.dumps({**facts, **of_search}))
        return
    texts = {name: _text(name, value) for name, value in facts.items() if value not in (None, "")}
    trials = searches.lines(of_search) if of_search else {}
    width = max(map(len, {**texts, **trials}))
    trials = {name: searches.wrapped(text, width + 2) for name, text in trials.items()}
    last = {"run_dir": texts.pop("run_dir")}
    print_plain("\n".join(f"{name:{width}}  {text}" for name, text in {**texts, **trials, **last}.items()))


def _facts(stored: Any, report: dict[str, Any]) -> dict[str, Any]:
    from hopsml.tracking.catalog import driver_lives

    ended, process = stored.status or {}, stored.run.get("driver_process") or {}
    lives = driver_lives(process) if stored.status is None else None
    return {
        "run": stored.run_id,
        "name": stored.run.get("name"),
        "state": stored.state,
        "seconds": stored.seconds,
        "workers": stored.run.get("workers"),
        "step": report.pop("step", None),
        "reported": report.pop("time", None),
        "metrics": report or None,
        "outputs": {name: value for name, value in stored.outputs.items() if name != "log"} or None,
        "driver": f"pid {process.get('pid')} on {stored.run.get('driver')}" + _life(lives) if not ended else None,
        "error": ended.get("error"),
        "run_dir": stored.directory.url,
    }


def _life(lives: bool | None) -> str:
    return {True: ", alive", False: ", ended", None: ""}[lives]


def _text(name: str, value: Any) -> str:
    from hopsml.tracking import listing

    if name == "seconds":
        return listing.duration(value)
    if name == "reported":
        return listing.time_text(value)
    if isinstance(value, dict):
        return "  ".join(f"{key}={listing.figure(content)}" for key, content in value.items())
    return str(value)
