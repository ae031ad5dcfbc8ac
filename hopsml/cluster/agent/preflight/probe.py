"""Agent's part of the preflight: measures itself once, and exchanges bytes with its neighbours in the ring.

The exchange shows whether they reach each other, whether all data arrives unchanged, and how fast.

It runs over plain TCP, as the frameworks' collectives do. The client proves that it has the application's token without
sending it, and the answer proves the same of the server:

    server -> client   32 bytes of nonce
    client -> server   HMAC(token, label + nonce), a frame (framing.py) of bytes
    server -> client   HMAC(token, label + nonce + SHA-256 of the bytes), the same frame
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.agent.preflight.measure import measure
from hopsml.cluster.shared.acceptor import Acceptor, Pending, with_streams
from hopsml.cluster.shared.framing import framed, receive_frame
from hopsml.cluster.shared.protocol import Message, PeerProbed, ProbePeer
from hopsml.core import settings

EXCHANGED = 1 << 20  # bytes each way
MOST = 8 << 20
TIMEOUT_S = 3.0
_LABEL = b"hopsml-preflight"
_SIZE = 32


class ProbeServer:
    """Probe server that returns the bytes a neighbour sends; one on each agent, open while the agent lives."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._server: Acceptor | None = None
        self.port = 0

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> None:
        """Listen on a free port of ``host``, within the range if one is given, and set ``port``.

        Raises OSError.
        """
        self._server = Acceptor(with_streams(self._serve, limit=MOST))
        self.port = await self._server.open(host, port_range)

    def close(self) -> None:
        """Stop accepting new connections; may be called if it was never opened."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client within the time limit."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._answer(pending, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client gets an error, too
        finally:
            writer.close()

    async def _answer(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Check the client's proof, then return its bytes with a proof of this agent."""
        nonce = os.urandom(_SIZE)
        writer.write(nonce)
        proof = await reader.readexactly(_SIZE)
        if not hmac.compare_digest(proof, _proof(self._token, nonce)):
            return
        pending.release()
        content = await receive_frame(reader, MOST)
        writer.write(_proof(self._token, nonce + hashlib.sha256(content).digest()) + framed(content))
        await writer.drain()


def _proof(token: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, _LABEL + challenge, "sha256")


async def probe(agent_id: str, address: str, token: str) -> PeerProbed:
    """Exchange bytes with the probe server of another agent, and return the result; it raises nothing.

    Args:
        agent_id: id of that agent.
        address: host:port of its probe server.
        token: the application's token.
    """
    if address.endswith(":0"):
        return PeerProbed(
            agent_id, 0.0, f"{address.rpartition(':')[0]} had no free port for this check: {settings.PORT_NEEDS}"
        )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return PeerProbed(agent_id, await _exchange(address, token.encode()))
    except TimeoutError:
        return PeerProbed(agent_id, 0.0, f"{address} did not answer within {TIMEOUT_S:g} s")
    except asyncio.IncompleteReadError:
        return PeerProbed(agent_id, 0.0, f"{address} hung up")
    except (OSError, ValueError) as error:
        return PeerProbed(agent_id, 0.0, f"{address}: {error}")


async def _exchange(address: str, token: bytes) -> float:
    """Return the MB/s of both directions together.

    Raises:
        ValueError: if other bytes come back than were sent.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=MOST)
    try:
        nonce = await reader.readexactly(_SIZE)
        content = os.urandom(EXCHANGED)
        began = time.monotonic()
        writer.write(_proof(token, nonce) + framed(content))
        answer = await reader.readexactly(_SIZE)
        returned = await receive_frame(reader, MOST)
        took_s = time.monotonic() - began
        if not hmac.compare_digest(answer, _proof(token, nonce + hashlib.sha256(content).digest())):
            raise ValueError("what answers there is no agent of this application, or got other bytes than were sent")
        if returned != content:
            raise ValueError("other bytes came back than were sent")
        return 2 * len(content) / (1 << 20) / max(took_s, 1e-9)
    finally:
        writer.close()


class SelfCheck:
    """Agent's part of the preflight; runs on its event loop, concurrently with its fork server's imports."""

    def __init__(
        self, folder: Path, token: str, send: Callable[[Message], None], port_range: tuple[int, int] | None = None
    ) -> None:
        self._folder, self._token, self._send, self._port_range = folder, token, send, port_range
        self._door = ProbeServer(token)

    async def send_facts(self, host: str, gpu_indices: tuple[int, ...]) -> None:
        """Open the probe server on ``host``, measure this slot, and send the figures."""
        try:
            await self._door.open(host, self._port_range)
        except OSError:
            pass  # its neighbours will detect and report it
        self._send(await asyncio.to_thread(measure, self._folder, host, self._door.port, gpu_indices))

    async def probe_peer(self, message: ProbePeer) -> None:
        """Exchange bytes with the agent named in the message, and send the result."""
        self._send(await probe(message.agent_id, message.address, self._token))

    def close(self) -> None:
        """Close the probe server, if it is open."""
        self._door.close()
