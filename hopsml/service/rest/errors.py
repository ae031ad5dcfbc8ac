"""Conversion of errors to responses: ``{"error": what is wrong, "remedy": what to do}``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

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

RETRY_S = 2  # seconds after which a request may be repeated that a store or the database could not answer

Handler = Callable[["Request", Exception], Awaitable["Response"]]


_STATUS = (
    (ArgumentError, 400), (PathNotFound, 404), (JobNotFound, 404), (PermissionRefused, 403), (StorageError, 503),
    (StoreError, 503), (ServiceError, 409),
)  # fmt: skip


def split(message: str) -> tuple[str, str]:
    """Split a message into the problem and its remedy.

    Messages of hopsml have them in this order, separated by the last semicolon, or else by the first colon.
    """
    for mark in ("; ", ": "):
        error, found, remedy = message.rpartition(mark) if mark == "; " else message.partition(mark)
        if found:
            return error, remedy
    return message, ""


def status_of(error: Exception) -> int:
    """Return the HTTP status of an exception of hopsml; 500 for others."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def answer_of(error: Exception) -> JsonAnswer:
    """Return the response to an exception that hopsml raised deliberately."""
    if isinstance(error, JobFileError):  # a line for each mistake, with its own remedy
        said, remedy = str(error), "correct the job file, and submit it again"
    else:
        said, remedy = split(str(error))
    answer = JsonAnswer({"error": said, "remedy": remedy}, status_code=status_of(error))
    if answer.status_code == 503:
        answer.headers["retry-after"] = str(RETRY_S)
    return answer


async def on_known(request: Request, error: Exception) -> Response:
    """Answer a request with an exception that hopsml raised deliberately."""
    return answer_of(error)


async def on_http(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: an unknown address or method, or a body that cannot be read."""
    status, headers = int(getattr(error, "status_code", 500)), dict(getattr(error, "headers", None) or {})
    said, remedy = {
        400: ("the body cannot be read", "send what /api/v1/openapi.json says"),
        404: ("there is nothing at this address", "open the page at its root"),
        408: ("the body did not come in time", "send it at once, and see that the connection is fast enough"),
        413: ("the body is too long", "send less at once, and code as a workspace"),
    }.get(status, ("this cannot be answered", "open the page at its root"))
    if status == 405:
        taken = _taken(request)
        headers["allow"] = ", ".join(taken)
        said = f"this address takes {' and '.join(taken)}, not {request.method[:20]}"
        remedy = f"send one of those that it takes: {headers['allow']}"
    answer = JsonAnswer({"error": said, "remedy": remedy}, status_code=status)
    answer.headers.update(headers)
    return answer


def _taken(request: Request) -> list[str]:
    """Return all methods of an address; the framework itself lists those of the first matching route only."""
    routes = getattr(request.app.state, "addresses", request.app.routes)
    here = [route for route in routes if isinstance(route, Route) and route.path_regex.match(request.scope["path"])]
    return sorted({method for route in here for method in route.methods or ()} - {"HEAD"})


async def on_unknown(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception with status 500; its traceback is written to the log."""
    log.exception("a request failed", exc_info=error)
    said = {"error": f"{type(error).__name__} in the server", "remedy": "its terminal has the traceback"}
    return JsonAnswer(said, status_code=500)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Answer a request whose connection was closed within its body.

    The client does not receive the response; it is for the audit log.
    """
    return JsonAnswer({"error": "the connection ended within the body", "remedy": "send it again"}, status_code=400)


HANDLERS: dict[int | type[Exception], Handler] = {
    HopsmlError: on_known,
    HTTPException: on_http,
    ClientDisconnect: on_disconnect,
    500: on_unknown,
}
