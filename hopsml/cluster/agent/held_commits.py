"""Commits of one elastic run on its agent: retained between workers, fetched, served, written to shared storage.

Neither HDFS nor the coordinator is involved in a transfer: the server presents its certificate, which the client has
received from the coordinator, and the client sends the application's token first. There is one request per connection:
43 bytes of token, the step, and whether a newer one is accepted. The answer is a length (-1: not held), the step, the
content, and a byte that is 0 if the content changed during the transfer, since the training continues to write commits.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import shutil
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.shared.acceptor import Acceptor, Pending, with_streams
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.shared.protocol import CommitSource, Formation, Persisted
from hopsml.cluster.shared.tls import Identity, make_identity
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.storage.backoff import Outage, pause_s
from hopsml.storage.run_dir import step_name

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
        """Stop accepting connections, and close those that have not sent the token; transfers in progress continue."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            request = await asyncio_wait_for(reader.readexactly(_REQUEST.size), STALL_S)
            token, step, or_newer = _REQUEST.unpack(request)
            if not hmac.compare_digest(token, self._token):
                return
            pending.release()
            found = self._find(step, or_newer)
            writer.write(_ANSWER.pack(len(found.content), found.step) if found is not None else _ANSWER.pack(-1, step))
            if found is not None:
                for start in range(0, len(found.content), CHUNK):
                    writer.write(found.content[start : start + CHUNK])
                    await asyncio_wait_for(writer.drain(), STALL_S)
                writer.write(_END.pack(found.is_whole()))
            await asyncio_wait_for(writer.drain(), STALL_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client has disconnected
        finally:
            writer.close()


async def fetch_commit(
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
    reader, writer = await asyncio_wait_for(connecting, STALL_S)
    try:
        writer.write(_REQUEST.pack(token.encode(), step, or_newer))
        length, found = _ANSWER.unpack(await asyncio_wait_for(reader.readexactly(_ANSWER.size), STALL_S))
        if length < 0:
            raise LookupError(f"the agent at {address} does not hold the commit of step {step}")
        position = 0
        while position < length:
            piece = await asyncio_wait_for(reader.read(min(CHUNK, length - position)), STALL_S)
            if not piece:
                raise ConnectionError(
                    f"the connection to the agent at {address} broke after {position} of {length} bytes"
                )
            await take(position, piece)
            position += len(piece)
        if not _END.unpack(await asyncio_wait_for(reader.readexactly(_END.size), STALL_S))[0]:
            raise InterruptedError(f"the agent at {address} now holds a newer commit than that of step {found}")
        return int(found), int(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError(f"the connection to the agent at {address} broke") from error
    finally:
        writer.close()


DESCRIPTION = "checkpoint.json"
KEEP_CHECKPOINTS = 3
OBTAIN_ATTEMPTS = 5
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0  # seconds, while the training continues
LAST_RETRY_S = 5.0  # seconds, while the end of the run or of a node waits

Tell = Callable[[Persisted], None]


class HeldCommits:
    """Commits of one run on one agent; used on the agent's event loop."""

    def __init__(self, run_id: str, folder: Path, token: str, tell: Tell) -> None:
        """Create the memory and the commit server, which does not listen yet.

        Args:
            run_id: id of the run.
            folder: scratch folder; commits that do not fit in memory are stored below it.
            token: the application's token.
            tell: called with the outcome of each attempt to write a checkpoint.
        """
        self.run_id, self.folder, self._tell = run_id, folder, tell
        self._token = token
        self.slots = CommitSlots.create(folder / "commits")
        self.step, self.slot = -1, -1
        self.door = CommitServer(token, self._find)
        self._persisted = -1
        self._committed: set[int] = set()  # steps of the checkpoints that this agent has written and that still exist
        self._persisted_at = time.monotonic()
        self._problem = ""  # why the newest commit could not be written
        self._persisting: asyncio.Task[bool] | None = None
        self._one_at_a_time, self._closed = asyncio.Lock(), False
        self._outage = Outage(FIRST_RETRY_S, LONGEST_RETRY_S)

    def record_commit(self, step: int, slot: int) -> None:
        """Record that the worker has completed a commit."""
        self.step, self.slot = step, slot

    def forget(self) -> None:
        """Discard the held commit: the next generation does not start from it."""
        self.step, self.slot = -1, -1
        self._persisted = -1  # the next one may have a lower step, if the newest checkpoint is corrupt

    def _find(self, step: int, or_newer: bool) -> FoundCommit | None:
        """Return the held commit if it is that of ``step``, or a newer one if accepted."""
        held, slot = self.step, self.slot
        if held < step or (held > step and not or_newer):
            return None
        try:
            return FoundCommit(held, self.slots.read(slot), lambda: self.slots.step(slot) == held)
        except LookupError:
            return None

    async def close(self) -> None:
        """Close the server and free the memory, once a checkpoint that is being written is complete."""
        self._closed = True
        async with self._one_at_a_time:  # waits for a write in progress
            await self.door.close()
            self.slots.close()
        shutil.rmtree(self.folder / "commits", ignore_errors=True)

    # ------------------------------------------------------------------------------------------ from another agent

    async def fetch_starting_commit(self, formation: Formation) -> None:
        """Fetch the commit from which the generation starts.

        A newcomer prepares while the others continue to commit, so any newer commit is accepted as well.

        Raises:
            OSError: the agent that holds the commit cannot be reached; the text names it.
            LookupError: that agent does not hold the commit any more.
        """
        commit, attempts = formation.commit, OBTAIN_ATTEMPTS if formation.joins else 1
        while commit.step >= 0:
            attempts -= 1
            try:
                return await self._obtain(commit, formation.joins)
            except InterruptedError:
                if not attempts:
                    raise

    async def _obtain(self, commit: CommitSource, or_newer: bool) -> None:
        """Fetch a commit from another agent into a free slot."""
        slot = self.slots.find_free_slot(self.slot)
        self.slots.prepare_slot(
            slot, in_memory=True
        )  # else a file that a worker has left on disk would be read instead
        self.slots.mark_incomplete(slot)

        async def take(position: int, piece: bytes) -> None:
            await asyncio.to_thread(self.slots.put, slot, position, piece)

        asked = commit.holder, commit.certificate, self._token, commit.step
        step, length = await fetch_commit(*asked, take, or_newer=or_newer)
        self.slots.mark_complete(slot, step, length)
        self.record_commit(step, slot)

    # ------------------------------------------------------------------------------------------ to shared storage

    def persist_if_due(self, formation: Formation) -> None:
        """Start writing the newest commit to shared storage if the last checkpoint is old enough.

        The training continues during the write. After a failure the store is retried later, at growing intervals.
        """
        now, every_s = time.monotonic(), formation.spec.group.checkpoint_interval_s
        due = now - self._persisted_at >= every_s and (self._persisting is None or self._persisting.done())
        if due and self._outage.may_try(now, every_s):
            self._persisting = asyncio.create_task(self._persist(formation))

    async def persist_last(
        self, formation: Formation, patience_s: float = 0.0, cut: asyncio.Event | None = None
    ) -> None:
        """Write the newest commit to shared storage at the end, however recent the last checkpoint is.

        Args:
            formation: of the generation.
            patience_s: seconds for which a store that fails is retried.
            cut: event that ends the retries early, also during a write.
        """
        deadline, attempts = time.monotonic() + patience_s, 0
        cutting = asyncio.create_task((cut or asyncio.Event()).wait())
        try:
            while True:
                writing = asyncio.create_task(self._persist(formation))
                await asyncio.wait({writing, cutting}, return_when=asyncio.FIRST_COMPLETED)
                if not writing.done() or writing.result():
                    return
                attempts += 1
                pause = pause_s(attempts, FIRST_RETRY_S / 2, LAST_RETRY_S)
                if (left := deadline - time.monotonic()) <= 0:
                    return
                await asyncio.wait({cutting}, timeout=min(pause, left))
        finally:
            cutting.cancel()

    def rescue_last(self, base: Path | None) -> list[str]:
        """Write the newest commit to a local folder if it is not on shared storage.

        Args:
            base: local copy of the run directory, which gets the checkpoint; None: the checkpoint has no place.

        Returns:
            The checkpoint's path in the run directory with the reason; empty if it is stored.
        """
        step, slot = self.step, self.slot
        if self._closed or step <= self._persisted:
            return []
        target = Path("checkpoints", step_name(step))
        missing = [f"{target}: {self._problem or 'it was not written in time'}"]
        if base is None:
            return missing
        try:
            content = self.slots.read(slot)
            (base / target).mkdir(parents=True, exist_ok=True)
            self._fill(base / target, content, step)
        except (OSError, LookupError) as error:
            missing[0] += f"; it could not be left on this host either: {error}"
        return missing

    async def _persist(self, formation: Formation) -> bool:
        """Write the newest commit; return False if another attempt may succeed."""
        async with self._one_at_a_time:
            return await self._persist_newest(formation)

    async def _persist_newest(self, formation: Formation) -> bool:
        """Write the newest commit and report the outcome; return False if another attempt may succeed."""
        from hopsml.errors import StorageError
        from hopsml.storage.run_dir import RunEnded

        step, slot, began = self.step, self.slot, time.monotonic()
        if self._closed or step <= self._persisted:
            return True
        self.slots.pin(slot, True)
        try:
            await asyncio.to_thread(self._write_checkpoint, formation, step, slot)
        except LookupError:  # the worker has written a newer commit, which this agent has not read yet
            return False
        except OSError as error:
            self._outage.record_failure(time.monotonic(), formation.spec.group.checkpoint_interval_s)
            self._problem = str(error)
            self._tell(Persisted(self.run_id, step, problem=str(error), missed=self._outage.missed))
            # No retry after a full local disk either, as that will not have been emptied by then.
            return isinstance(error, RunEnded) or not isinstance(error, StorageError)
        finally:
            self.slots.pin(slot, False)
        self._persisted, self._persisted_at, self._problem = step, time.monotonic(), ""
        missed = self._outage.record_success()
        self._tell(Persisted(self.run_id, step, seconds=self._persisted_at - began, missed=missed))
        return True

    def _write_checkpoint(self, formation: Formation, step: int, slot: int) -> None:
        """Copy a commit into a checkpoint on shared storage, and delete old ones."""
        from hopsml.storage import checkpoints
        from hopsml.storage.run_dir import RunDir

        directory = RunDir(formation.run_url, formation.spec.storage_timeout_s)
        directory.check_not_ended()  # this agent may have been disconnected while another driver resumed the run
        stage = self.folder / "checkpoint"
        stage.mkdir(parents=True, exist_ok=True)
        try:
            content = self.slots.read(slot)
            self._fill(stage, content, step)
            if self.slots.step(slot) != step:
                raise LookupError("the commit was overwritten while it was read")
            checkpoints.commit(stage, directory.checkpoints, step, formation.spec.storage_timeout_s)
            self._committed.add(step)
            timeout_s = formation.spec.storage_timeout_s
            gone = checkpoints.prune(directory.checkpoints, KEEP_CHECKPOINTS, timeout_s, self._committed, latest=step)
            self._committed.difference_update(gone)
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    @staticmethod
    def _fill(folder: Path, content: memoryview, step: int) -> None:
        """Write a commit into a checkpoint's folder."""
        from hopsml.storage import checkpoints

        (folder / checkpoints.STATE_FILE).write_bytes(content)
        (folder / DESCRIPTION).write_text(json.dumps({"step": step, "kind": "elastic", "id": os.urandom(8).hex()}))
