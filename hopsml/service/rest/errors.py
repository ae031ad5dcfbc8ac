"""Conversion of errors to responses: ``{"error": what is wrong, "remedy": what to do}``."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
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

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


LARGEST = 1 << 53  # largest integer that JavaScript represents exactly


def whole_number(request: Request, name: str, default: int, lowest: int = -LARGEST) -> int:
    """Return an integer of the query, or the default if it is absent. Raises ArgumentError."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if not lowest <= value <= LARGEST:
        raise ArgumentError(
            f"{name}={text[:40]!r}: it is a whole number from {lowest} to {LARGEST}; leave it out for {default}"
        )
    return value


def optional_whole_number(request: Request, name: str) -> int | None:
    """Return a non-negative integer of the query, or None if it is absent. Raises ArgumentError."""
    return whole_number(request, name, 0, 0) if request.query_params.get(name) else None


def optional_number(request: Request, name: str) -> float | None:
    """Return a finite number of the query, or None if it is absent. Raises ArgumentError."""
    text = request.query_params.get(name, "")
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise ArgumentError(f"{name}={text[:40]!r}: it is a number; leave it out for none")
    return value


class JsonAnswer(Response):
    """Response of strict JSON, which is not cached, made of any record of ``browse`` or of plain values."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Encode the content as JSON.

        msgspec would write NaN as null, but a diverged loss must be distinguished from a missing one.
        """
        return msgspec.json.encode(_told(msgspec.to_builtins(content)))


def _told(value: Any) -> Any:
    """Replace numbers that are not finite by the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value


log = logging.getLogger("hopsml.service")

RETRY_S = 2  # seconds after which a request may be repeated that a store or the database could not answer

Handler = Callable[["Request", Exception], Awaitable["Response"]]


_STATUS = (
    (ArgumentError, 400), (PathNotFound, 404), (JobNotFound, 404), (PermissionRefused, 403), (StorageError, 503),
    (StoreError, 503), (ServiceError, 409),
)  # fmt: skip


def split_message(message: str) -> tuple[str, str]:
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
        said, remedy = split_message(str(error))
    answer = JsonAnswer({"error": said, "remedy": remedy}, status_code=status_of(error))
    if answer.status_code == 503:
        answer.headers["retry-after"] = str(RETRY_S)
    return answer


async def on_hopsml_error(request: Request, error: Exception) -> Response:
    """Answer a request with an exception that hopsml raised deliberately."""
    return answer_of(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: an unknown address or method, or a body that cannot be read."""
    status, headers = int(getattr(error, "status_code", 500)), dict(getattr(error, "headers", None) or {})
    said, remedy = {
        400: ("the body cannot be read", "send what /api/v1/openapi.json says"),
        404: ("this address does not exist", "open the page at its root"),
        408: ("the body did not arrive in time", "send it without delay, and check that the connection is fast enough"),
        413: ("the body is too long", "send less in one request, and send code as a workspace"),
    }.get(status, ("this cannot be answered", "open the page at its root"))
    if status == 405:
        taken = _taken(request)
        headers["allow"] = ", ".join(taken)
        said = f"this address takes {' and '.join(taken)}, not {request.method[:20]}"
        remedy = f"use one of these methods: {headers['allow']}"
    answer = JsonAnswer({"error": said, "remedy": remedy}, status_code=status)
    answer.headers.update(headers)
    return answer


def _taken(request: Request) -> list[str]:
    """Return all methods of an address; the framework itself lists those of the first matching route only."""
    routes = getattr(request.app.state, "addresses", request.app.routes)
    here = [route for route in routes if isinstance(route, Route) and route.path_regex.match(request.scope["path"])]
    return sorted({method for route in here for method in route.methods or ()} - {"HEAD"})


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception with status 500; its traceback is written to the log."""
    log.exception("a request failed", exc_info=error)
    said = {
        "error": f"{type(error).__name__} in the server",
        "remedy": "see the traceback in the terminal of the server",
    }
    return JsonAnswer(said, status_code=500)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Answer a request whose connection was closed within its body.

    The client does not receive the response; it is for the audit log.
    """
    return JsonAnswer({"error": "the connection ended within the body", "remedy": "send it again"}, status_code=400)


HANDLERS: dict[int | type[Exception], Handler] = {
    HopsmlError: on_hopsml_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    500: on_unexpected_error,
}
