"""HTTP servers that authenticate clients by Kerberos as Hadoop's do: tickets verified by libgssapi, then a cookie."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_uint32, c_void_p
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hopsml.core import gssapi

PAGE = b"<html><head><title>Error 401</title></head><body><h2>HTTP ERROR 401 Authentication required</h2></body></html>"
Headers = dict[str, str]
Reply = Callable[[str, str], tuple[int, Headers, bytes]]


def accept(token: bytes) -> tuple[str, bytes]:
    """Return the client's principal, and the token that proves the service's identity; GssError for an invalid token.

    The service's key is in the keytab of ``KRB5_KTNAME``.
    """
    library, minor = ctypes.CDLL(gssapi.LIBRARY), c_uint32()
    context, client = c_void_p(), c_void_p()
    sent, name, taken = gssapi._Buffer(), gssapi._Buffer(), gssapi._Buffer.of(token)
    for function in (library.gss_accept_sec_context, library.gss_display_name, library.gss_release_name):
        function.restype = c_uint32
    library.gss_accept_sec_context.argtypes = (
        POINTER(c_uint32), POINTER(c_void_p), c_void_p, c_void_p, c_void_p, POINTER(c_void_p), c_void_p, c_void_p,
        c_void_p, c_void_p, c_void_p,
    )  # fmt: skip
    library.gss_display_name.argtypes = (POINTER(c_uint32), c_void_p, c_void_p, c_void_p)
    try:
        major = library.gss_accept_sec_context(
            byref(minor), byref(context), None, byref(taken), None, byref(client), None, byref(sent), None, None, None
        )
        gssapi._check(major, minor)
        gssapi._check(library.gss_display_name(byref(minor), client, byref(name), None), minor)
        return ctypes.string_at(name.value, name.length).decode(), ctypes.string_at(sent.value, sent.length)
    finally:
        for buffer in (sent, name):
            library.gss_release_buffer(byref(minor), byref(buffer))
        library.gss_delete_sec_context(byref(minor), byref(context), None)
        library.gss_release_name(byref(minor), byref(client))


@dataclass
class SpnegoServer:
    """State of one server.

    Attributes:
        reply: answer to an authenticated request, by method and path: status, headers, body.
        proof: "own": the server proves its identity, "none": it does not, "wrong": with another token.
        cookies: valid cookies; a test clears them as if they had expired.
        clients: principal of each token that was accepted.
        seen: method, path and header fields of each request.
    """

    reply: Reply
    proof: str = "own"
    sets_cookie: bool = True
    address: str = ""
    cookies: set[str] = field(default_factory=set)
    clients: list[str] = field(default_factory=list)
    seen: list[tuple[str, str, Headers]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, method: str, path: str, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
        """Return the answer to one request."""
        self.seen.append((method, path, headers))
        cookie = re.search(r'hadoop\.auth="([^"]*)"', headers.get("Cookie", ""))
        if cookie and cookie[1] in self.cookies:
            self.bodies.append(body)
            return self.reply(method, path)
        kind, _, token = headers.get("Authorization", "").partition(" ")
        challenge = {"WWW-Authenticate": "Negotiate", "Content-Type": "text/html"}
        if kind != "Negotiate":
            return 401, challenge, PAGE
        try:
            client, proof = accept(base64.b64decode(token))
        except gssapi.GssError:
            return 401, challenge, PAGE
        self.clients.append(client)
        self.bodies.append(body)
        status, more, content = self.reply(method, path)
        if self.proof != "none":
            sent = proof if self.proof == "own" else b"not a token of this service"
            more["WWW-Authenticate"] = f"Negotiate {base64.b64encode(sent).decode()}"
        if self.sets_cookie:
            value = f"u={client.partition('@')[0]}&t=kerberos&e={next(self._numbers)}"
            self.cookies.add(value)
            more["Set-Cookie"] = f'hadoop.auth="{value}"; Path=/; HttpOnly'
        return status, more, content


@contextlib.contextmanager
def spnego_server(reply: Reply, *, host: str = "localhost", **options: Any) -> Iterator[SpnegoServer]:
    """Run a server at a name or address of this machine; ``options`` are those of ``SpnegoServer``."""
    state = SpnegoServer(reply, **options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(iter(self._chunk, b""))
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = state.answer(self.command, self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = do_DELETE = do_GET

        def _chunk(self) -> bytes:
            data = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return data

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"{host}:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
