"""``hopsml runs``: list, inspect, follow, cancel, compare, repeat, continue and delete runs, on any store."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.repeat import evaluate, rerun, resume, tensorboard, tune_communication
from hopsml.cli.terminal import AsJson, ProjectUrl, RunArgument, found_run, print_plain
from hopsml.cli.watch import cancel, follow, logs, metrics, status
from hopsml.core.states import Lifecycle
from hopsml.tracking import listing
from hopsml.tracking.listing import (
    COLUMNS,
    GAP,
    NUMBERS,
    duration_text,
    fit_runs_to_width,
    format_table,
    run_cells,
    short_text,
    time_text,
)

if TYPE_CHECKING:
    from hopsml.storage.mailbox import ProfileRequest
    from hopsml.storage.run_dir import RunDir
    from hopsml.tracking.catalog import StoredRun


POLL_S = 0.5


def profile(
    run: RunArgument,
    rank: Annotated[int, typer.Option(help="Rank of the worker.")] = 0,
    seconds: Annotated[int, typer.Option(help="Duration of the profile in seconds, 1 to 300.")] = 10,
    form: Annotated[
        str, typer.Option("--format", help="Format of the profile: speedscope, flamegraph (SVG) or raw.")
    ] = "speedscope",
    idle: Annotated[
        bool, typer.Option("--idle", help="Include waiting threads, for instance of a worker that hangs.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the stored profiles of the run, newest first, and take no new one.")
    ] = False,
) -> None:
    """Profile a running worker with py-spy, store the profile in the run's directory, and print its URL.

    The request is stored in the run's directory, which the driver reads every few seconds.
    """
    from hopsml.errors import ArgumentError
    from hopsml.storage import mailbox, urls

    directory = found_run(run)
    if show:
        print("".join(f"{entry.url}\n" for entry in mailbox.list_profiles(directory)), end="")
        return
    request = mailbox.checked_profile_request(rank, seconds, form, idle)
    _check_running(directory)
    mailbox.request_profile(directory, request, time.time())
    ended = _wait_for_answer(directory, request)
    if ended.state != "done":
        raise ArgumentError(f"no profile of rank {rank} of {directory.run_id}: {ended.answer}")
    print(urls.join(directory.url, ended.answer))
    if form == "speedscope":
        print("open the profile at https://www.speedscope.app, or in `hopsml ui`", file=sys.stderr)


def _check_running(directory: RunDir) -> None:
    from hopsml.core.states import Lifecycle
    from hopsml.errors import ArgumentError
    from hopsml.tracking import catalog

    stored = catalog.read(directory, brief=True)
    if stored.state != Lifecycle.RUNNING:
        raise ArgumentError(f"run {directory.run_id} is {stored.state}: only running workers can be profiled")
    if stored.run.get("verb") == "recorded":
        raise ArgumentError(
            f"run {directory.run_id} has no workers, since it runs in its driver on {stored.run.get('driver')}; run "
            "py-spy on that host"
        )


def _wait_for_answer(directory: RunDir, request: ProfileRequest) -> ProfileRequest:
    from hopsml.errors import ArgumentError
    from hopsml.storage import mailbox

    deadline = time.monotonic() + request.seconds + 2 * mailbox.PROFILE_PATIENCE_S
    while True:
        newest = mailbox.read_profile_request(directory)
        if newest is None or newest.id != request.id:
            who = newest.by if newest is not None else "another user"
            raise ArgumentError(f"a later request by {who} has replaced this one; run the command again")
        if not newest.is_open:
            return newest
        if directory.read_status() is not None:
            raise ArgumentError(f"run {directory.run_id} has ended before its worker was profiled")
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"the driver of run {directory.run_id} has not answered: it is suspended, has ended, or runs an "
                "older version of hopsml; check the driver with `hopsml runs status`"
            )
        time.sleep(POLL_S)


CALL_TIMEOUT_S = 30.0  # a person waits, and can interrupt
app = typer.Typer(
    no_args_is_help=True, help="List, inspect, follow, cancel, compare, repeat, continue and delete runs and searches."
)


def ls(
    last: Annotated[int, typer.Option(help="Maximum number of runs, newest first; 0 lists all.")] = 20,
    project: ProjectUrl = "",
    as_json: AsJson = False,
) -> None:
    """List the runs of a project."""
    from hopsml.core import settings
    from hopsml.tracking import catalog

    url = project or settings.project_url()
    found = catalog.recent_runs(url, last or None)
    if as_json:
        print(listing.json_line([_row_as_json(run) for run in found]))
    elif not found:
        print(f"no runs in {url}", file=sys.stderr)
    else:
        _print_table(found)


def _print_table(found: list[StoredRun]) -> None:
    """Print runs: on a terminal fitted to its width, with colours; into a pipe or file complete, one line per run."""
    if not sys.stdout.isatty():
        print("\n".join(format_table([COLUMNS, *(run_cells(run) for run in found)], NUMBERS)))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    columns, *lines = fit_runs_to_width(found, console.width)
    console.print(Text(GAP.join(columns).rstrip(), style="dim"))
    for cells in lines:
        styles = [_STYLES.get(cell.strip(), "") for cell in cells] if len(cells) > 1 else ["dim"]
        console.print(Text(GAP).join(map(Text, cells, styles)))


_STYLES: dict[str, str] = {
    Lifecycle.WAITING: "yellow",
    Lifecycle.STARTING: "yellow",
    Lifecycle.RUNNING: "blue",
    Lifecycle.FINISHED: "green",
    Lifecycle.FAILED: "red",
    Lifecycle.LOST: "red",
}


def show(run: RunArgument, as_json: AsJson = False) -> None:
    """Print everything that is recorded of a run."""
    stored = _read(run)
    if as_json:
        print(listing.json_line(_everything(stored)))
        return
    for title, content in _sections(stored):
        if content:
            print_plain(f"{title}\n{_indented(content)}\n")


def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="URL, path, id or name of a run.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="URL, path, id or name of another run.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs: source, arguments, packages, settings, inputs and result."""
    from hopsml.cli.terminal import difference_row
    from hopsml.tracking import compare as comparison

    one, other = _read(left), _read(right)
    found, source = comparison.differences(one, other), comparison.source_diff(one, other)
    if as_json:
        rows = [{"section": d.section, "name": d.name, "left": d.left, "right": d.right} for d in found]
        content = {"left": one.directory.url, "right": other.directory.url, "differences": rows, "source": source}
        print(listing.json_line(content))
        return
    if not found and not source:
        print("no recorded value differs")
        return
    print_plain("\n".join(format_table([("", one.run_id, other.run_id), *map(difference_row, found)])))
    if source:
        print_plain("\n" + source)


def rm(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="URL, path or id of each run, or a name that only one run has.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    force: Annotated[bool, typer.Option(help="Delete runs that may still be running, too.")] = False,
) -> None:
    """Delete runs with all their files: checkpoints, events, logs, exports."""
    from hopsml.errors import ArgumentError
    from hopsml.storage.filesystem import for_url
    from hopsml.tracking import catalog
    from hopsml.tracking.catalog import RUNNING
    from hopsml.tracking.mlflow import order

    found = [catalog.read(found_run(run, is_exact=True), brief=True) for run in dict.fromkeys(runs)]
    for stored in found:
        if stored.state == RUNNING and not force:
            raise ArgumentError(
                f"run {stored.run_id} has no status.json, and its last change was {duration_text(stored.quiet_s)} ago: it "
                f"may still be running. Nothing was deleted. Cancel it (hopsml runs cancel {stored.run_id}), or add --force"
            )
    if not yes:
        _print_table(found)
        if not sys.stdin.isatty():
            raise ArgumentError(
                "nothing was deleted, since standard input is not a terminal and cannot confirm; add --yes to delete"
            )
        typer.confirm(f"delete {'this run' if len(found) == 1 else f'these {len(found)} runs'}?", abort=True)
    for stored in found:
        for_url(stored.directory.url).delete(stored.directory.url, recursive=True)
        order.remove_from_unsent(stored.directory)
        print(f"deleted {stored.directory.url}")


def sync(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="URL, path, id or name of each run. Default: all that MLflow lacks."),
    ] = None,
    project: ProjectUrl = "",
    as_json: AsJson = False,
) -> None:
    """Send runs to MLflow that its server has not received. The exit status is 1 if some could not be sent."""
    from hopsml.core import settings
    from hopsml.errors import HopsmlError
    from hopsml.storage.run_dir import RunDir
    from hopsml.tracking.mlflow import order, sender, store

    url = project or settings.project_url()
    directories = [found_run(run, url) for run in runs or []] or [RunDir(run) for run in order.list_unsent_runs(url)]
    if directories:
        store.limit_request_time(CALL_TIMEOUT_S)
    stores: dict[str, store.Store] = {}

    def opened(uri: str) -> store.Store:
        if uri not in stores:
            stores[uri] = store.Store(uri)
        return stores[uri]

    rows = []
    for directory in directories:
        try:
            state, notes = sender.send_recorded(
                directory, opened, os.environ.get("MLFLOW_TRACKING_URI", ""), refused_too=True
            )
        except HopsmlError as error:
            state, notes = order.PENDING, [str(error)]
        rows.append({"run": directory.run_id, "state": state, "notes": notes})
        if not as_json:
            print("  ".join([directory.run_id, state, *notes]), flush=True)
    if as_json:
        print(listing.json_line(rows))
    elif not rows:
        print(f"MLflow has all runs of {url}")
    if any(row["state"] in (order.PENDING, order.REFUSED) for row in rows):
        raise typer.Exit(1)


def _read(run: str) -> StoredRun:
    from hopsml.tracking import catalog

    return catalog.read(found_run(run))


def _row_as_json(run: StoredRun) -> dict[str, Any]:
    metric = run.main_metric
    return {
        "run_id": run.run_id,
        "run_dir": run.directory.url,
        "name": run.run.get("name"),
        "state": run.state,
        "workers": run.run.get("workers"),
        "started": run.run.get("started"),
        "seconds": run.seconds,
        "metric": dict([metric]) if metric else {},
        "cause": run.cause,
        "rerun_of": run.run.get("rerun_of"),
    }


def _everything(run: StoredRun) -> dict[str, Any]:
    return {
        "run_dir": run.directory.url,
        "state": run.state,
        "run": run.run,
        "status": run.status,
        "outputs": run.outputs,
        "environment": run.environment,
        "worker": run.worker,
        "inputs": run.inputs,
    }


def _sections(run: StoredRun) -> list[tuple[str, Any]]:
    """Return (title, content) of all that is recorded, the most important first."""
    record, around = dict(run.run), dict(run.environment)
    source, packages = record.pop("source", ""), around.pop("packages", None) or {}
    status = dict(run.status or {})
    metric = run.main_metric
    head = {
        "run": run.run_id,
        "directory": run.directory.url,
        "state": run.state,
        "name": record.get("name"),
        "started": time_text(record.get("started")),
        "duration": duration_text(run.seconds),
        **({metric[0]: metric[1]} if metric else {}),
    }
    inputs = [*(around.pop("inputs", None) or []), *run.inputs]
    return [
        ("run", head),
        ("error", status.pop("error", "")),
        ("lost workers", "\n".join(listing.loss_texts(status.pop("losses", None)))),
        ("result", run.outputs),
        ("arguments", record.pop("arguments", None)),
        ("inputs", {str(entry.get("url")): short_text(entry, 200) for entry in inputs}),
        ("request (run.json)", record),
        ("end (status.json)", status),
        ("environment (environment.json)", around),
        ("host of the chief (worker.json)", run.worker),
        ("packages", " ".join(f"{name}=={version}" for name, version in packages.items())),
        ("source", source),
    ]


def _indented(content: Any) -> str:
    if isinstance(content, dict):
        width = max(len(str(name)) for name in content)
        return "\n".join(_entry(str(name), value, width) for name, value in content.items())
    return "\n".join(f"  {line}" for line in str(content).splitlines())


def _entry(name: str, value: Any, width: int) -> str:
    if isinstance(value, dict) and len(value) > 1:
        return f"  {name}\n" + "\n".join(f"  {line}" for line in _indented(value).splitlines())
    return f"  {name:{width}}  {short_text(value, 100_000)}"


for _command in (
    ls,
    show,
    status,
    logs,
    metrics,
    follow,
    cancel,
    compare,
    rerun,
    resume,
    evaluate,
    profile,
    tensorboard,
    tune_communication,
    rm,
    sync,
):
    app.command()(_command)
