"""Magics of ``%load_ext hopsml``: ``%runs``, ``%logs``, ``%tensorboard_run`` and ``%hopsml_ui``.

``%hopsml_ui`` starts a local server of a project, which runs until the kernel ends. IPython is imported only when they
are registered.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hopsml.core import settings
from hopsml.core.newer_python import code_arguments
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.notebook import style, tensorboard
from hopsml.notebook.style import Column, HtmlCell
from hopsml.notebook.tensorboard import Page
from hopsml.storage import run_logs, urls
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog, listing, named_runs
from hopsml.tracking.catalog import StoredRun

# The server ends when its standard input is closed, so also if its parent is killed.
_START = (
    "import os, signal, sys, threading; "
    "wait = lambda: (sys.stdin.read(), os.kill(os.getpid(), signal.SIGTERM)); "
    "threading.Thread(target=wait, daemon=True).start(); "
    "from hopsml.cli import main; main()"
)

_pages: dict[str, Page] = {}  # by project URL


def open_page(project_url: str) -> Page:
    """Return the page of a project, and start its server if necessary; returns once it serves.

    Raises:
        HopsmlError: the server does not start.
    """
    known = _pages.get(project_url)
    if known is not None and known.process.poll() is None:
        return known
    _pages[project_url] = page = _start(project_url)
    return page


def close_all() -> None:
    """Stop all page servers; called when the kernel exits."""
    while _pages:
        _pages.popitem()[1].close()


def _start(project_url: str) -> Page:
    """Start the page's server and wait until it prints its address."""
    from hopsml.cluster.forking.fork_server import own_sys_path

    title = f"Runs of {urls.name(project_url) or project_url}"
    with tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(
            [sys.executable, *code_arguments(_START), "ui", "--no-browser", project_url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(own_sys_path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=problems,
            text=True,
            start_new_session=True,  # the interrupt of a cell must not reach it
        )
        page = Page(title, 0, process)
        try:
            assert process.stdout is not None
            address = urllib.parse.urlsplit(process.stdout.readline().strip())
        except BaseException:  # such as an interrupt: the caller no longer waits
            page.close()
            raise
        if not address.port:
            page.close()
            problems.seek(0)
            said = problems.read().strip()[-2000:]
            raise HopsmlError(said or f"hopsml ui ended with exit status {process.returncode}, without output")
    return Page(title, address.port, process, f"?{address.query}")


atexit.register(close_all)


_COLUMNS = [Column(name, name in listing.NUMBERS, name in ("name", "result")) for name in listing.COLUMNS]
CAUSE = 300  # most characters of a run's error


def register(shell: Any) -> None:
    """Register the magics with IPython's shell."""
    from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

    def magic(function: Callable[..., Any], *arguments: Any) -> None:
        def call(line: str) -> Any:
            with _one_sentence():
                return function(**vars(parse_argstring(call, line)))

        call.__name__, call.__doc__ = function.__name__, function.__doc__
        for decorate in (*reversed(arguments), magic_arguments()):
            call = decorate(call)
        shell.register_magic_function(call, "line", function.__name__)

    run = argument("run", nargs="?", default="", help="id, URL, path or name of the run; the newest one by default")
    project = argument("--project", default="", help="URL of a project; this notebook's by default")
    magic(
        runs, argument("--last", type=int, default=20, help="maximum number of runs, newest first; 0 for all"), project
    )
    magic(logs, run, argument("--rank", type=int, default=0, help="rank of the worker; 0 by default"))
    magic(tensorboard_run, run)
    magic(hopsml_ui, project)


def runs(last: int = 20, project: str = "") -> RunsTable:
    """Show the runs of a project as a table, the most recent first."""
    url = project or settings.project_url()
    return RunsTable(catalog.recent_runs(url, last or None), url)


def logs(run: str = "", rank: int = 0) -> None:
    """Print the output of a rank of a run, in all generations of its group."""
    directory = directory_of(run)
    for piece in run_logs.read_rank_logs(directory, rank):
        print(piece.decode(errors="replace"), end="")
    if note := catalog.empty_log_note(directory, rank):
        print(note)


def tensorboard_run(run: str = "") -> None:
    """Show TensorBoard with the events of a run; it ends with the kernel."""
    from IPython.display import display

    page = tensorboard.open_page(directory_of(run))
    display(tensorboard.bundle(page, tensorboard.find_page_path(page.port)), raw=True)


def hopsml_ui(project: str = "") -> None:
    """Show the page of a project, as `hopsml ui` does; it ends with the kernel."""
    from IPython.display import display

    page = open_page(project or settings.project_url())
    display(tensorboard.bundle(page, tensorboard.find_page_path(page.port)), raw=True)


def directory_of(run: str) -> RunDir:
    """Return the run directory of this id, URL, path or name; for an empty string that of the project's most recent run.

    Raises:
        ArgumentError: there is no such run.
    """
    project = settings.project_url()
    if run:
        directory, note = named_runs.resolve(run, project)
        if note:
            print(f"hopsml: {note}", file=sys.stderr)
        return directory
    youngest = catalog.recent_runs(project, 1)
    if not youngest:
        raise ArgumentError(f"there are no runs in {project}; set HOPSML_PROJECT_URL to the project of the runs")
    return youngest[0].directory


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Show hopsml's errors as their message, without a traceback."""
    from IPython.core.error import UsageError

    try:
        yield
    except HopsmlError as error:
        raise UsageError(str(error)) from None


def _cells(run: StoredRun) -> list[HtmlCell]:
    """Return the cells of a run's row in the table."""
    cells = listing.run_cells(run)
    colours = [style.state_colour(run.state) if column == listing.STATE else "" for column in range(len(cells))]
    return [HtmlCell(listing.short_text(cell, CAUSE), colour) for cell, colour in zip(cells, colours, strict=True)]


class RunsTable:
    """Result of ``%runs``, displayed as a table; ``runs`` holds the run records, the most recent first."""

    def __init__(self, runs: list[StoredRun], project_url: str) -> None:
        self.runs, self.project_url = runs, project_url

    def __repr__(self) -> str:
        if not self.runs:
            return f"no runs in {self.project_url}"
        return "\n".join(listing.format_table([listing.COLUMNS, *map(listing.run_cells, self.runs)], listing.NUMBERS))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return the table as plain text and HTML, for IPython."""
        bundle = {"text/plain": repr(self)}
        if self.runs:
            bundle["text/html"] = style.div(
                f"{style.SANS};{style.BODY}", style.table(_COLUMNS, [_cells(run) for run in self.runs])
            )
        return bundle
