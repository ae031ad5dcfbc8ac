"""Errors as a page gets them: ``{"error": what is wrong, "remedy": what to do}``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.routing import Match, Route

from hopsml.errors import (
    ArgumentError,
    HopsmlError,
    JobFileError,
    JobNotFound,
    PathNotFound,
    PermissionRefused,
    ServiceError,
    StorageError,
    StoreError,
)
from hopsml.service.rest.json_answer import JsonAnswer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("hopsml.service")

FILES = "/{name:path}"  # where the page's files lie: anywhere that nothing else does
Handler = Callable[["Request", Exception], Awaitable["Response"]]


_STATUS = (
    (ArgumentError, 400), (PathNotFound, 404), (JobNotFound, 404), (PermissionRefused, 403), (StorageError, 503),
    (StoreError, 503), (ServiceError, 409),
)  # fmt: skip


def split(message: str) -> tuple[str, str]:
    """What is wrong and what helps: our messages say it in this order, after the last semicolon, or the first colon."""
    for mark in ("; ", ": "):
        error, found, remedy = message.rpartition(mark) if mark == "; " else message.partition(mark)
        if found:
            return error, remedy
    return message, ""


def status_of(error: Exception) -> int:
    """The status of HTTP for an error of ours."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


async def on_known(request: Request, error: Exception) -> Response:
    """Answer an error that hopsml raised on purpose."""
    if isinstance(error, JobFileError):  # a line for each mistake, with its own remedy
        said, remedy = str(error), "correct the job file, and submit it again"
    else:
        said, remedy = split(str(error))
    return JsonAnswer({"error": said, "remedy": remedy}, status_code=status_of(error))


def methods(request: Request) -> list[str]:
    """What the address of a request takes; nothing where only the page's files could lie there."""
    routes = getattr(request.app.state, "addresses", request.app.routes)
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.path != FILES and route.matches(request.scope)[0] != Match.NONE:
            found |= route.methods or set()
    return sorted(found - {"HEAD"})


async def on_http(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: an address or a method that is not there."""
    status = int(getattr(error, "status_code", 500))
    if status == 405 and (taken := methods(request)):
        said = {"error": f"this address takes {' and '.join(taken)}, not {request.method[:20]}"}
        said["remedy"] = f"send {' or '.join(taken)}"
        answer = JsonAnswer(said, status_code=status)
        answer.headers["allow"] = ", ".join(taken)
        return answer
    words = {404: "there is nothing at this address", 405: "there is nothing at this address that could be changed"}
    said = {"error": words.get(status, "this cannot be answered"), "remedy": "open the page at its root"}
    return JsonAnswer(said, status_code=status)


async def on_unknown(request: Request, error: Exception) -> Response:
    """Answer a mistake of this program without its traceback, which goes to the log."""
    log.exception("a request failed", exc_info=error)
    said = {"error": f"{type(error).__name__} in the server", "remedy": "its terminal has the traceback"}
    return JsonAnswer(said, status_code=500)


HANDLERS: dict[int | type[Exception], Handler] = {HopsmlError: on_known, 404: on_http, 405: on_http, 500: on_unknown}
