"""Middleware that counts requests and their durations by route template, never by values of the URL."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopsml.core.metrics import Meter

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_STREAMS = "hopsml_event_streams"


class Metered:
    """Middleware around all others, so that requests refused by them are counted, too."""

    def __init__(self, app: ASGIApp, meter: Meter, templates: Mapping[Any, str]) -> None:
        """Initialize the middleware.

        Args:
            app: The application inside.
            meter: Metrics of the event loop.
            templates: Route templates, by endpoint.
        """
        self._app, self._meter, self._templates = app, meter, templates
        meter.add(_STREAMS, 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
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
        """Count a request; ``seconds`` is None for an event stream that has ended."""
        route = self._templates.get(scope.get("endpoint"), "")  # empty for a request that was refused before routing
        method = scope["method"] if scope["method"] in _METHODS else "other"
        labels = f'route="{route}",method="{method}"'
        self._meter.add(f'hopsml_http_requests_total{{{labels},status="{status}"}}')
        if seconds is None:
            self._meter.add(_STREAMS, -1.0)
        else:
            self._meter.observe("hopsml_http_request_seconds", seconds, BOUNDS_S, labels)
