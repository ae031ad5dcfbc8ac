"""Agent process: the body of one Spark task, or of one local process, that holds one slot for the coordinator.

The agent first starts its fork server, because the framework's import is the longest part of a launch, then connects to
the coordinator and carries out its messages (launch, stop, dismiss). It lives on a lease that the coordinator renews:
if nothing has arrived for ``lease_s`` seconds, or the connection breaks, the agent ends its worker and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.agent.network import Bootstrap, Outbox, connect, decode_bootstrap
from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_server import preload_order
from hopsml.cluster.shared import acceptor, protocol
from hopsml.cluster.shared.framing import read_frame
from hopsml.cluster.shared.worker_events import WorkNote
from hopsml.cluster.worker import server_guard
from hopsml.core import file_locks, processes
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.delegation_tokens import OwnTokenFile, parse
from hopsml.core.platforms import why_not_here
from hopsml.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hopsml.cluster.agent.core_lock import SlotCores
    from hopsml.cluster.agent.gpu_lock import SlotGpus
    from hopsml.cluster.agent.held_commits import HeldCommits
    from hopsml.cluster.agent.network import SlotPorts
    from hopsml.cluster.agent.preflight import SelfCheck
    from hopsml.cluster.agent.sidecar_process import SidecarSlot
    from hopsml.cluster.agent.work import Work

log = nonblocking_logger("hopsml.agent")  # a local agent shares the driver's stderr, which may be an unread pipe

HEARTBEAT_S = 1.0
AGAIN_LEASES = 2  # for which a replacement agent retries
DRAIN_S = 10.0  # seconds after SIGTERM for the worker to leave its group at a commit
LOCK = "agent.lock"
RELEASE_FLUSH_S = 30.0  # seconds for storing the last files of a run that this agent has left
LAST_MESSAGE_BYTES = 4096
MOST_REASON = 120  # bytes of the reason in a WebSocket close frame (RFC 6455, section 5.5)
DISMISSED = "dismissed"  # prefix of the exit reason of an agent that the coordinator has dismissed
NEVER_JOINED = "could not join: "  # prefix of the exit reason of an agent that was never admitted
WORKERS_NEED = (
    "workers need Linux",
    "submit to a cluster (hopsml submit --profile ...) or to a job service (hopsml jobs submit), or use a Linux container",
)


def run_agent(
    bootstrap: Bootstrap,
    index: int,
    executor_id: str = "",
    gpu_addresses: tuple[str, ...] = (),
    task: int = -1,
    final: bool = False,
    is_again: bool = False,
) -> str:
    """Run an agent until it ends, and return the reason as text.

    It raises nothing, because Spark would count a failed task.

    Args:
        bootstrap: settings sent by the driver.
        index: number of the requested slot.
        executor_id: Spark's id of the executor; "" for a local agent.
        gpu_addresses: GPU addresses that Spark has assigned.
        task: Spark's number for this attempt of the task; -1 for a local agent.
        final: True if this is Spark's last attempt of the task.
        is_again: True if an earlier agent in this slot was cut off. The cause may persist for a while, so this agent
            retries the connection for two leases.
    """
    if problem := why_not_here(*WORKERS_NEED) or acceptor.open_files_problem():
        return f"{NEVER_JOINED}{problem}"
    processes.die_with_parent(os.getppid())
    processes.write_no_core_dumps()
    # protects child processes that Spark started in this process earlier
    fork_client.exempt_from_killing(processes.children_of(os.getpid()))
    agent: Agent | None = None
    with contextlib.ExitStack() as undo:
        try:
            folder, lock = _own_folder()
            undo.callback(os.close, lock)
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            tokens = None
            if bootstrap.has_tokens:  # before the fork server starts, which passes the variable with the file's name on
                tokens = OwnTokenFile(folder)
                undo.callback(tokens.close)
            processes.become_subreaper()  # orphans of a killed fork server become children of the agent
            undo.callback(processes.stop_being_subreaper)  # Spark may use this process again
            server = fork_client.start_process(bootstrap.preload, bootstrap.zygote_for(bootstrap.preload))
            patience_s = AGAIN_LEASES * bootstrap.lease_s if is_again else 0.0
            agent = Agent(bootstrap, index, executor_id, gpu_addresses, folder, task, final, patience_s)
            agent.tokens = tokens
            last_message = asyncio.run(agent.work_for_coordinator(server))
            return (
                last_message if agent.joined or last_message.startswith(DISMISSED) else f"{NEVER_JOINED}{last_message}"
            )
        except Exception as error:  # noqa: BLE001 see above
            has_joined = agent is not None and agent.joined
            return f"{'' if has_joined else NEVER_JOINED}{type(error).__name__}: {error}"


def folder_prefix(pid: int | str) -> str:
    """Return the prefix of the name of an agent's scratch folder.

    Others find and delete a killed agent's folder by it.
    """
    return f"hopsml-agent-{pid}-"


def _own_folder() -> tuple[Path, int]:
    """Create a scratch folder and lock it; return both."""
    scratch = Path(_scratch() or tempfile.gettempdir())
    file_locks.delete_abandoned_folders(scratch, f"{folder_prefix('*')}*", LOCK)
    return file_locks.make_locked_folder(scratch, LOCK, folder_prefix(os.getpid()))


def _scratch() -> str | None:
    """Return Spark's scratch folder, which Spark deletes; None where there is none."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if first and os.path.isdir(first) else None


class Agent:
    """Holder of one slot, with at most one worker at a time."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        index: int,
        executor_id: str,
        gpu_addresses: tuple[str, ...],
        folder: Path,
        task: int = -1,
        final: bool = False,
        patience_s: float = 0.0,
    ) -> None:
        self.task, self.final, self.patience_s = task, final, patience_s
        self.bootstrap, self.index, self.executor_id = bootstrap, index, executor_id
        self.gpu_addresses, self.folder = gpu_addresses, folder
        self.host = ""
        self.ended = ""
        self.joined = False  # True once the coordinator has admitted it
        self.lease_s, self.clock_shift_s = bootstrap.lease_s, 0.0
        self.last_message_at = time.monotonic()
        self.formations: dict[tuple[str, int], protocol.Formation] = {}
        self.work: Work | None = None
        self.commits: HeldCommits | None = None  # of the elastic run that this agent works for
        self.kept: Work | None = None  # the run's last generation here, whose folders the next one reuses
        self.sidecars: SidecarSlot | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.outbox = Outbox()
        self.server: fork_client.ForkClient
        self.tokens: OwnTokenFile | None = None
        self.ports: SlotPorts | None = None
        self.gpus: SlotGpus | None = None
        self.cores: SlotCores
        self.check: SelfCheck | None = None
        self.warned, self.given_up = False, asyncio.Event()  # both set by SIGTERM

    async def work_for_coordinator(self, started: fork_client.Started) -> str:
        """Connect and serve the coordinator until dismissed, disconnected or out of lease; return the reason."""
        from hopsml.cluster.agent.gpu_lock import acquire_slot_gpus

        self.server = fork_client.ForkClient(self.bootstrap.preload, *started)
        try:
            # Before connecting: locking GPUs may take longer than the coordinator waits for the first message.
            self.gpus = await asyncio.to_thread(acquire_slot_gpus, self.gpu_addresses, self.bootstrap.gpus)
            async with await connect(self.bootstrap, self.patience_s, self._on_data) as connected:
                await self._serve(connected)
        finally:
            await self._end()
        return self.ended or "connection closed"

    def _on_data(self) -> None:
        """Renew the lease by any received byte: a large message takes a while to arrive."""
        self.last_message_at = time.monotonic()

    async def _serve(self, connected: ClientConnection) -> None:
        """Announce this agent, then send, receive and heartbeat until one of these ends."""
        from hopsml.cluster.agent.core_lock import SlotCores
        from hopsml.cluster.agent.network import SlotPorts
        from hopsml.cluster.agent.preflight import SelfCheck
        from hopsml.cluster.agent.sidecar_process import SidecarSlot

        self.host = self.bootstrap.host or connected.local_address[0]
        self.ports = SlotPorts(self.host, self.bootstrap.port_range)
        self.sidecars = SidecarSlot(self.folder, self.host, self.bootstrap.port_range, self.outbox.put, self._spawn)
        self.cores = SlotCores(self.bootstrap.cores)
        self.outbox.put(self._hello())
        self._spawn(self._announce_server(self.server))
        self.check = SelfCheck(self.folder, self.bootstrap.token, self.outbox.put, self.bootstrap.port_range)
        assert self.gpus is not None
        self._spawn(self.check.send_facts(self.host, self.gpus.indices))
        pumps = [
            asyncio.create_task(self._send_all(connected)),
            asyncio.create_task(self._receive_all(connected)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self.given_up.wait()),
        ]
        done, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            if error := task.exception():
                self.ended = self.ended or f"{type(error).__name__}: {error}"
        await connected.close(reason=self.ended.encode()[:MOST_REASON].decode(errors="ignore"))

    def _hello(self) -> protocol.Hello:
        """Return the first message: addresses and devices of this agent."""
        assert self.gpus is not None and self.ports is not None
        return protocol.Hello(
            version=protocol.VERSION,
            request_id=self.bootstrap.request_id,
            index=self.index,
            host=self.host,
            port=self.ports.held.framework.port,
            collective_port=self.ports.held.collective.port,
            hostname=socket.gethostname(),
            executor_id=self.executor_id or f"{self.host}/{self.index}",
            pid=os.getpid(),
            gpu_indices=self.gpus.indices,
            gpu_bus_ids=self.gpus.bus_ids,
            topology=self.gpus.topology,
            slot=self.index,
            task=self.task,
            final=self.final,
            guards=server_guard.are_servers_guarded(),
            node=os.environ.get("NM_HOST", ""),  # set by YARN in each of its containers
        )

    async def _send_all(self, connected: ClientConnection) -> None:
        while True:
            await connected.send(await self.outbox.take())

    async def _receive_all(self, connected: ClientConnection) -> None:
        """Handle the coordinator's messages until one of them ends this agent."""
        async for frame in connected:
            self.last_message_at = time.monotonic()
            self._on_message(protocol.decode_for_agent(frame if isinstance(frame, bytes) else frame.encode()))
            if self.ended:
                return

    async def _beat(self) -> None:
        """Send heartbeats and check the helper processes until the lease has expired."""
        while time.monotonic() - self.last_message_at < self.lease_s:
            await asyncio.sleep(min(HEARTBEAT_S, self.lease_s / 4))
            self.outbox.put(protocol.Heartbeat())
            if self.sidecars is not None:
                self.sidecars.check_health()
            if self.work is not None:
                if (status := self.work.status()) is not None:
                    self.outbox.put(status)
                self.work.recover_stopped_processes()
            elif problem := self.server.check_health(is_needed=True):
                log.warning("%s", problem)
        self.ended = f"no message from the coordinator for {self.lease_s:g} s"

    async def _end(self) -> None:
        """Kill all that still runs, at once: its recipient has gone or does not need it.

        Files that the store has refused are left on this host.
        """
        works = [work for work in (self.work, self.kept) if work is not None]
        try:
            if self.sidecars is not None:
                await self.sidecars.close()
            for task in self.tasks:
                task.cancel()
            await self.server.close()
            if self.check is not None:
                self.check.close()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            if self.sidecars is not None:
                self.sidecars.close_spare()
            for work in works:
                await work.tree.close(0.0)
                rescued = work.tree.fails and work.last_files.rescue(work.formation, work.launch)
                if rescued:
                    log.warning("files of %s that are not on shared storage are in %s", work.key[0], rescued)
            if self.commits is not None:
                await self.commits.close()
        finally:  # Spark may reuse this process, and its next agent needs the same GPU and ports
            if self.ports is not None:
                self.ports.close()
            if self.gpus is not None and self.gpus.lock is not None:
                self.gpus.lock.close()

    def _on_message(self, message: object) -> None:
        """Carry out one message of the coordinator."""
        match message:
            case protocol.Welcome():
                self.lease_s, self.joined = message.lease_s, True
                self.clock_shift_s = message.clock_shift_s(time.time())
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._warned)
            case protocol.Renew():
                pass
            case protocol.DelegationTokens():
                self._use_tokens(message.data)
            case protocol.MessagesTaken():
                self.outbox.record_handled(message.size)
            case protocol.Preload():
                self._preload(message.modules)
            case protocol.ProbePeer():
                if self.check is not None:
                    self._spawn(self.check.probe_peer(message))
            case protocol.Formation():
                self.formations = {(message.run_id, message.generation): message}
            case protocol.Launch():
                self._launch(message)
            case protocol.ReconfigureInPlace():
                self._mend(message)
            case protocol.Pause():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.pause(message)
            case protocol.DriverMessage():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.send_to_worker(message.data)
            case protocol.LogTaken():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.record_log_acknowledged(message.size)
            case protocol.TakeProfile():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.profile(message)
            case protocol.PauseAtCommit():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.end_after_current_work()
                if self.commits is not None and self.commits.run_id == message.run_id:
                    self.commits.slots.must_pause = True
            case protocol.Persist():
                self._spawn(self._persist(message))
            case protocol.Stop():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.stop(message.grace_s, message.flush_s, message.keep, message.dump)
            case protocol.Release():
                self._spawn(self._release(message.run_id))
            case protocol.Dismiss():
                self.ended = f"{DISMISSED}: {message.reason}"

    def _use_tokens(self, data: bytes) -> None:
        """Replace the token file, which storage clients read at each new connection; an error leaves the old one."""
        if self.tokens is None:
            return
        try:
            self.tokens.replace(parse(data))
        except (OSError, ArgumentError) as error:
            log.warning("new delegation tokens could not be stored: %s", error)

    def _warned(self) -> None:
        """Handle SIGTERM: announce draining and exit after ``DRAIN_S`` seconds; at the second SIGTERM, exit at once.

        The worker leaves the group at its next commit, and the coordinator then dismisses this agent.
        """
        if self.warned:
            self._give_up("SIGTERM, twice")
            return
        self.warned = True
        self.outbox.put(protocol.Draining("its agent was sent SIGTERM", DRAIN_S))
        asyncio.get_running_loop().call_later(DRAIN_S, self._give_up, f"SIGTERM, {DRAIN_S:g} s ago")

    def _give_up(self, reason: str) -> None:
        """End this agent with the given reason."""
        self.ended = self.ended or reason
        self.given_up.set()

    def _preload(self, modules: tuple[str, ...]) -> None:
        """Replace the fork server by one that has imported these modules in addition, or only these if it is broken."""
        if self.work is not None or (set(modules) <= set(self.server.modules) and not self.server.broken):
            return
        kept = () if self.server.broken else self.server.modules
        wanted = preload_order((*kept, *modules))
        old, self.server = self.server, self._new_server(wanted)
        self._spawn(old.close())
        self._spawn(self._announce_server(self.server))

    def _new_server(self, modules: tuple[str, ...]) -> fork_client.ForkClient:
        return fork_client.ForkClient(modules, *fork_client.start_process(modules, self.bootstrap.zygote_for(modules)))

    async def _announce_server(self, server: fork_client.ForkClient) -> None:
        """Report the fork server's imports once they are done."""
        try:
            await server.ready
        except ConnectionError:
            return  # the launch meets the same error and reports it
        self.outbox.put(protocol.ForkServerReady(server.modules))

    def _launch(self, launch: protocol.Launch) -> None:
        """Start the worker of a generation, or refuse it with a reason."""
        from hopsml.cluster.agent import worker_files
        from hopsml.cluster.agent.work import Work
        from hopsml.cluster.shared.gpus import environment_for

        assert self.ports is not None and self.sidecars is not None
        formation = self.formations[(launch.run_id, launch.generation)]
        if self.server.broken:
            self.server = self._new_server(self.server.modules)
        kept, self.kept = self.kept, None
        if self.commits is not None and not launch.has_commit:
            self.commits.forget()
        work = Work(
            formation,
            launch,
            send=self.outbox.put,
            room=self.outbox.wait_for_room,
            folder=self.folder / launch.run_id if formation.spec.group.changes else self.folder / f"{launch.run_id}-g0",
            environment=environment_for(launch.gpu_indices),
            cores=self.cores,
            sys_path=self.bootstrap.sys_path,
            tree=kept.tree if kept is not None and kept.key[0] == launch.run_id else None,
            commits=self._commits_for(formation),
            sidecar=self.sidecars.start_for(formation),
            clock_shift_s=self.clock_shift_s,
        )
        conflict = worker_files.environment_conflict(formation)
        if conflict:
            work.fail_before_start(conflict)
        self.work = work
        try:
            if self.ports.assign(formation):
                self.outbox.put(protocol.PortsHeld(self.ports.held.framework.port, self.ports.held.collective.port))
        except RunError as error:
            work.fail_before_start(str(error))
        self._spawn(self._run(work))

    def _mend(self, message: protocol.ReconfigureInPlace) -> None:
        """Reconfigure the worker in place."""
        if self.work is None or self.work.key[0] != message.run_id:
            return  # its worker has ended since, which is reported separately
        self.work.reconfigure_in_place(message)
        self.formations = {self.work.key: self.work.formation}

    def _commits_for(self, formation: protocol.Formation) -> HeldCommits | None:
        """Return the commits of an elastic run, with the pause flag and the progress reset; None for other runs."""
        from hopsml.cluster.agent.held_commits import HeldCommits

        if not formation.spec.group.regroups:
            return None
        if self.commits is None or self.commits.run_id != formation.run_id:
            folder, token = self.folder / formation.run_id, self.bootstrap.token
            self.commits = HeldCommits(formation.run_id, folder, token, self.outbox.put)
            self._spawn(self._open_door(self.commits))
        self.commits.slots.must_pause, self.commits.slots.progress = False, -1
        return self.commits

    async def _open_door(self, commits: HeldCommits) -> None:
        """Open the commit server, and announce its port and certificate."""
        try:
            await commits.door.open(self.host, self.bootstrap.port_range)
        except OSError as error:
            text = f"other agents cannot fetch commits from {self.host}: {error.strerror or error}"
            log.warning(text)
            if self.work is not None:
                self.outbox.put(protocol.WorkerUpdate(*self.work.key, WorkNote(text)))
            return
        if commits.door.identity is not None:
            self.outbox.put(protocol.CommitServerReady(commits.door.port, commits.door.identity.certificate))

    async def _release(self, run_id: str) -> None:
        """Finish a run that has no further generation here: store its last files, free its commits' memory."""
        commits, kept = self.commits, self.kept
        assert self.ports is not None and self.sidecars is not None
        self.ports.release_of(run_id)
        self.sidecars.release(run_id)
        if commits is not None and commits.run_id == run_id:
            self.commits = None
        if kept is not None and kept.key[0] == run_id:
            self.kept = None
            if commits is not None and kept.launch.rank == 0:
                await commits.persist_last(kept.formation)
            await kept.last_files.release(kept.formation, kept.launch, RELEASE_FLUSH_S)
        if commits is not None and commits.run_id == run_id:
            await commits.close()

    async def _persist(self, message: protocol.Persist) -> None:
        """Store the newest commit, retrying without a limit: this agent leaves and no other agent holds it."""
        commits = self.commits
        formation = next((one for (run_id, _), one in self.formations.items() if run_id == message.run_id), None)
        if commits is not None and commits.run_id == message.run_id and formation is not None:
            await commits.persist_last(formation, float("inf"))

    async def _run(self, work: Work) -> None:
        """Run the worker to its end, and release its ports."""
        try:
            await work.run(self.server)
        finally:
            work.release_resources()
            if self.ports is not None:
                self.ports.release_after_worker()
            if self.work is work:
                self.work = None
            if work.keep:
                self.kept = work

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; it is cancelled at the agent's end."""
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def main() -> None:
    """Run a local agent: read the bootstrap from standard input, whose end of file indicates the driver's death.

    ``sys.argv`` holds the agent's index and the descriptor of a pipe to which it writes the reason of its end.
    """
    index, last_message = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(last_message, False)
    bootstrap = decode_bootstrap(read_frame(sys.stdin.buffer))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver as well, which ends its agents
    # exit by an exception, so that folders are deleted and processes ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reason = run_agent(bootstrap, index)
    os.write(last_message, reason.encode()[:LAST_MESSAGE_BYTES])
    if not reason.startswith(DISMISSED):
        sys.exit(f"hopsml agent {index} ended: {reason}")


if __name__ == "__main__":
    main()
