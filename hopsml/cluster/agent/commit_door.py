"""How agents hand each other the training state: a TLS server on each agent that holds a commit, and its client.

Neither HDFS nor the coordinator is on the way. The server shows a certificate of its own, which the coordinator told
the client; the client shows the application's token first. One request a connection: 43 bytes of token, the step; the
answer is a length (-1: not here) and the content.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import struct
from collections.abc import Awaitable, Callable

from hopsml.cluster.shared.acceptor import Acceptor, Pending, with_streams
from hopsml.cluster.shared.tls import Identity, make_identity

_REQUEST = struct.Struct("<43sq")
_LENGTH = struct.Struct("<q")
CHUNK = 1 << 20
STALL_S = 10.0  # a peer that sends or takes nothing for so long is gone


class CommitDoor:
    """Serves the newest commit of this agent."""

    def __init__(self, token: str, find: Callable[[int], memoryview | None]) -> None:
        """``find``: the content of the commit of a step, None where it is not held."""
        self._token, self._find = token.encode(), find
        self._server: Acceptor | None = None
        self.identity: Identity | None = None
        self.port = 0

    async def open(self, host: str) -> None:
        """Listen on a free port of ``host``."""
        self.identity = await asyncio.to_thread(make_identity, "hopsml-agent")
        self._server = Acceptor(with_streams(self._serve), self.identity.context)
        self.port = await self._server.open(host)

    async def close(self) -> None:
        """Nobody may come any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readexactly(_REQUEST.size), STALL_S)
            token, step = _REQUEST.unpack(request)
            content = None
            if hmac.compare_digest(token, self._token):
                pending.release()
                content = self._find(step)
            writer.write(_LENGTH.pack(-1 if content is None else len(content)))
            for start in range(0, len(content or b""), CHUNK):
                assert content is not None
                writer.write(content[start : start + CHUNK])
                await asyncio.wait_for(writer.drain(), STALL_S)
            await asyncio.wait_for(writer.drain(), STALL_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # whoever asked is gone
        finally:
            writer.close()
            pending.release()


async def fetch(
    address: str, certificate: str, token: str, step: int, take: Callable[[int, bytes], Awaitable[None]]
) -> int:
    """Get the commit of ``step`` from the agent at ``address``; ``take`` is given position and piece. Returns its length.

    Raises OSError (TimeoutError among them) when the holder is gone, LookupError when it does not have that step.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=certificate)
    host, _, port = address.rpartition(":")
    connecting = asyncio.open_connection(host.strip("[]"), int(port), ssl=context, limit=4 * CHUNK)
    reader, writer = await asyncio.wait_for(connecting, STALL_S)
    try:
        writer.write(_REQUEST.pack(token.encode(), step))
        length = _LENGTH.unpack(await asyncio.wait_for(reader.readexactly(_LENGTH.size), STALL_S))[0]
        if length < 0:
            raise LookupError(f"the agent at {address} does not hold the commit of step {step}")
        position = 0
        while position < length:
            piece = await asyncio.wait_for(reader.read(min(CHUNK, length - position)), STALL_S)
            if not piece:
                raise ConnectionError(f"the agent at {address} went away after {position} of {length} bytes")
            await take(position, piece)
            position += len(piece)
        return int(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError(f"the agent at {address} went away") from error
    finally:
        writer.close()
