"""Strangers that get no further than the door: what fails in TLS or in the HTTP handshake is counted too."""

from __future__ import annotations

import http
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hopsml.delivery import logger_aside

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

Refuse = Callable[[str, str], None]  # kind, what happened

log = logger_aside("hopsml.coordinator")


def watched(context: ssl.SSLContext, refuse: Refuse) -> ssl.SSLContext:
    """The same context; every handshake that fails is told to ``refuse``, because asyncio passes over it in silence."""

    class WatchedHandshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refuse("tls", f"a connection that does not speak TLS as this server does: {error}")
                raise

    context.sslobject_class = WatchedHandshake
    return context


def watched_connection(refuse: Refuse) -> type[ServerConnection]:
    """The server's connection; a handshake that fails is told to ``refuse``. One without the token was already."""
    from websockets.asyncio.server import ServerConnection
    from websockets.protocol import State

    class WatchedConnection(ServerConnection):
        async def handshake(self, *arguments: Any, **named: Any) -> None:
            address = self.remote_address
            try:
                await super().handshake(*arguments, **named)
            finally:
                status = self.response.status_code if self.response is not None else None
                if self.state is not State.OPEN and status != http.HTTPStatus.UNAUTHORIZED:
                    cause = self.protocol.handshake_exc or "no request in time"
                    refuse("handshake", f"{address} does not speak WebSocket: {cause}")

    return WatchedConnection


def websocket_log() -> logging.Logger:
    """A logger for the WebSocket server, which would write a traceback for every handshake that fails."""
    logger = logging.Logger("hopsml.coordinator.websocket", logging.WARNING)
    logger.addHandler(_AllButHandshakes())
    return logger


class _AllButHandshakes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if "handshake" not in record.getMessage() and log.isEnabledFor(record.levelno):
            log.handle(record)
