"""``hopsml runs profile``: profile a running worker with py-spy."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli.terminal import RunArgument

if TYPE_CHECKING:
    from hopsml.storage.mailbox import ProfileRequest
    from hopsml.storage.run_dir import RunDir

POLL_S = 0.5


def profile(
    run: RunArgument,
    rank: Annotated[int, typer.Option(help="Rank of the worker.")] = 0,
    seconds: Annotated[int, typer.Option(help="Duration in seconds, 1 to 300.")] = 10,
    form: Annotated[
        str, typer.Option("--format", help="Format of the profile: speedscope, flamegraph (SVG) or raw.")
    ] = "speedscope",
    idle: Annotated[
        bool, typer.Option("--idle", help="Include threads that wait, as those of a worker that hangs.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the stored profiles of the run, newest first, and make none.")
    ] = False,
) -> None:
    """Profile a running worker with py-spy, store the profile in the run's directory, and print its URL.

    The request is stored in the run's directory, which the driver reads every few seconds.
    """
    from hopsml.core import settings
    from hopsml.errors import ArgumentError
    from hopsml.storage import mailbox, urls
    from hopsml.storage.run_dir import find

    directory = find(run, settings.project_url())
    if show:
        print("".join(f"{entry.url}\n" for entry in mailbox.kept_profiles(directory)), end="")
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
            f"run {directory.run_id} has no workers, it runs in its driver on {stored.run.get('driver')}: use py-spy there"
        )


def _wait_for_answer(directory: RunDir, request: ProfileRequest) -> ProfileRequest:
    from hopsml.errors import ArgumentError
    from hopsml.storage import mailbox

    deadline = time.monotonic() + request.seconds + 2 * mailbox.PROFILE_PATIENCE_S
    while True:
        newest = mailbox.read_profile_request(directory)
        if newest is None or newest.id != request.id:
            who = newest.by if newest is not None else "another user"
            raise ArgumentError(f"a later request of {who} has replaced this one; run the command again")
        if not newest.is_open:
            return newest
        if directory.read_status() is not None:
            raise ArgumentError(f"run {directory.run_id} has ended before its worker was profiled")
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"the driver of run {directory.run_id} has not answered: it is suspended, has ended, or is of an older "
                "version"
            )
        time.sleep(POLL_S)
