"""Counts requests and their seconds by the template of the address, never by what somebody wrote into it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopsml.serving.metrics import Meter

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_STREAMS = "hopsml_event_streams"


class Metered:
    """An application around all others: it sees what they refuse, too."""

    def __init__(self, app: ASGIApp, meter: Meter, templates: Mapping[Any, str]) -> None:
        """``meter``: that of the event loop; ``templates``: of the addresses, by what answers there."""
        self._app, self._meter, self._templates = app, meter, templates
        meter.add(_STREAMS, 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, streams = time.perf_counter(), 500, False

        async def sending(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                streams = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
                self._meter.add(_STREAMS, float(streams))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._answered(scope, status, None if streams else time.perf_counter() - began)

    def _answered(self, scope: Scope, status: int, seconds: float | None) -> None:
        route = self._templates.get(
            scope.get("endpoint"), ""
        )  # nobody has asked an address where it was refused before
        method = scope["method"] if scope["method"] in _METHODS else "other"
        labels = f'route="{route}",method="{method}"'
        self._meter.add(f'hopsml_http_requests_total{{{labels},status="{status}"}}')
        if seconds is None:
            self._meter.add(_STREAMS, -1.0)
        else:
            self._meter.observe("hopsml_http_request_seconds", seconds, BOUNDS_S, labels)
