"""``hopsml profile RUN``: what a running worker does with its time."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hopsml.storage.profile_request import ProfileRequest
    from hopsml.storage.run_dir import RunDir

POLL_S = 0.5


def profile(
    run: str,
    rank: Annotated[int, typer.Option(help="whose")] = 0,
    seconds: Annotated[int, typer.Option(help="for how long it is looked at, up to 300")] = 10,
    form: Annotated[str, typer.Option("--format", help="speedscope, flamegraph or raw")] = "speedscope",
    idle: Annotated[bool, typer.Option("--idle", help="threads that wait, too")] = False,
    show: Annotated[bool, typer.Option("--list", help="those that are there, and take none")] = False,
) -> None:
    """Look at a running worker with py-spy, from outside, and keep the profile in the run's directory; prints its URL.

    RUN is its URL, its path or its id. The wish is left in the run's directory, where the driver looks for it.
    """
    from hopsml import settings
    from hopsml.errors import ArgumentError
    from hopsml.storage import profile_request, urls
    from hopsml.storage.run_dir import find

    directory = find(run, settings.project_url())
    if show:
        print("".join(f"{entry.url}\n" for entry in profile_request.kept(directory)), end="")
        return
    wish = profile_request.checked(rank, seconds, form, idle)
    _check_goes_on(directory)
    profile_request.ask(directory, wish, time.time())
    ended = _answered(directory, wish)
    if ended.state != "done":
        raise ArgumentError(f"no profile of rank {rank} of {directory.run_id}: {ended.answer}")
    print(urls.join(directory.url, ended.answer))
    if form == "speedscope":
        print("open it at https://www.speedscope.app, or in `hopsml ui`", file=sys.stderr)


def _check_goes_on(directory: RunDir) -> None:
    from hopsml.errors import ArgumentError
    from hopsml.states import Lifecycle
    from hopsml.tracking import catalog

    stored = catalog.read(directory, brief=True)
    if stored.state != Lifecycle.RUNNING:
        raise ArgumentError(f"run {directory.run_id} is {stored.state}: only workers that run can be profiled")
    if stored.run.get("verb") == "recorded":
        raise ArgumentError(
            f"run {directory.run_id} is work of its driver itself, {stored.run.get('driver')}: use py-spy there"
        )


def _answered(directory: RunDir, wish: ProfileRequest) -> ProfileRequest:
    from hopsml.errors import ArgumentError
    from hopsml.storage import profile_request

    deadline = time.monotonic() + wish.seconds + 2 * profile_request.PATIENCE_S
    while True:
        newest = profile_request.read(directory)
        if newest is None or newest.id != wish.id:
            who = newest.by if newest is not None else "somebody"
            raise ArgumentError(f"{who} has asked for another profile at the same moment, and was later; ask again")
        if not newest.is_open:
            return newest
        if directory.read_status() is not None:
            raise ArgumentError(f"run {directory.run_id} has ended before its worker was looked at")
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"run {directory.run_id}: its driver has not answered; it is frozen or gone, or of an older version"
            )
        time.sleep(POLL_S)
