"""Proxy that serves another server below a path prefix, as a notebook's does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextmanager
def prefixed(address: str, prefix: str) -> Iterator[str]:
    """Run the proxy during the block and yield the address below the prefix."""
    target = urlsplit(address)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # also of other methods, see below
            if not self.path.startswith(prefix + "/"):
                self.send_error(404)
                return
            upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=30)
            passed = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            upstream.request(self.command, self.path.removeprefix(prefix), body or None, headers=passed)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            try:
                while data := answer.read1(65536):
                    self.wfile.write(data)
            except OSError:  # the browser has disconnected
                pass
            upstream.close()

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}/?{target.query}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
