"""Owners of the processes that listen at a port of this machine, by the kernel's tables of TCP sockets.

A file with the address and the token of a server remains when the server is killed, and every user of the machine can
then listen at its port. A token is therefore sent to such an address only if the listener belongs to this user. The
check follows the connection and precedes the request: whoever listens later does not get this connection.

Without these tables (systems other than Linux, or a kernel that hides them from users) nothing is checked: no other
source tells a process without privileges who has bound a port.
"""

from __future__ import annotations

import functools
import http.client
import os
import re
import socket
import sys
import urllib.request
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, NamedTuple

from hopsml.core.ownership import name_of_user
from hopsml.core.variables import SETTINGS, Settings

Address = IPv4Address | IPv6Address
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
# number, local address and port, remote ones, state, queues, timer, retransmissions, user ID
_LINE = re.compile(
    r" *\d+: (?P<host>[0-9A-F]{8}|[0-9A-F]{32}):(?P<port>[0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} (?P<state>[0-9A-F]{2}) "
    r"\S+ \S+ \S+ +(?P<uid>\d+) "
)
_WORD = 8  # hexadecimal digits of the 32-bit words, in the byte order of the machine, that form an address
_ANY_IPV4, _ANY_IPV6 = IPv4Address("0.0.0.0"), IPv6Address("::")


class ForeignListener(ConnectionRefusedError):
    """Error for a port of this machine at which a process of another user listens; nothing was sent to it."""


class ListeningSocket(NamedTuple):
    """TCP socket that accepts connections.

    Attributes:
        host: Its address; the wildcard address for all addresses of the machine.
        port: Its port.
        uid: User ID of the process that has created it.
    """

    host: Address
    port: int
    uid: int


def parse(table: str, byte_order: str = sys.byteorder) -> list[ListeningSocket]:
    """Return the listening sockets of the text of ``/proc/net/tcp`` or ``/proc/net/tcp6``.

    Args:
        table: The text, with its header.
        byte_order: Byte order of the machine, "little" or "big".
    """
    found = []
    for line in table.splitlines():
        if (fields := _LINE.match(line)) is not None and fields["state"] == _LISTENING:
            digits = fields["host"]
            words = [bytes.fromhex(digits[start : start + _WORD]) for start in range(0, len(digits), _WORD)]
            packed = b"".join(word[::-1] if byte_order == "little" else word for word in words)
            found.append(ListeningSocket(_plain(ip_address(packed)), int(fields["port"], 16), int(fields["uid"])))
    return found


def accepting(listeners: Iterable[ListeningSocket], host: Address, port: int) -> list[ListeningSocket]:
    """Return the listeners that may accept connections to an address.

    A listener at all IPv6 addresses may accept connections to IPv4 addresses, but not beside an IPv4 listener of the
    port: the kernel refuses to bind both. It then accepts IPv6 only, and can be anybody's.
    """
    of_port = [listener for listener in listeners if listener.port == port]
    if host.version == 6:
        return [listener for listener in of_port if listener.host in (host, _ANY_IPV6)]
    found = [listener for listener in of_port if listener.host in (host, _ANY_IPV4)]
    return found or [listener for listener in of_port if listener.host == _ANY_IPV6]


def refuse_foreign(connection: socket.socket, server: str, owner: str = "") -> None:
    """Raise an error if another user's process may have accepted a connection; for use before a token is sent.

    Accepted are this user, root, and the users of ``HOPSML_TRUSTED_OWNERS``. Connections to other machines are not
    checked.

    Args:
        connection: Connected TCP socket.
        server: What is expected at the port, for the message.
        owner: User who runs it, if it may be another user's; empty for this user.

    Raises:
        ForeignListener: A process of another user listens there.
        ConnectionRefusedError: No process listens there any more.
    """
    (host, port), (own_host, _) = _end(connection.getpeername()), _end(connection.getsockname())
    if not host.is_loopback and host != own_host:
        return
    listeners = _read_listeners()
    if listeners is None:
        return
    found = accepting(listeners, host, port)
    if not found:
        raise ConnectionRefusedError(f"no process listens at port {port} any more")
    for uid in {listener.uid for listener in found} - {os.geteuid(), 0}:
        if (name := name_of_user(uid)) not in (owner, *SETTINGS.trusted_owners):
            raise ForeignListener(
                f"a process of user {name} listens at port {port} of this machine instead of {server} of "
                f"{owner or 'this user'}, so no token was sent to it; start the server again, or set "
                f"{Settings.trusted_owners.name}={name} if that user runs it"
            )


class _CheckedConnection(http.client.HTTPConnection):
    """Connection that sends nothing to a process of another user on this machine."""

    def __init__(self, host: str, *, server: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._server = server

    def connect(self) -> None:
        """Connect, and check who listens there."""
        super().connect()
        refuse_foreign(self.sock, self._server)


class OwnServersHandler(urllib.request.HTTPHandler):
    """Handler for requests without TLS that sends nothing to another user's process on this machine.

    With TLS the certificate proves which server it is.
    """

    def __init__(self, server: str) -> None:
        """Initialize the handler; ``server`` is what is expected at the port, for the message."""
        super().__init__()
        self._server = server

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request; raises URLError with the error of ``refuse_foreign`` as reason."""
        return self.do_open(functools.partial(_CheckedConnection, server=self._server), request)


def _read_listeners() -> list[ListeningSocket] | None:
    """Return all listening sockets of this network namespace; None if the system does not show them."""
    texts = []
    for path in _TABLES:
        try:
            texts.append(path.read_text("ascii"))
        except OSError:
            pass
    return [listener for text in texts for listener in parse(text)] if texts else None


def _end(name: tuple[str | int, ...]) -> tuple[Address, int]:
    """Return host and port of one end of a TCP connection, as a socket names it."""
    return _plain(ip_address(str(name[0]).partition("%")[0])), int(name[1])


def _plain(host: Address) -> Address:
    """Return the IPv4 address that an IPv6 address contains, else the address itself."""
    return (host.ipv4_mapped or host) if isinstance(host, IPv6Address) else host
