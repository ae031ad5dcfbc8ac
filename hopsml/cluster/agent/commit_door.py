"""How agents hand each other the training state: a TLS server on each agent that holds a commit, and its client.

Neither HDFS nor the coordinator is on the way. The server shows a certificate of its own, which the coordinator told
the client; the client shows the application's token first. One request a connection: 43 bytes of token, the step, whether
a newer one does as well; the answer is a length (-1: not here), the step, the content, and a byte that says whether it
stayed as it was all the while: whoever trains writes further commits.
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
STALL_S = 10.0  # a peer that sends or takes nothing for so long is gone


@dataclass(frozen=True)
class FoundCommit:
    """A commit that an agent holds."""

    step: int
    content: memoryview
    is_whole: Callable[[], bool]  # whether nobody has written over it meanwhile


class CommitDoor:
    """Serves the newest commit of this agent."""

    def __init__(self, token: str, find: Callable[[int, bool], FoundCommit | None]) -> None:
        """``find``: the commit of a step, or where that is asked for one of a later step; None where it is not held."""
        self._token, self._find = token.encode(), find
        self._server: Acceptor | None = None
        self.identity: Identity | None = None
        self.port = 0

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> None:
        """Listen on a free port of ``host``, of the range where one is given."""
        self.identity = await asyncio.to_thread(make_identity, "hopsml-agent")
        self._server = Acceptor(with_streams(self._serve), self.identity.context)
        self.port = await self._server.open(host, port_range)

    async def close(self) -> None:
        """Nobody may come any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            pass  # whoever asked is gone
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
    """Get the commit of ``step``, or a newer one, from the agent at ``address``; ``take`` is given position and piece.

    Returns its step and its length. Raises OSError (TimeoutError among them) when the holder is gone, LookupError when it
    does not have that step, InterruptedError when the commit was written over meanwhile.
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
