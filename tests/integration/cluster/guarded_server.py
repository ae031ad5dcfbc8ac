"""Server without authentication on Python's sockets: ``guarded_server CONFIG WILDCARD [WORD ...]``.

It prints what prevents the guard, and its address. For each input line it accepts one connection, and prints the peer's
port and, with "secret=WORDS", the bytes that it can read. "other": it listens on another port; "fork":
in a fork of the guarded process; "sealed": without permission to query the kernel; "execute": a program that it
executes listens.
"""

from __future__ import annotations

import _socket
import ctypes
import json
import os
import select
import socket
import struct
import subprocess
import sys

from hopsml.cluster.worker import server_guard


def listen(wildcard: str, port: int) -> socket.socket:
    """As TensorFlow's does, on every interface."""
    listener = socket.socket(socket.AF_INET6 if ":" in wildcard else socket.AF_INET)
    if ":" in wildcard:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((wildcard, port))
    listener.listen()
    return listener


def seal() -> None:
    """Refuse netlink to this process, as containers' seccomp filters do."""
    socket_call, argument = (41, 16) if os.uname().machine == "x86_64" else (198, 16)
    load, equal, answer = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in (
            (load, 0, 0, 0),
            (equal, 0, 3, socket_call),
            (load, 0, 0, argument),
            (equal, 0, 1, socket.AF_NETLINK),
            (answer, 0, 0, 0x00050000 | 1),  # EPERM
            (answer, 0, 0, 0x7FFF0000),
        )
    )
    memory = ctypes.create_string_buffer(program)
    filters = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(memory))
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, by_filter, filters, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def read(accepted: socket.socket) -> str:
    """Return the data that a non-blocking server can read, or "refused"."""
    accepted.setblocking(False)
    while True:
        try:
            select.select([accepted], [], [])
            return accepted.recvmsg(100)[0].decode()
        except BlockingIOError:
            continue
        except ConnectionError:
            return "refused"


def main(config: str, wildcard: str, words: list[str]) -> None:
    """Guard, listen, and accept for each line of the input."""
    if "sealed" in words:
        seal()
    secret = next((word.partition("=")[2] for word in words if word.startswith("secret=")), "")
    print(server_guard.guard(config, _socket.__file__, secret.encode()), flush=True)
    task = json.loads(config)
    [addresses] = task["cluster"].values()
    port = 0 if "other" in words else int(addresses[task["task"]["index"]].rpartition(":")[2])
    if "execute" in words:
        alone = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}})
        sys.exit(subprocess.run([sys.executable, __file__, alone, wildcard]).returncode)
    if "fork" in words and (child := os.fork()):
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with listen(wildcard, port) as listener:
        print(*listener.getsockname()[:2], flush=True)
        for _ in sys.stdin:
            accepted, peer = listener.accept()
            print(peer[1], *([read(accepted)] if secret else []), flush=True)
            accepted.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
