"""Small HTTP server process that serves one file, directly and by the WebHDFS calls for reading."""

from __future__ import annotations

import contextlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CONTENT = b"what is in the file"
STATUS = {
    "type": "FILE", "length": len(CONTENT), "modificationTime": 0, "accessTime": 0, "owner": "o", "group": "g",
    "permission": "644", "replication": 1, "blockSize": 1,
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers at once, as long as the process is not stopped."""

    def do_HEAD(self) -> None:
        self._answer(200, b"", len(CONTENT))

    def do_GET(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if query.get("op") == "GETFILESTATUS":
            body = json.dumps({"FileStatus": STATUS}).encode()
        elif given:
            return self._answer(206, CONTENT[int(given[1]) : int(given[2]) + 1])
        else:
            offset = int(query.get("offset", 0))
            body = CONTENT[offset : offset + int(query.get("length", len(CONTENT)))]
        return self._answer(200, body)

    def _answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the client has given up
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
