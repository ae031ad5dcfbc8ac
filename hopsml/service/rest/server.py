"""HTTP server process: listens at a port, and serves an application until it receives a signal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopsml.cluster.shared import http_connections
from hopsml.cluster.shared.acceptor import log_once_per_kind
from hopsml.core import extras
from hopsml.core.platforms import why_not_here
from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopsml.service.rest.event_stream import Broadcaster, Streams


log = logging.getLogger("hopsml.service")

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DRAIN_S = 3  # seconds for responses in progress when the server ends
SWEEP_S = 60.0  # seconds between two removals of cached data that is not used any more
_NEEDS = ("starlette", "uvicorn")


def check_installed(command: str = "hopsml ui", more: tuple[str, ...] = ()) -> None:
    """Raise ArgumentError if the platform is not Linux, or a package that the server needs is not installed.

    Args:
        command: The command, for the message.
        more: Packages that are needed in addition to those of the page.
    """
    if problem := why_not_here(f"{command} needs Linux", "start it on a Linux host, or in a container"):
        raise ArgumentError(problem)
    missing = [name for name in (*_NEEDS, *more) if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"{command} needs {', '.join(missing)}: {extras.install_command('service')}")


def parse_proxies(given: Collection[str]) -> tuple[str, ...]:
    """Return the addresses, or networks, of trusted proxies. Raises ArgumentError for an invalid one."""
    for one in given:
        try:
            ipaddress.ip_network(one, strict=False)
        except ValueError as error:
            raise ArgumentError(
                f"--trusted-proxy {one}: it is the address of a proxy, or its network, such as 10.0.0.5 or 10.0.0.0/24"
            ) from error
    return tuple(given)


def bind_local(host: str, port: int) -> socket.socket:
    """Return a listening socket for the page without users.

    Raises:
        ArgumentError: The host is not a loopback address, or the port is taken.
    """
    if host not in LOOPBACK:
        raise ArgumentError(
            f"host={host!r}: the page has no users and no encryption, so it listens at {LOOPBACK[0]} alone; from another "
            "machine reach it through ssh -L or a notebook's proxy"
        )
    return _listening(host, port)


def bind_public(host: str, port: int, certificate: Certificate | None) -> socket.socket:
    """Return a listening socket of a server with users, which other machines may reach over TLS only.

    Raises:
        ArgumentError: The host is not a loopback address and there is no certificate, or the port is taken.
    """
    if host not in LOOPBACK and certificate is None:
        raise ArgumentError(
            f"host={host!r}: without TLS everybody on the way could read tokens, so it listens at {LOOPBACK[0]} alone; add "
            "--certificate FILE --key FILE, or put a proxy with TLS before it"
        )
    return _listening(host, port)


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ArgumentError for an invalid host or port, or if the port is taken."""
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"port={port}: a port is a number from 0, for any that is free, to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"host={host!r}: there is no such address here; name one of this machine's own") from error
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


def server_url(listener: socket.socket, token: str = "", scheme: str = "http") -> str:
    """Return the URL of the server, with the machine's name if it listens at all addresses.

    Args:
        listener: The listening socket.
        token: A token, which is added to the URL for a browser.
        scheme: The scheme of the URL.
    """
    host, port = listener.getsockname()[:2]
    host = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}/" + (f"?token={token}" if token else "")


def run_page_server(project_url: str, listener: socket.socket, token: str, ready: Callable[[], None]) -> None:
    """Serve the runs of a project until SIGINT or SIGTERM.

    Args:
        project_url: The project.
        listener: The listening socket.
        token: The token that requests must have.
        ready: Called when requests are accepted.

    Raises:
        StorageError: The project cannot be read.
    """
    from hopsml.service.browse.project import Changes, Project
    from hopsml.service.rest.event_stream import Broadcaster
    from hopsml.service.rest.feeds import ProjectFeed
    from hopsml.service.rest.run_routes import application

    project = Project(project_url)
    project.runs.refresh()
    told = Broadcaster(ProjectFeed(Changes(project)))
    asyncio.run(serve_application(application(project, token, told), listener, told, ready, sweep=project.trim))


class _ForwardedScheme:
    """Middleware that accepts the header X-Forwarded-Proto from a proxy on this machine, to mark cookies as secure.

    Any process on this machine can send the header; only the answer to that request depends on it. The caller's address is
    handled elsewhere: limits and the audit log depend on it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] == "http" and (scope.get("client") or ("",))[0] in LOOPBACK:
            for name, value in scope["headers"]:
                if name == b"x-forwarded-proto" and value.strip().lower() == b"https":
                    scope["scheme"] = "https"
        await self._app(scope, receive, send)


async def serve_application(
    app: ASGIApp,
    listener: socket.socket,
    told: Broadcaster | Streams,
    ready: Callable[[], None],
    certificate: Certificate | None = None,
    sweep: Callable[[], None] | None = None,
    trusted_proxies: Collection[str] = (),
) -> None:
    """Serve an application until SIGINT or SIGTERM, which also end its event streams.

    Args:
        app: The application.
        listener: The listening socket.
        told: Event streams to end with the server.
        ready: Called when requests are accepted.
        certificate: Certificate for TLS; None to serve without TLS.
        sweep: Called once a minute, to drop cached data that is not used any more.
        trusted_proxies: Addresses whose X-Forwarded-For header names the client.
    """
    import uvicorn

    config = uvicorn.Config(
        _ForwardedScheme(app),
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    config.load()
    beside = [asyncio.create_task(_sweeping(sweep))] if sweep is not None else []
    context: ssl.SSLContext | None = None
    if certificate is not None:
        context = certificate.context()
        beside.append(asyncio.create_task(reload_when_changed(certificate, context)))
    server = uvicorn.Server(config)
    # signals are handled below
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]

    async def end() -> None:
        await told.end()  # streams do not end by themselves
        server.should_exit = True

    ending: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: ending.add(loop.create_task(end())))
    serving = asyncio.create_task(server.serve(sockets=[]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            async with http_connections.accepting(server, listener, context, log_once_per_kind(log)):
                ready()
                await serving
        await serving
    finally:
        for task in beside:
            task.cancel()


async def _sweeping(sweep: Callable[[], None]) -> None:
    """Call a function every ``SWEEP_S`` seconds, until the task is cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        sweep()


LOOK_S = 1.0  # seconds between two checks of the files


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate, both in PEM format.

    Attributes:
        chain: The server's certificate, and the intermediate ones up to its authority.
        key: The private key.
    """

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a TLS context with the certificate. Raises ArgumentError if the files cannot be used."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.load(made)
        except (OSError, ValueError) as error:  # ssl.SSLError is one of them
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ArgumentError(
                f"--certificate {self.chain} --key {self.key}: they cannot be used ({said}); name a PEM file with the "
                "certificate and one with its key, without a password, which this user may read"
            ) from error
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Load the present content of the files into a context, for new connections."""
        context.load_cert_chain(self.chain, self.key, password=_no_password)

    def file_versions(self) -> tuple[tuple[int, int], ...]:
        """Return modification times and inodes, which change when a file does."""
        return tuple((found.st_mtime_ns, found.st_ino) for found in (os.stat(self.chain), os.stat(self.key)))


def _no_password() -> str:
    """Refuse a key with a password."""
    raise ValueError("the key has a password")  # otherwise OpenSSL would prompt at the terminal


def certificate_of_options(certificate: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate of both options; None without them. Raises ArgumentError if one is missing."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, other = ("--key", "--certificate") if certificate is None else ("--certificate", "--key")
        raise ArgumentError(f"{given} {key or certificate}: a certificate and its key are two files; name {other}, too")
    return Certificate(certificate, key)


async def reload_when_changed(certificate: Certificate, context: ssl.SSLContext, look_s: float = LOOK_S) -> None:
    """Load the certificate again whenever its files change, until the task is cancelled.

    Half of a pair, or invalid content, is logged once and not loaded.

    Args:
        certificate: The files.
        context: The server's TLS context.
        look_s: Seconds between two checks.
    """
    told = certificate.file_versions()
    while True:
        await asyncio.sleep(look_s)
        try:
            now = certificate.file_versions()
        except OSError:
            continue  # while an old file is replaced by a new one
        if now == told:
            continue
        told = now
        try:
            certificate.context()  # loading a pair that does not match would leave the server without a certificate
            certificate.load(context)
            log.info("the certificate %s is renewed", certificate.chain)
        except (ArgumentError, OSError, ValueError) as error:
            log.warning("the certificate before goes on: %s", error)
