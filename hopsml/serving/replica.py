"""Replica process of a serving: ``python -m hopsml.serving.replica FOLDER NUMBER LISTENER CONTROL PARENT``.

LISTENER is the listening socket that all replicas share, CONTROL the connection to the supervisor, PARENT the
supervisor's pid: the replica ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.acceptor import Acceptor, log_once_per_kind
from hopsml.cluster.shared.http_connections import accepting
from hopsml.core import redact
from hopsml.core.metrics import Counts
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.core.processes import die_with_parent, write_no_core_dumps
from hopsml.model.flavors import contract
from hopsml.serving.application import RestApplication
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.loaded_versions import LoadedVersions
from hopsml.serving.messages import (
    DrainNow,
    FollowRoute,
    JsonLinesConnection,
    ReplicaAlive,
    RouteActivated,
    RouteRejected,
    SendCounts,
    ServedVersion,
    ServingSettings,
    ToReplica,
    TotalCounts,
    TotalCountsRequest,
    decode_settings,
)
from hopsml.serving.metrics import ReplicaMeter
from hopsml.serving.receiving import http_server, start_server
from hopsml.serving.request_log import RequestLog
from hopsml.serving.routes import RouteRefused, RouteTookEffect

if TYPE_CHECKING:
    from hopsml.model.flavors.contract import LoadedModel

log = logging.getLogger("hopsml.serving")

ALIVE_S = 1.0
PAUSE_S, MOST_PAUSE_S = 0.0005, 0.005  # pause between two accepted connections, per open connection
TOTAL_TIMEOUT_S = 5.0
PLATFORMS = {"saved_model": "tensorflow_savedmodel"}  # artifact -> name in the protocol, if it differs


class Replica:
    """Body of a replica process: REST application, connection to the supervisor, heartbeats and shutdown."""

    def __init__(
        self, folder: ServingFolder, number: int, settings: ServingSettings, line: JsonLinesConnection
    ) -> None:
        self._line, self._settings = line, settings
        self._versions: dict[int, ServedVersion] = {}
        self._meter = ReplicaMeter()
        self._log = RequestLog(folder.requests, f"{number}-{os.getpid()}") if settings.log_requests else None
        self._holder = LoadedVersions(self._load, settings.limits, self._meter, self._tell)
        self._first = asyncio.Event()  # set when a version answers or the replica ends
        self._acceptor: Acceptor | None = None
        self._totals: list[asyncio.Future[Counts]] = []
        self._application = RestApplication(
            settings.name, self._holder, settings.limits, folder.read_token(), self._meter, self._log, self._total
        )

    async def serve(self, listener: socket.socket) -> None:
        """Answer requests until the supervisor ends the replica or disconnects."""
        server = http_server(self._application)
        tasks = [asyncio.create_task(self._listen(server)), asyncio.create_task(self._beat())]
        await self._first.wait()  # earlier connections go to other replicas, or wait
        if not server.should_exit:
            serving = await start_server(server)
            # After each accepted connection it pauses, longer with more open connections, so that replicas with fewer
            # accept the next one. A server that accepts all waiting connections at once, like asyncio's, leaves none to
            # the other replicas.
            async with accepting(
                server,
                listener,
                refuse=log_once_per_kind(log),
                at_once=1,
                pause_s=lambda: min(MOST_PAUSE_S, PAUSE_S * len(server.server_state.connections)),
            ) as self._acceptor:
                await serving
        for task in tasks:
            task.cancel()
        if self._log is not None:
            self._log.close()

    async def _listen(self, server: Any) -> None:
        """Handle the messages of the supervisor."""
        while True:
            message = await self._line.receive()
            if message is None:
                os._exit(1)  # without a supervisor the replica could not be restarted or ended
            if isinstance(message, FollowRoute):
                self._versions |= message.versions
                self._holder.switch_to(message.route)
            elif isinstance(message, SendCounts):
                self._line.send(ReplicaAlive(self._holder.is_loading, self._counts()))
            elif isinstance(message, TotalCounts):
                for waiting in self._totals:
                    if not waiting.done():
                        waiting.set_result(message.counts)
                self._totals.clear()
            elif isinstance(message, DrainNow):
                server.should_exit = True
                if self._acceptor is not None:
                    self._acceptor.close()  # at once, because the server checks only ten times a second
                self._first.set()

    async def _beat(self) -> None:
        """Send heartbeats with the counts, and flush the request log."""
        while True:
            self._line.send(ReplicaAlive(self._holder.is_loading, self._counts()))
            if self._log is not None:
                self._log.flush()
            await asyncio.sleep(ALIVE_S)

    def _counts(self) -> Counts:
        """Return the current counts of this replica."""
        held = {f'hopsml_version_loaded{{version="{one}"}}': 1.0 for one in self._holder.versions}
        dropped = {} if self._log is None else {"hopsml_log_dropped_total": float(self._log.dropped)}
        now = {
            "hopsml_queue_requests": float(self._holder.waiting_count),
            "hopsml_replicas": float(self._holder.is_ready),
        }
        return {**self._meter.counts, **now, **held, **dropped}

    async def _total(self) -> Counts:
        """Return the counts of all replicas; those of this one if the supervisor does not answer in time."""
        waiting: asyncio.Future[Counts] = asyncio.get_running_loop().create_future()
        self._totals.append(waiting)
        self._line.send(TotalCountsRequest(self._counts()))
        try:
            return await asyncio_wait_for(waiting, TOTAL_TIMEOUT_S)
        except TimeoutError:
            return self._counts()

    def _tell(self, event: RouteTookEffect | RouteRefused) -> None:
        """Report a route that took effect or was refused."""
        if isinstance(event, RouteTookEffect):
            self._line.send(RouteActivated(event.number))
            self._first.set()
        else:
            self._line.send(RouteRejected(event.number, event.reason))

    def _load(self, version: int) -> tuple[LoadedModel, str]:
        """Load a version, and return it with the name of its platform."""
        one = self._versions[version]
        model = contract.load(Path(one.files), one.description)
        artifact = next(name for name in contract.LOADERS if name in one.description.artifacts)
        return model, PLATFORMS.get(artifact, artifact)


async def run(folder: ServingFolder, number: int, listener: socket.socket, control: socket.socket) -> None:
    """Serve as one replica until the end."""
    settings = decode_settings(folder.settings.read_bytes())
    reader, writer = await asyncio.open_connection(sock=control)
    await Replica(folder, number, settings, JsonLinesConnection(reader, writer, ToReplica)).serve(listener)


def main(words: list[str]) -> None:
    """Run the program with its command-line arguments."""
    folder, number, listener, control, parent = words
    die_with_parent(int(parent))
    write_no_core_dumps()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    redact.mask_logger("hopsml")
    with contextlib.closing(socket.socket(fileno=int(listener))) as listening:
        listening.setblocking(False)
        import uvloop

        uvloop.run(run(ServingFolder(Path(folder)), int(number), listening, socket.socket(fileno=int(control))))
    logging.shutdown()
    os._exit(0)  # exits without waiting for a model that never returns


if __name__ == "__main__":
    main(sys.argv[1:])
