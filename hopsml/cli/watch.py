"""Commands of ``hopsml runs`` on one run: ``status``, ``follow``, ``logs``, ``metrics`` and ``cancel``, from any machine."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.terminal import AsJson, RunArgument, found_run, print_plain
from hopsml.core import states
from hopsml.core.states import Lifecycle
from hopsml.tracking import catalog, listing

if TYPE_CHECKING:
    from hopsml.experiment.searches.recorded import SearchReader
    from hopsml.storage.run_dir import RunDir
    from hopsml.tracking.catalog import StoredRun


PLACES = 80  # characters of a line
RUNNING_SHOWN = 8  # maximum number of running trials that are printed


def search_reader(directory: RunDir, record: dict[str, Any]) -> SearchReader | None:
    """Return a reader of the search that ``record``, its ``run.json``, describes; None for any other run."""
    search = record.get("search")
    if not isinstance(search, dict):
        return None
    from hopsml.experiment.searches.recorded import SearchReader

    return SearchReader(directory, search)


def search_facts(search: SearchReader, state: str) -> dict[str, Any]:
    """Return counts, best trial and running trials of a search.

    If its driver has ended, unfinished trials count as waiting, since a resumed search runs them again.
    """
    search.read_new_reports()
    counts = search.counts()
    running = search.running() if state == Lifecycle.RUNNING else []
    if state != Lifecycle.RUNNING:
        counts["waiting"] += counts.pop("running")
    return {
        "trials": {"planned": search.planned_count, "over": search.ended_count, **counts},
        "direction": search.direction,
        "metric": search.metric,
        "best": search.best(),
        "trials_running": running,
    }


def search_lines(found: dict[str, Any]) -> dict[str, str]:
    """Return the result of ``search_facts()`` for the terminal, name -> text; a text may have several lines."""
    metric, best, running = found["metric"], found["best"], found["trials_running"]
    texts = {"trials": trial_counts(found["trials"])}
    if best is not None:
        texts[f"best {metric}"] = f"{best['value']:.6g} ({found['direction']}), trial {best['trial_id']}"
        texts["with"] = config_text(best["config"])
    for one in running[:RUNNING_SHOWN]:
        value = "" if one["value"] is None else f"  step {one['step']}  {metric}={one['value']:.6g}"
        texts[f"trial {one['number']}"] = f"{one['trial_id']}{value}"
    if len(running) > RUNNING_SHOWN:
        texts["..."] = f"{len(running) - RUNNING_SHOWN} more running"
    return texts


def trial_counts(counts: dict[str, Any]) -> str:
    """Return counts of trials as text, such as ``3 of 5 ended (1 stopped), 2 running``."""
    planned = "" if counts["planned"] is None else f" of {counts['planned']}"
    ends = ", ".join(f"{counts[name]} {name}" for name in ("stopped", "failed") if counts[name])
    others = [f"{counts[name]} {name}" for name in ("running", "paused", "waiting") if counts.get(name)]
    return ", ".join([f"{counts['over']}{planned} ended" + (f" ({ends})" if ends else ""), *others])


def config_text(values: dict[str, Any]) -> str:
    """Return a configuration as text, such as ``lr=0.1  act=relu``."""
    from hopsml.tracking.listing import short_text

    return "  ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={short_text(value)}"
        for name, value in values.items()
    )


def search_progress(found: dict[str, Any]) -> str:
    """Return trials, best value and its configuration in a line of at most 80 characters including "hopsml: "."""
    from hopsml.tracking.listing import truncate_to_width

    best = found["best"]
    text = f"trials {trial_counts(found['trials'])}"
    if best is not None:
        text += f"; best {found['metric']} {best['value']:.6g}  {config_text(best['config'])}"
    return truncate_to_width(text, PLACES - len("hopsml: "))


def wrapped(text: str, indent: int) -> str:
    """Wrap the text into lines of at most ``PLACES`` characters, or a terminal's; indent further ones by ``indent``."""
    places = min(PLACES, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PLACES
    broken = textwrap.wrap(text, max(20, places - indent), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(broken)


CANCEL_POLL_S = 0.25


def cancel(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="Reason, stored with the run.")] = "cancelled from the command line",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the end of the run.")] = 60.0,
) -> None:
    """End a run, a search or a launch; the exit status is 0 if it ends as CANCELLED.

    The request is stored in the run directory, which the driver reads every few seconds, on any machine.
    """
    from hopsml.core.states import Lifecycle
    from hopsml.errors import ArgumentError, PermissionRefused
    from hopsml.storage import mailbox
    from hopsml.tracking import catalog

    directory = found_run(run)
    stored = catalog.read(directory, brief=True)
    if stored.status is None and stored.state == Lifecycle.LOST:
        raise ArgumentError(
            f"run {directory.run_id} is LOST: its driver and its workers have ended, so there is nothing to cancel"
        )
    if stored.run.get("verb") == "recorded" and stored.status is None:
        raise ArgumentError(
            f"run {directory.run_id} has no workers, since it runs in its driver on {stored.run.get('driver')}; end "
            "that program"
        )
    if stored.status is None:
        try:
            mailbox.write_cancel_request(directory, reason)
        except PermissionRefused as error:
            owner = stored.run.get("user") or "its owner"
            raise PermissionRefused(
                f"run {directory.run_id} belongs to {owner}, and this user may not write into its directory, which a cancel "
                f"request needs; ask {owner} to cancel it",
                directory.url,
            ) from error
    deadline = time.monotonic() + timeout
    while (ended := directory.read_status()) is None:
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"run {directory.run_id} has not ended within {timeout:g} s of the cancel request. Check that its "
                "driver is running, or on YARN end the whole application: hopsml runs follow APPLICATION --end"
            )
        time.sleep(CANCEL_POLL_S)
    state = ended.get("state")
    print(f"{directory.run_id}: {state}" + ("" if stored.status is None else " already"))
    raise typer.Exit(0 if state == Lifecycle.CANCELLED else 1)


METRICS_POLL_S = 1.0


def metrics(
    run: RunArgument,
    last: Annotated[int, typer.Option(help="Maximum number of reports, the newest ones; 0 prints all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new reports until the run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, as recorded.")] = False,
) -> None:
    """Print the metrics that a run has reported, step by step, from its metrics.jsonl.

    Of a search, print the values of its metric that the trials have reported.
    """
    from hopsml.tracking import catalog

    directory = found_run(run)
    search = search_reader(directory, directory.read_run())
    reports = catalog.ReportReader(directory.metrics) if search is None else _OfTrials(search)
    found = list(reports.read_new_reports())
    if last:
        found = found[-last:]
    columns: list[str] = []
    try:
        columns = _shown(found, columns, as_json)
        for more in _later(directory, reports) if follow else ():
            columns = _shown(more, columns, as_json)
    except KeyboardInterrupt:
        if follow:
            _print_continues(run)
        raise typer.Exit(130) from None
    if not columns and not as_json:
        who = f"run {directory.run_id} has" if search is None else f"the trials of search {directory.run_id} have"
        print(f"{who} reported no metrics; call hopsml.report in the training function", file=sys.stderr)
    if search is not None and search.distributed:
        print(f"all metrics of one trial: hopsml runs metrics {search.folder_of('TRIAL')}", file=sys.stderr)


class _OfTrials:
    """Reports of a search's trials, in the form of a run's reports; a search's event log has no times."""

    def __init__(self, search: SearchReader) -> None:
        self._search = search

    def read_new_reports(self) -> Iterator[dict[str, Any]]:
        """Yield the reports since the last call. Raises StorageError."""
        for one in self._search.read_new_reports():
            yield {"trial": one.trial, "number": one.number, "step": one.step, self._search.metric: one.value}


def _later(directory: Any, reports: Any) -> Iterator[list[dict[str, Any]]]:
    has_ended = False
    while not has_ended:
        has_ended = catalog.read(directory, brief=True).state in states.ENDS
        yield list(reports.read_new_reports())
        if not has_ended:
            time.sleep(METRICS_POLL_S)


def _shown(reports: list[dict[str, Any]], columns: list[str], as_json: bool) -> list[str]:
    """Print the rows, with new titles if a metric is new; return the columns for the rows that follow."""
    from hopsml.tracking.listing import format_table, number_text, time_text

    names = [*columns, *dict.fromkeys(name for report in reports for name in report if name not in (*columns, "time"))]
    if as_json:
        for report in reports:
            print(listing.json_line(report))
    elif reports:
        times = any("time" in report for report in reports)
        rows = [tuple(number_text(report.get(name)) for name in names) for report in reports]
        if times:
            rows = [(time_text(one.get("time")), *row) for one, row in zip(reports, rows, strict=True)]
        lines = format_table([("time", *names) if times else tuple(names), *rows])
        print("\n".join(lines if names != columns else lines[1:]))
    sys.stdout.flush()
    return names


def logs(
    run: RunArgument,
    rank: Annotated[int, typer.Option(help="Rank of the worker.")] = 0,
    generation: Annotated[
        int | None,
        typer.Option(
            help="Generation of the group, from 0; each change of members begins a new one. Default: all generations."
        ),
    ] = None,
) -> None:
    """Print the output of one rank of a run; of a search, the output of its trials.

    With --generation, the output of a search is that of the trial slot with this rank.
    """
    from hopsml.storage import run_logs
    from hopsml.tracking import catalog

    directory = found_run(run)
    search = search_reader(directory, directory.read_run()) if generation is None else None
    if search is not None:
        search.read_new_reports()
    is_empty = True
    for piece in run_logs.read_rank_logs(directory, rank, generation) if search is None else search.output():
        is_empty = is_empty and not piece
        sys.stdout.buffer.write(piece)
    if search is None and (note := catalog.empty_log_note(directory, rank, generation)):
        print_plain(note, to_stderr=True)
    elif search is not None and is_empty:
        print_plain(f"no trial of search {directory.run_id} has printed anything", to_stderr=True)


POLL_S = 1.0
_APPLICATION = re.compile(r"application_\d+_\d+")


def follow(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|APPLICATION", help="URL, path, id or name of a run, or the id of a YARN application."
        ),
    ],
    end: Annotated[
        bool, typer.Option("--end", help="Cancel the run, or end the application, instead of following it.")
    ] = False,
    rank: Annotated[int, typer.Option(help="Rank of the worker whose output is printed.")] = 0,
) -> None:
    """Follow a run, a search or a YARN application to its end; the exit status is 0 only if it succeeds.

    Ctrl-C ends an application, as under `hopsml submit`; a run continues, and `hopsml runs cancel` ends it.
    """
    if not _APPLICATION.fullmatch(what):
        _follow_run(what, end, rank)
    from hopsml import submission

    if end:
        ended = submission.end_application(what)
        submission.to_stderr(f"{ended.id}: {ended.state}, {ended.final_status}")
        return
    with submission.Interrupts() as interrupts:
        outcome = submission.follow(what, interrupts=interrupts)
    raise typer.Exit(outcome.status)


def _follow_run(run: str, end: bool, rank: int) -> None:
    """Follow a run to its end, and raise typer.Exit with the exit status."""
    from hopsml.core.states import Lifecycle
    from hopsml.errors import ArgumentError
    from hopsml.submission import to_stderr
    from hopsml.tracking import catalog

    try:
        directory = found_run(run)
    except ArgumentError as error:
        raise ArgumentError(
            f"'{run}' is neither the id of a YARN application (application_<time>_<number>) nor a run: {error}"
        ) from None
    if end:
        cancel(directory.url)
    output, state, progress = catalog.OutputReader(directory, rank), "", ""
    search = search_reader(directory, directory.read_run())
    if search is not None:
        to_stderr(f"output of the trials: hopsml runs logs {directory.run_id}, or {search.folder_of('TRIAL')}")
    try:
        while True:
            stored = catalog.read(directory, brief=True)  # before the output, so that the last output is not lost
            for text in output.read_new_text():
                sys.stdout.write(text)
            sys.stdout.flush()
            if search is not None and (now := search_progress(search_facts(search, stored.state))) != progress:
                progress = now
                to_stderr(progress)
            if stored.state != state:
                state = stored.state
                to_stderr(f"{directory.run_id}: {state}" + ("" if stored.status is None else _end_of(stored.status)))
            if state in (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST):
                raise typer.Exit(0 if state == Lifecycle.FINISHED else 1)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        _print_continues(run)
        raise typer.Exit(130) from None


def _print_continues(run: str) -> None:
    print(f"the run continues; `hopsml runs cancel {run}` ends it", file=sys.stderr, flush=True)


def _end_of(status: dict[str, object]) -> str:
    return f": {status['error']}" if status.get("error") else ""


def status(run: RunArgument, as_json: AsJson = False) -> None:
    """Print the state of a run or a search: duration, workers, last metrics, driver, error."""
    from hopsml.tracking import catalog

    stored = catalog.read(found_run(run), brief=True)
    facts = _facts(stored, catalog.last_report(stored.directory))
    search = search_reader(stored.directory, stored.run)
    of_search = {} if search is None else search_facts(search, stored.state)
    if as_json:
        print(listing.json_line({**facts, **of_search}))
        return
    facts |= {"error": _brief_error(stored), "continue": _how_to_continue(stored)}
    texts = {name: _text(name, value) for name, value in facts.items() if value not in (None, "")}
    trials = search_lines(of_search) if of_search else {}
    width = max(map(len, {**texts, **trials}))
    trials = {name: wrapped(text, width + 2) for name, text in trials.items()}
    texts |= {name: wrapped(texts[name], width + 2) for name in ("error", "losses", "continue") if name in texts}
    last = {"run_dir": texts.pop("run_dir")}
    print_plain("\n".join(f"{name:{width}}  {text}" for name, text in {**texts, **trials, **last}.items()))


def _facts(stored: StoredRun, report: dict[str, Any]) -> dict[str, Any]:
    from hopsml.tracking.catalog import is_driver_alive

    ended, process = stored.status or {}, stored.run.get("driver_process") or {}
    lives = is_driver_alive(process) if stored.status is None else None
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
        "losses": ended.get("losses") or None,
        "checkpoint": _newest_checkpoint(stored),
        "run_dir": stored.directory.url,
    }


_UNFINISHED = (Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST)


def _newest_checkpoint(stored: StoredRun) -> int | None:
    """Return the step of the newest complete checkpoint of a run that has not finished; None if there is none."""
    from hopsml.storage import checkpoints

    return checkpoints.latest_complete(stored.directory.checkpoints) if stored.state in _UNFINISHED else None


def _brief_error(stored: StoredRun) -> str:
    """Return why a run did not finish, in one line, and where the rest of the error is."""
    if not (cause := stored.cause):
        return ""
    whole = str((stored.status or {}).get("error") or "").strip()
    return cause if cause == whole else f"{cause}. `hopsml runs show {_command_name(stored)}` prints all of the error"


def _how_to_continue(stored: StoredRun) -> str:
    """Return the command that continues a run which has not finished, and from where; "" if it cannot be continued."""
    if stored.state not in _UNFINISHED or stored.run.get("verb") in ("recorded", "launch"):
        return ""
    command = f"hopsml runs resume {_command_name(stored)}"
    if stored.search_settings:
        return command
    step = _newest_checkpoint(stored)
    return f"{command} ({'from its beginning' if step is None else f'from its checkpoint of step {step}'})"


def _command_name(stored: StoredRun) -> str:
    """Return the run as an argument of a command: its id, or its URL if it is within another run."""
    return stored.run_id if stored.run_id == stored.directory.run_id else stored.directory.url


def _life(lives: bool | None) -> str:
    return {True: ", alive", False: ", ended", None: ""}[lives]


def _text(name: str, value: Any) -> str:
    from hopsml.tracking import listing

    if name == "seconds":
        return listing.duration_text(value)
    if name == "reported":
        return listing.time_text(value)
    if name == "losses":
        return "; ".join(listing.loss_texts(value))
    if isinstance(value, dict):
        return "  ".join(f"{key}={listing.number_text(content)}" for key, content in value.items())
    return str(value)
