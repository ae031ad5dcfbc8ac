"""Receiver of OpenTelemetry spans: a small server that decodes OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One span; ``attributes`` are without the prefix, ``pid`` is of the process that sent it."""

    name: str
    trace: str
    id: str
    parent: str
    begin_s: float
    end_s: float
    problem: str
    pid: int
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """Spans received so far."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        """Return spans of this name, in the order of their starts."""
        return sorted((one for one in self.spans if one.name == name), key=lambda one: one.begin_s)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Yield a receiver that listens until the end of the block."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.paths.append(self.path)
            found.spans += decoded(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def decoded(body: bytes) -> Iterator[Received]:
    """Return the spans of one request."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
        of_process = _values(sent.resource.attributes)
        assert of_process["service.name"] == "hopsml"
        for scope in sent.scope_spans:
            for span in scope.spans:
                yield Received(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                    span.status.message,
                    int(of_process["process.pid"]),
                    {key.removeprefix("hopsml."): value for key, value in _values(span.attributes).items()},
                )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
