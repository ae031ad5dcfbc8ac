"""Agent's part of the preflight: measures itself once, and exchanges bytes with its neighbours in the ring.

The exchange shows whether they reach each other, whether all data arrives unchanged, and how fast.
Measurements of the slot (limits, disk, versions, GPUs) take tens of milliseconds and raise nothing.

The exchange runs over plain TCP, as the frameworks' collectives do. The client proves that it has the application's
token without sending it, and the answer proves the same of the server:

    server -> client   32 bytes of nonce
    client -> server   HMAC(token, label + nonce), a frame (framing.py) of bytes
    server -> client   HMAC(token, label + nonce + SHA-256 of the bytes), the same frame
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from hopsml.cluster.agent.gpu_state import gpu_facts, needed_cuda
from hopsml.cluster.shared.acceptor import Acceptor, Pending, with_streams
from hopsml.cluster.shared.framing import framed, receive_frame
from hopsml.cluster.shared.protocol import Message, PeerProbed, PreflightFacts, ProbePeer
from hopsml.cluster.worker import server_guard
from hopsml.core import ownership, settings
from hopsml.core.newer_python import asyncio_timeout

MB = 1 << 20
WRITE_BYTES = 4 * MB
WRITE_CHUNK = MB // 2
FIRST_PERSON, NOBODY = 1000, 65534  # uids; lower ones are system services
WRITE_MOST_S = 0.5  # seconds after which a slow disk has been detected
CORE_TURNS = 12  # the best one counts: other load makes some slow, a throttled core makes all slow
# Members of one group exchange data by these; a State contains the formats of numpy and keras.
FRAMEWORKS = ("tensorflow", "tensorflow-cpu", "keras", "torch", "jax", "numpy")


def measure(folder: Path, host: str, door: int, gpu_indices: Sequence[int]) -> PreflightFacts:
    """Measure the slot's properties that the preflight rules evaluate.

    Args:
        folder: scratch folder of the agent.
        host: address of the agent.
        door: port of its probe server.
        gpu_indices: GPUs of the slot.
    """
    write_mb_s, disk_problem = write_speed(folder)
    return PreflightFacts(
        host=host,
        door=door,
        folder=str(folder),
        open_files=_limit(resource.RLIMIT_NOFILE),
        stack_mb=_in_mb(_limit(resource.RLIMIT_STACK)),
        shared_memory_mb=_free_mb("/dev/shm"),
        disk_mb=_free_mb(folder),
        write_mb_s=write_mb_s,
        disk_problem=disk_problem,
        versions=versions(),
        gpus=gpu_facts(gpu_indices),
        needed_cuda=needed_cuda() if gpu_indices else 0,
        core_mb_s=core_speed(),
        others=other_users(),
        guards=server_guard.are_servers_guarded(),
        clock=time.time(),  # last, as it is compared with the clock of the receiver
    )


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _in_mb(size: int) -> float:
    return size / MB if size >= 0 else -1.0


def _free_mb(folder: Path | str) -> float:
    """Return the MB that this user may use; 0 if there is no such folder."""
    try:
        return shutil.disk_usage(folder).free / MB
    except OSError:
        return 0.0


def write_speed(folder: Path) -> tuple[float, str]:
    """Return the MB/s of writing a file with fdatasync, and the error text, or ""."""
    path = folder / "preflight"
    chunk, written, began = os.urandom(WRITE_CHUNK), 0, time.monotonic()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while written < WRITE_BYTES and time.monotonic() - began < WRITE_MOST_S:
                if (count := os.write(descriptor, chunk)) == 0:
                    raise OSError("no byte was written")
                written += count
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return 0.0, f"{error.strerror or error} after {written / MB:.1f} MB"
    finally:
        path.unlink(missing_ok=True)
    return written / MB / max(time.monotonic() - began, 1e-6), ""


def other_users(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the names of other users who have processes on this host, without root and system users.

    A container shows only its own processes, and /proc mounted with hidepid only those of this user.
    """
    owners = set()
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            try:
                owners.add(entry.stat().st_uid)
            except OSError:  # it has ended
                continue
    owners -= {os.geteuid(), os.getuid()}
    return tuple(sorted(ownership.name_of_user(uid) for uid in owners if FIRST_PERSON <= uid != NOBODY))


def core_speed() -> float:
    """Return the MB/s of SHA-256 on one core, as a measure of computing speed that needs no library."""
    block = bytes(MB)
    best = min(_seconds_to_hash(block) for _ in range(CORE_TURNS))
    return 1.0 / max(best, 1e-6)


def _seconds_to_hash(block: bytes) -> float:
    began = time.perf_counter()
    hashlib.sha256(block).digest()
    return time.perf_counter() - began


def versions() -> dict[str, str]:
    """Return the installed versions of Python, hopsml and the frameworks, without importing these."""
    found = {"python": platform.python_version(), "hopsml": str(sys.modules["hopsml"].__version__)}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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
            async with asyncio_timeout(TIMEOUT_S):
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
        async with asyncio_timeout(TIMEOUT_S):
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
            raise ValueError(
                "the process that answers there is not an agent of this application, or received other "
                "bytes than were sent"
            )
        if returned != content:
            raise ValueError("other bytes were received than were sent")
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
