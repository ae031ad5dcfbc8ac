"""Answers at a port of this machine's own until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
from collections.abc import Callable

from hopsml import extras
from hopsml.errors import ArgumentError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DRAIN_S = 3  # for answers that are on their way when the server ends
_NEEDS = ("starlette", "uvicorn")


def check_installed() -> None:
    """ArgumentError where something is missing that the page's server needs."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"hopsml ui needs {', '.join(missing)}: {extras.install('service')}")


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ArgumentError for a host other than this one, and for a port that is taken."""
    if host not in LOOPBACK:
        raise ArgumentError(
            f"host={host!r}: the page has no users and no encryption, so it listens at {LOOPBACK[0]} alone; from another "
            "machine reach it through ssh -L or a notebook's proxy"
        )
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"port={port}: a port is a number from 0, for any that is free, to 65535")
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ArgumentError(
            f"port={port}: cannot listen there ({error.strerror}); name another one, or 0 for any"
        ) from error
    return listener


def address(listener: socket.socket, token: str) -> str:
    """What to open in a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"


def serve(project_url: str, listener: socket.socket, token: str, ready: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM; ``ready`` is called when answers are given. Raises StorageError at the start."""
    asyncio.run(_serve(project_url, listener, token, ready))


async def _serve(project_url: str, listener: socket.socket, token: str, ready: Callable[[], None]) -> None:
    import uvicorn

    from hopsml.service.browse.changes import Changes
    from hopsml.service.browse.project import Project
    from hopsml.service.rest.application import application
    from hopsml.service.rest.event_stream import Broadcaster

    project = Project(project_url)
    project.runs.refresh()
    told = Broadcaster(Changes(project))
    config = uvicorn.Config(
        application(project, token, told),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # they are handled here

    async def end() -> None:
        await told.end()  # streams have no end of their own
        server.should_exit = True

    ending: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: ending.add(loop.create_task(end())))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        ready()
    await serving
