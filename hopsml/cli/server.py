"""``hopsml server``: run the job service; ``hopsml ui``: web page with the runs of a project."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

PAGE_S = 120.0  # seconds after which the file that a browser has opened is deleted


def ui(
    project_url: Annotated[
        str,
        typer.Argument(
            metavar="PROJECT_URL",
            help="URL of the project. Default: $HOPSML_PROJECT_URL, else HDFS if configured, else ./.hopsml.",
        ),
    ] = "",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on: 127.0.0.1, ::1 or localhost.")] = "127.0.0.1",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and do not open a browser.")
    ] = False,
) -> None:
    """Show the runs of a project in the browser until Ctrl-C, live and read-only."""
    from hopsml.core import settings
    from hopsml.service.rest import server

    server.check_installed()
    if sys.stderr.isatty():  # others, such as a notebook, read the address only
        typer.echo("reading the project; the address follows when the page is ready", err=True)
    from hopsml.service.rest import access

    with contextlib.ExitStack() as at_end:
        token, listener = access.new_token(), at_end.enter_context(server.bind_local(host, port))
        address = server.server_url(listener, token)

        def ready() -> None:
            print(address, flush=True)
            if not no_browser:
                _open_browser(access.redirect_page(address), at_end)

        server.run_page_server(project_url or settings.project_url(), listener, token, ready)


def _open_browser(page: str, at_end: contextlib.ExitStack) -> None:
    """Open a page with a token in the browser, from a private file: all users can see the arguments of processes.

    Args:
        page: Content of the page.
        at_end: Calls that delete the file when the command ends; it is deleted earlier if the browser has had time.
    """
    import threading
    import webbrowser

    try:
        file = _private_page(page)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        typer.echo(
            f"no browser was opened, since ~/.hopsml/ui cannot be used: {error}; open the address above", err=True
        )
        return
    at_end.callback(file.unlink, missing_ok=True)
    later = threading.Timer(PAGE_S, file.unlink, kwargs={"missing_ok": True})
    later.daemon = True
    later.start()
    at_end.callback(later.cancel)
    # In a thread of its own: for a browser in the terminal the call returns when that ends.
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()


def _private_page(page: str) -> Path:
    """Write a page to a file that only this user can read, and delete those of commands that were killed.

    Raises:
        OSError: The folder cannot be written, or other users have access to it.
        RuntimeError: This user has no home folder.
    """
    from hopsml.storage import privacy

    folder = Path.home() / ".hopsml" / "ui"
    privacy.ensure_private_folder(folder, denied=0o077)
    for left in folder.glob("*.html"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > PAGE_S:
                left.unlink()
    descriptor, name = tempfile.mkstemp(".html", dir=folder)  # with permission 0600
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(page)
    return Path(name)


def log_handler() -> logging.Handler:
    """Return a handler that logs to the terminal, without control characters and forged lines of jobs' messages."""
    from hopsml.tracking.listing import strip_control_sequences

    class PlainFormatter(logging.Formatter):
        """Formatter that indents further lines, so that every unindented line begins an entry."""

        def format(self, record: logging.LogRecord) -> str:
            return strip_control_sequences(super().format(record)).replace("\n", "\n    ")

    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    return handler


def server(
    database: Annotated[
        str, typer.Option(help="Database: sqlite:///FILE or postgresql://USER@HOST/NAME. Default: a file in --state.")
    ] = "",
    profile: Annotated[
        str,
        typer.Option(help="Profile of all jobs: name of a file in conf/. Default: $HOPSML_PROFILE, else local."),
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on; 0 selects a free port. Default: the last port of this server if it is free."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; addresses other than loopback need --certificate and --key.")
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file with the server's TLS certificate and its chain. Default: no TLS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file with the key of --certificate. Default: none.")] = None,
    address: Annotated[
        str, typer.Option(help="URL by which others reach the server. Default: the address that it listens on.")
    ] = "",
    sign_in: Annotated[
        Path | None,
        typer.Option(
            help="File that describes an OpenID provider for sign-in. Default: tokens are the only credentials."
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or network of a proxy whose X-Forwarded-For header is trusted; may be given more than once."
        ),
    ] = None,
    queues: Annotated[
        Path | None, typer.Option(help="File that describes the queues. Default: one queue, called default.")
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="File that describes the nodes that may be added to the cluster. Default: no nodes are added."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for the data of this server. Default: $HOPSML_SERVER_STATE, else ~/.hopsml/server."),
    ] = None,
    project_url: Annotated[
        str,
        typer.Option(
            help="URL of the project in which jobs record runs. Default: the profile's, else $HOPSML_PROJECT_URL, else "
            "HDFS if configured, else project/ in --state."
        ),
    ] = "",
    archives: Annotated[
        list[str],
        typer.Option(
            help="URL of a store of packed environments of jobs; may be given more than once. Default: the project's store."
        ),
    ] = [],  # noqa: B006 typer reads it
    datasets: Annotated[
        list[str],
        typer.Option(
            help="URL of a folder whose data sets users may look at if their jobs name them; may be given more than once. "
            "Datasets/ of the project is one of them."
        ),
    ] = [],  # noqa: B006 typer reads it
    trust_users: Annotated[
        bool,
        typer.Option(
            "--trust-users", help="Allow several accounts to submit jobs, although all jobs run as the server's user."
        ),
    ] = False,
    audit_days: Annotated[float, typer.Option(help="Days for which the audit log is stored.")] = 90.0,
    keep_days: Annotated[float, typer.Option(help="Days for which files of ended jobs are stored.")] = 90.0,
    changes_per_s: Annotated[
        float, typer.Option(min=0, help="Changes per second that one user may request; 0 is no limit.")
    ] = 200.0,
    reads_per_s: Annotated[
        float, typer.Option(min=0, help="Other requests per second of one user; 0 is no limit.")
    ] = 1000.0,
    unfinished_jobs: Annotated[
        int, typer.Option(min=0, help="Maximum number of one user's jobs that have not ended; 0 is no limit.")
    ] = 10_000,
    stored_jobs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of one user's jobs in the database; the oldest ended ones are removed; 0 is no limit.",
        ),
    ] = 50_000,
) -> None:
    """Run the job service until Ctrl-C: queue jobs and start them.

    Jobs that run when the server ends continue, and the next server takes them over.
    """
    from hopsml import service_connection

    folder = state or service_connection.state_folder()
    typer.echo(f"starting the job service (its data is in {folder}); the address follows when it is ready", err=True)
    end_announcement = _announce(folder / service_connection.STARTING)
    from hopsml.service.rest import server as servers

    servers.check_installed("hopsml server", ("sqlalchemy", "alembic", "fastapi", "pydantic", "croniter"))
    if sign_in is not None:
        servers.check_installed("hopsml server --sign-in", ("authlib", "joserfc", "requests"))
    from hopsml.service.server import ServerSettings, run_server

    logging.basicConfig(handlers=[log_handler()])
    logging.getLogger("hopsml.service").setLevel(logging.INFO)
    wanted = ServerSettings(
        folder,
        database,
        profile,
        project_url,
        host,
        port,
        queues,
        nodes=nodes,
        archives=tuple(archives),
        datasets=tuple(datasets),
        trust_users=trust_users,
        audit_days=audit_days,
        keep_days=keep_days,
        changes_per_s=changes_per_s,
        reads_per_s=reads_per_s,
        unfinished_jobs=unfinished_jobs,
        stored_jobs=stored_jobs,
        certificate=certificate,
        key=key,
        address=address,
        sign_in=sign_in,
        trusted_proxies=servers.parse_proxies(trusted_proxy or []),
    )

    def ready(address: str) -> None:
        end_announcement()
        print(address, flush=True)

    try:
        run_server(wanted, ready)
    finally:
        end_announcement()


def _announce(file: Path) -> Callable[[], None]:
    """Lock the file by which commands see that the server is starting; return the function that deletes it.

    The kernel releases the lock of a server that is killed. Another server that starts with the same state may hold it.

    Raises:
        ArgumentError: The folder cannot be written, or other users can write to it.
    """
    from hopsml.core import file_locks, ownership
    from hopsml.errors import ArgumentError
    from hopsml.storage import durable

    state = file.parent.absolute()
    try:
        durable.make_folder(state)
        reason = ownership.why_foreign(state, state.parent)
        if not reason and state.stat().st_mode & stat.S_IWOTH:  # with the sticky bit, as /tmp
            reason = "all users can create files there"
        if reason:  # they could have put the key of all secrets there, or the database
            raise ArgumentError(f"--state {state}: {reason}; name a folder that only you can write to")
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if file_locks.try_lock(descriptor):
            os.utime(descriptor)  # the start, for the messages of commands
    except OSError as error:
        raise ArgumentError(
            f"--state {file.parent}: it cannot be written ({error.strerror}); name another folder"
        ) from None
    open_files = [descriptor]

    def end() -> None:
        file.unlink(missing_ok=True)
        while open_files:
            os.close(open_files.pop())

    return end
