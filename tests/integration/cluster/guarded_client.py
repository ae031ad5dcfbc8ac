"""Client that connects and prints its port, until its input ends: ``guarded_client HOST PORT [WORD ...]``.

"source=ADDRESS": from this address; "user=NUMBER": as this user; "closes": sends something and closes at once;
"config=TF_CONFIG": guarded as this task, with "secret=WORDS"; "impatient": with non-blocking connects; "times=N": N times.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
import sys

from hopsml.cluster.worker import server_guard


def main(host: str, port: int, words: dict[str, str]) -> None:
    """Connect, and stay."""
    if config := words.get("config"):
        assert server_guard.guard(config, _socket.__file__, words.get("secret", "").encode()) == ""
    "".encode("idna")  # imported for names of hosts; another user may not be able to read it
    if user := int(words.get("user", 0)):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    source = (words["source"], 0) if "source" in words else None
    timeout_s = 20.0 if "impatient" in words else None  # then Python reads the error, as gRPC does
    connections = [socket.create_connection((host, port), timeout_s, source) for _ in range(int(words.get("times", 1)))]
    print(connections[-1].getsockname()[1], flush=True)
    with contextlib.suppress(ConnectionError):
        connections[-1].sendall(b"read this")
    if "closes" in words:
        for connection in connections:
            connection.close()
        print("closed", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    given = (word.partition("=") for word in sys.argv[3:])
    main(sys.argv[1], int(sys.argv[2]), {name: value for name, _, value in given})
