"""Errors as a page gets them: ``{"error": what is wrong, "remedy": what to do}``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hopsml.errors import (
    ArgumentError,
    HopsmlError,
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
    said, remedy = split(str(error))
    return JsonAnswer({"error": said, "remedy": remedy}, status_code=status_of(error))


async def on_http(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: an address or a method that is not there."""
    status = int(getattr(error, "status_code", 500))
    said = {404: "there is nothing at this address", 405: "this address is read only"}.get(
        status, "this cannot be answered"
    )
    return JsonAnswer({"error": said, "remedy": "open the page at its root"}, status_code=status)


async def on_unknown(request: Request, error: Exception) -> Response:
    """Answer a mistake of this program without its traceback, which goes to the log."""
    log.exception("a request failed", exc_info=error)
    said = {"error": f"{type(error).__name__} in the server", "remedy": "its terminal has the traceback"}
    return JsonAnswer(said, status_code=500)


HANDLERS: dict[int | type[Exception], Handler] = {HopsmlError: on_known, 404: on_http, 405: on_http, 500: on_unknown}
