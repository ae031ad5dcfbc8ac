"""A TCP relay on this machine, by which a server has a second address that can be closed and opened again."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Relay of connections to one port of ``localhost`` to another one."""

    def __init__(self, port: int, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._open: set[socket.socket] | None = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections, and refuse others."""
        with self._lock:
            cut, self._open = self._open or set(), None
        for each in (self._listener, *cut):
            with contextlib.suppress(OSError):  # the other side has ended it
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("localhost", self._target))
            with self._lock:
                is_closed = self._open is None
                if self._open is not None:
                    self._open |= {client, server}
            if is_closed:
                client.close()
                server.close()
                return
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
