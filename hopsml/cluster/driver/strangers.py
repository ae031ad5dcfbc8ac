"""Strangers that do not even speak TLS are counted too, and ``websockets`` writes no log of its own."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from hopsml.delivery import logger_aside

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


def websocket_log() -> logging.Logger:
    """A logger for ``websockets``, of whose words only trouble is news."""
    logger = logging.Logger("hopsml.coordinator.websocket", logging.WARNING)
    logger.addHandler(_Aside())
    return logger


class _Aside(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if log.isEnabledFor(record.levelno):
            log.handle(record)
