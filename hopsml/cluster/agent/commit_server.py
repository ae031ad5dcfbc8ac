"""Transfer of the training state between agents: a TLS server on each agent that holds a commit, and its client.

Neither HDFS nor the coordinator is involved. The server presents its certificate, which the client has received from
the coordinator; the client sends the application's token first. There is one request per connection: 43 bytes of token,
the step, and whether a newer one is accepted. The answer is a length (-1: not held), the step, the content, and a byte
that is 0 if the content changed during the transfer, since the training continues to write commits.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hopsml.cluster.shared.acceptor import Acceptor, Pending, with_streams
from hopsml.cluster.shared.tls import Identity, make_identity

_REQUEST = struct.Struct("<43sq?")
_ANSWER = struct.Struct("<qq")
_END = struct.Struct("<?")
CHUNK = 1 << 20
STALL_S = 10.0  # seconds without any transfer after which a peer is considered gone


@dataclass(frozen=True)
class FoundCommit:
    """Commit that an agent holds in memory, with its step and content."""

    step: int
    content: memoryview
    is_whole: Callable[[], bool]  # True if the content has not been overwritten since


class CommitServer:
    """TLS server that sends the newest commit of this agent."""

    def __init__(self, token: str, find: Callable[[int, bool], FoundCommit | None]) -> None:
        """Create the server; it does not listen yet.

        Args:
            token: the application's token, which clients must send.
            find: returns the commit of a step, or of a later one if its second argument is True; None if it is not
                held.
        """
        self._token, self._find = token.encode(), find
        self._server: Acceptor | None = None
        self.identity: Identity | None = None
        self.port = 0

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> None:
        """Listen on a free port of ``host``, within the range if one is given."""
        self.identity = await asyncio.to_thread(make_identity, "hopsml-agent")
        self._server = Acceptor(with_streams(self._serve), self.identity.context)
        self.port = await self._server.open(host, port_range)

    async def close(self) -> None:
        """Stop accepting new connections; transfers in progress continue."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            request = await asyncio.wait_for(reader.readexactly(_REQUEST.size), STALL_S)
            token, step, or_newer = _REQUEST.unpack(request)
            if not hmac.compare_digest(token, self._token):
                return
            pending.release()
            found = self._find(step, or_newer)
            writer.write(_ANSWER.pack(len(found.content), found.step) if found is not None else _ANSWER.pack(-1, step))
            if found is not None:
                for start in range(0, len(found.content), CHUNK):
                    writer.write(found.content[start : start + CHUNK])
                    await asyncio.wait_for(writer.drain(), STALL_S)
                writer.write(_END.pack(found.is_whole()))
            await asyncio.wait_for(writer.drain(), STALL_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client has disconnected
        finally:
            writer.close()


async def fetch(
    address: str,
    certificate: str,
    token: str,
    step: int,
    take: Callable[[int, bytes], Awaitable[None]],
    *,
    or_newer: bool = False,
) -> tuple[int, int]:
    """Fetch the commit of ``step`` from another agent; return its step and its length in bytes.

    Args:
        address: host:port of the agent's commit server.
        certificate: PEM; the only one that is trusted.
        token: the application's token.
        step: number of the commit.
        take: called with the position and the bytes of each piece.
        or_newer: True to accept a newer commit.

    Raises:
        OSError: the agent has gone; TimeoutError if it stopped sending.
        LookupError: the agent does not hold that step.
        InterruptedError: the commit was overwritten during the transfer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=certificate)
    host, _, port = address.rpartition(":")
    connecting = asyncio.open_connection(host.strip("[]"), int(port), ssl=context, limit=4 * CHUNK)
    reader, writer = await asyncio.wait_for(connecting, STALL_S)
    try:
        writer.write(_REQUEST.pack(token.encode(), step, or_newer))
        length, found = _ANSWER.unpack(await asyncio.wait_for(reader.readexactly(_ANSWER.size), STALL_S))
        if length < 0:
            raise LookupError(f"the agent at {address} does not hold the commit of step {step}")
        position = 0
        while position < length:
            piece = await asyncio.wait_for(reader.read(min(CHUNK, length - position)), STALL_S)
            if not piece:
                raise ConnectionError(f"the agent at {address} went away after {position} of {length} bytes")
            await take(position, piece)
            position += len(piece)
        if not _END.unpack(await asyncio.wait_for(reader.readexactly(_END.size), STALL_S))[0]:
            raise InterruptedError(f"the agent at {address} holds a newer commit than that of step {found} by now")
        return int(found), int(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError(f"the agent at {address} went away") from error
    finally:
        writer.close()
