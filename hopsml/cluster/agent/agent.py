"""The agent: the body of one ordinary Spark task (or of one local process), holding one slot for the coordinator.

It starts its fork server first (the framework's import is the longest part of a launch), then connects, and from then
on does what it is told: launch, stop, dismiss. It lives on a lease that the coordinator renews: when nothing has
arrived for ``lease_s`` seconds, or the connection breaks, it ends its worker and itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster.agent.outbox import Outbox
from hopsml.cluster.forking import fork_client
from hopsml.cluster.shared import open_files, processes, protocol
from hopsml.cluster.shared.framing import read_frame
from hopsml.cluster.shared.preload_order import in_order
from hopsml.cluster.worker import server_guard
from hopsml.delivery import logger_aside
from hopsml.errors import RunError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hopsml.cluster.agent.core_claim import SlotCores
    from hopsml.cluster.agent.gpu_claim import SlotGpus
    from hopsml.cluster.agent.held_commits import HeldCommits
    from hopsml.cluster.agent.network import WorkerPorts
    from hopsml.cluster.agent.preflight.probe import SelfCheck
    from hopsml.cluster.agent.sidecar_process import SidecarProcess
    from hopsml.cluster.agent.sidecar_spare import SidecarSpare
    from hopsml.cluster.agent.work import Work

log = logger_aside("hopsml.agent")  # a local agent's stderr is the driver's, which nobody may be reading

HEARTBEAT_S = 1.0
CONNECT_TIMEOUT_S = 10.0
AGAIN_LEASES, AGAIN_PAUSE_S = 2, 1.0  # how long one that replaces another tries to connect, and how often
CONNECT_TRIES = 2  # of each address: a coordinator may have a thousand agents to let in, and strangers at its door
SPARE_AFTER_S = 0.5  # from the end of a run's sidecar to the start of one for the next run
DRAIN_S = 10.0  # after SIGTERM, for leaving its group at a commit
LOCK = "agent.lock"
RELEASE_FLUSH_S = 30.0  # for the last files of a run that this agent has left
LAST_WORD_BYTES = 4096
MOST_REASON = 120  # bytes of a WebSocket's closing frame (RFC 6455, section 5.5)
DISMISSED = "dismissed"  # how the last word of an agent begins that the coordinator did not want any more
NEVER_JOINED = "could not join: "  # how an agent's last word begins when it has not been of any use


class Bootstrap(msgspec.Struct, frozen=True):
    """What an agent must know before it can connect; it travels in the Spark task's closure."""

    ask: int
    addresses: tuple[tuple[str, int], ...]  # of the coordinator, to be tried in this order
    token: str
    certificate: str  # PEM; the only one that is trusted
    preload: tuple[str, ...]
    lease_s: float
    sys_path: tuple[str, ...]  # of the driver, where it shares the agents' disk
    port_range: tuple[int, int] | None = None
    gpus: int = 0  # to be claimed where Spark assigns none
    bare: bool = False  # it needs no GPU, and touches none
    cores: int = 0  # of a slot, by the cluster's settings
    host: str = ""  # address to bind and to announce; found by trying when empty
    zygote: str = ""  # of the driver, where it shares the agents' machine
    zygote_modules: tuple[str, ...] = ()  # that it imports

    def zygote_for(self, modules: tuple[str, ...]) -> str:
        """Its name, where it imports just these: an import of others may hang, and is no business of theirs."""
        return self.zygote if set(modules) == set(self.zygote_modules) else ""


_bootstrap = msgspec.msgpack.Decoder(Bootstrap)


def decode_bootstrap(data: bytes) -> Bootstrap:
    """The opposite of ``msgspec.msgpack.encode``."""
    return _bootstrap.decode(data)


def run_agent(
    bootstrap: Bootstrap,
    index: int,
    executor_id: str = "",
    gpu_addresses: tuple[str, ...] = (),
    task: int = -1,
    final: bool = False,
    is_again: bool = False,
) -> str:
    """The whole life of an agent; returns why it ended. It raises nothing: Spark would count a failed task.

    ``is_again``: another one was in its place, and cut off. What did that may last a while, so it waits longer to be let in.
    """
    if problem := open_files.problem():
        return f"{NEVER_JOINED}{problem}"
    processes.die_with_parent(os.getppid())
    fork_client.spare(processes.children_of(os.getpid()))  # of whatever Spark has used this process for before
    processes.become_subreaper()  # what a fork server leaves that is killed comes to its agent
    folder, lock = _own_folder()
    server = fork_client.start_process(bootstrap.preload, bootstrap.zygote_for(bootstrap.preload))
    patience_s = AGAIN_LEASES * bootstrap.lease_s if is_again else 0.0
    agent = Agent(bootstrap, index, executor_id, gpu_addresses, folder, task, final, patience_s)
    try:
        last_word = asyncio.run(agent.live(server))
        return last_word if agent.joined or last_word.startswith(DISMISSED) else f"{NEVER_JOINED}{last_word}"
    except Exception as error:  # noqa: BLE001 see above
        return f"{'' if agent.joined else NEVER_JOINED}{type(error).__name__}: {error}"
    finally:
        processes.be_no_subreaper()  # Spark may use this process again
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def folder_prefix(pid: int | str) -> str:
    """How the name of an agent's scratch folder begins, for whoever puts it away after an agent that was killed."""
    return f"hopsml-agent-{pid}-"


def _own_folder() -> tuple[Path, int]:
    """A scratch folder and the lock that says that its agent lives; both end with the agent."""
    scratch = Path(_scratch() or tempfile.gettempdir())
    _sweep(scratch)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=folder_prefix(os.getpid()), dir=scratch))
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():  # else another agent has put it away between these two lines
            return folder, lock
        os.close(lock)


def _sweep(scratch: Path) -> None:
    """Put away what agents left that were killed together with whoever would have tidied up behind them."""
    for left in scratch.glob(f"{folder_prefix('*')}*/{LOCK}"):
        try:
            lock = os.open(left, os.O_RDWR)
        except OSError:  # gone by now, or somebody else's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:
            pass  # its agent lives
        finally:
            os.close(lock)


def _scratch() -> str | None:
    """Spark's scratch folder, which Spark removes; else the system's."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return first if first and os.path.isdir(first) else None


class Agent:
    """One slot; holds at most one worker at a time."""

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
        self.joined = False  # whether the coordinator has welcomed it
        self.lease_s = bootstrap.lease_s
        self.last_word = time.monotonic()
        self.formations: dict[tuple[str, int], protocol.Formation] = {}
        self.work: Work | None = None
        self.commits: HeldCommits | None = None  # of the elastic run that this agent works for
        self.kept: Work | None = None  # its last generation here, whose folders the next one goes on with
        self.sidecar: SidecarProcess | None = None  # of the run that this agent works for
        self.spare: SidecarSpare | None = None  # for the next run that wants one
        self.tasks: set[asyncio.Task[None]] = set()
        self.outbox = Outbox()
        self.server: fork_client.ForkClient
        self.held: WorkerPorts | None = None
        self.worker_ports: WorkerPorts | None = None
        self.address_of = ""  # the run whose member here keeps its address, whatever process it is
        self.gpus: SlotGpus | None = None
        self.cores: SlotCores
        self.check: SelfCheck | None = None
        self.warned, self.given_up = False, asyncio.Event()  # by SIGTERM

    # ------------------------------------------------------------------------------------------------ life

    async def live(self, started: fork_client.Started) -> str:
        """Until dismissed, cut off or out of lease."""
        from hopsml.cluster.agent.gpu_claim import gpus_of_slot

        self.server = fork_client.ForkClient(self.bootstrap.preload, *started)
        try:
            # Before it connects: it may take longer than the coordinator waits for the first word.
            self.gpus = await asyncio.to_thread(gpus_of_slot, self.gpu_addresses, self.bootstrap.gpus)
            async with await self._connect() as connection:
                await self._serve(connection)
        finally:
            await self._end()
        return self.ended or "connection closed"

    async def _connect(self) -> ClientConnection:
        """Raises ConnectionError when no address of the coordinator has answered for as long as it is patient."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return await self._connect_now()
            except ConnectionError:
                if time.monotonic() + AGAIN_PAUSE_S >= deadline:
                    raise
                await asyncio.sleep(AGAIN_PAUSE_S)

    async def _connect_now(self) -> ClientConnection:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidMessage

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate itself is pinned
        context.load_verify_locations(cadata=self.bootstrap.certificate)
        problems = []
        for host, port in self.bootstrap.addresses * CONNECT_TRIES:
            url_host = f"[{host}]" if ":" in host else host
            try:
                return await connect(
                    f"wss://{url_host}:{port}/",
                    ssl=context,
                    additional_headers={"Authorization": f"Bearer {self.bootstrap.token}"},
                    compression=None,
                    max_size=protocol.MAX_TO_AGENT,
                    create_connection=self._heard_of(),
                    ping_interval=None,
                    open_timeout=CONNECT_TIMEOUT_S,
                    proxy=None,
                )
            except (OSError, InvalidMessage) as error:  # the second: cut off while it was let in
                problems.append(f"{host}:{port}: {error}")
        raise ConnectionError(f"no address of the coordinator answers: {'; '.join(problems)}")

    def _heard_of(self) -> type[ClientConnection]:
        """A connection whose every byte is a word of the coordinator's: a large message takes a while to arrive."""
        from websockets.asyncio.client import ClientConnection

        agent = self

        class Heard(ClientConnection):
            def data_received(self, data: bytes) -> None:
                agent.last_word = time.monotonic()
                super().data_received(data)

        return Heard

    async def _serve(self, connection: ClientConnection) -> None:
        from hopsml.cluster.agent import network
        from hopsml.cluster.agent.core_claim import SlotCores
        from hopsml.cluster.agent.preflight.probe import SelfCheck

        self.host = self.bootstrap.host or connection.local_address[0]
        self.held = network.hold_worker_ports(self.host, self.bootstrap.port_range)
        self.cores = SlotCores(self.bootstrap.cores)
        self.outbox.put(self._hello())
        self._spawn(self._announce_server(self.server))
        self.check = SelfCheck(self.folder, self.bootstrap.token, self.outbox.put, self.bootstrap.port_range)
        assert self.gpus is not None
        self._spawn(self.check.tell(self.host, self.gpus.indices))
        pumps = [
            asyncio.create_task(self._send_all(connection)),
            asyncio.create_task(self._receive_all(connection)),
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
        await connection.close(reason=self.ended.encode()[:MOST_REASON].decode(errors="ignore"))

    def _hello(self) -> protocol.Hello:
        assert self.gpus is not None and self.held is not None
        return protocol.Hello(
            version=protocol.VERSION,
            ask=self.bootstrap.ask,
            index=self.index,
            host=self.host,
            port=self.held.framework.port,
            collective_port=self.held.collective.port,
            hostname=socket.gethostname(),
            executor_id=self.executor_id or f"{self.host}/{self.index}",
            pid=os.getpid(),
            gpu_indices=self.gpus.indices,
            gpu_bus_ids=self.gpus.bus_ids,
            topology=self.gpus.topology,
            slot=self.index,
            task=self.task,
            final=self.final,
            guards=server_guard.is_ready(),
            node=os.environ.get("NM_HOST", ""),  # YARN's, in each of its containers
        )

    async def _send_all(self, connection: ClientConnection) -> None:
        while True:
            await connection.send(await self.outbox.take())

    async def _receive_all(self, connection: ClientConnection) -> None:
        async for frame in connection:
            self.last_word = time.monotonic()
            self._on_message(protocol.decode_for_agent(frame if isinstance(frame, bytes) else frame.encode()))
            if self.ended:
                return

    async def _beat(self) -> None:
        while time.monotonic() - self.last_word < self.lease_s:
            await asyncio.sleep(min(HEARTBEAT_S, self.lease_s / 4))
            self.outbox.put(protocol.Heartbeat())
            if self.sidecar is not None:
                self.sidecar.look_after()
            if self.work is not None:
                if (stepped := self.work.stepped()) is not None:
                    self.outbox.put(stepped)
                self.work.look_after_it()
            elif problem := self.server.look_after(is_needed=True):
                log.warning("%s", problem)
        self.ended = f"nothing heard from the coordinator for {self.lease_s:g} s"

    async def _end(self) -> None:
        """Kill what is left at once: whoever waited for it is gone or does not want it."""
        try:
            if self.sidecar is not None:
                await self.sidecar.close()
            for task in self.tasks:
                task.cancel()
            await self.server.close()
            if self.check is not None:
                self.check.close()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            if self.spare is not None:
                self.spare.close()
            for work in (self.work, self.kept):
                if work is not None:
                    await work.tree.close(0.0)
            if self.commits is not None:
                await self.commits.close()
        finally:  # Spark may use this process again, and the next agent in it wants the same GPU, and the same ports
            self._give_ports_back()
            if self.held is not None:
                self.held.close()
            if self.gpus is not None and self.gpus.claim is not None:
                self.gpus.claim.close()

    # ------------------------------------------------------------------------------------------------ messages

    def _on_message(self, message: object) -> None:
        match message:
            case protocol.Welcome():
                self.lease_s, self.joined = message.lease_s, True
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._warned)
            case protocol.Renew():
                pass
            case protocol.MessagesTaken():
                self.outbox.taken(message.size)
            case protocol.Preload():
                self._preload(message.modules)
            case protocol.ProbePeer():
                if self.check is not None:
                    self._spawn(self.check.meet(message))
            case protocol.Formation():
                self.formations = {(message.run_id, message.generation): message}
            case protocol.Launch():
                self._launch(message)
            case protocol.Mend():
                self._mend(message)
            case protocol.Pause():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.pause(message)
            case protocol.Tell():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.tell(message.data)
            case protocol.LogTaken():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.log_taken(message.size)
            case protocol.TakeProfile():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.profile(message)
            case protocol.Park():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.park()
                if self.commits is not None and self.commits.run_id == message.run_id:
                    self.commits.slots.park = True
            case protocol.Persist():
                self._spawn(self._persist(message))
            case protocol.Stop():
                if self.work is not None and self.work.concerns(message.run_id, message.generation):
                    self.work.stop(message.grace_s, message.flush_s, message.keep, message.dump)
            case protocol.Release():
                self._spawn(self._release(message.run_id))
            case protocol.Dismiss():
                self.ended = f"{DISMISSED}: {message.reason}"

    def _warned(self) -> None:
        """SIGTERM: leave the group at its next commit; the coordinator dismisses this agent then. A second one: at once."""
        if self.warned:
            self._give_up("SIGTERM, twice")
            return
        self.warned = True
        self.outbox.put(protocol.Draining("its agent was sent SIGTERM", DRAIN_S))
        asyncio.get_running_loop().call_later(DRAIN_S, self._give_up, f"SIGTERM, {DRAIN_S:g} s ago")

    def _give_up(self, reason: str) -> None:
        self.ended = self.ended or reason
        self.given_up.set()

    def _preload(self, modules: tuple[str, ...]) -> None:
        """Replace the fork server by one that has imported these modules too; a broken one by one with only these."""
        if self.work is not None or (set(modules) <= set(self.server.modules) and not self.server.broken):
            return
        kept = () if self.server.broken else self.server.modules
        wanted = in_order((*kept, *modules))
        old, self.server = self.server, self._new_server(wanted)
        self._spawn(old.close())
        self._spawn(self._announce_server(self.server))

    def _new_server(self, modules: tuple[str, ...]) -> fork_client.ForkClient:
        return fork_client.ForkClient(modules, *fork_client.start_process(modules, self.bootstrap.zygote_for(modules)))

    async def _announce_server(self, server: fork_client.ForkClient) -> None:
        try:
            await server.ready
        except ConnectionError:
            return  # the launch meets it and says so
        self.outbox.put(protocol.ServerReady(server.modules))

    def _launch(self, launch: protocol.Launch) -> None:
        from hopsml.cluster.agent.work import Work
        from hopsml.cluster.shared.gpus import environment_for

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
            room=self.outbox.room,
            folder=self.folder / launch.run_id if formation.spec.group.changes else self.folder / f"{launch.run_id}-g0",
            environment=environment_for(launch.gpu_indices),
            cores=self.cores,
            sys_path=self.bootstrap.sys_path,
            tree=kept.tree if kept is not None and kept.key[0] == launch.run_id else None,
            commits=self._commits_for(formation),
            sidecar=self._sidecar_folder(formation),
        )
        self._have_sidecar(formation)
        conflict = self._conflict(formation)
        if conflict:
            work.refuse(conflict)
        self.work = work
        if self.worker_ports is None or self.address_of != launch.run_id:
            try:
                self._take_ports()
            except RunError as error:
                work.refuse(str(error))
            else:
                # The worker may start a program that forms the group; TensorFlow's own server shares by SO_REUSEPORT.
                if self.worker_ports is not None and formation.spec.framework != "tensorflow":
                    self.worker_ports.framework.share_by_address()
        self.address_of = launch.run_id if formation.spec.group.relaunches else ""
        self._spawn(self._run(work))

    def _take_ports(self) -> None:
        """The worker gets the ports that were held for it; the next one's are held from now on."""
        self._give_ports_back()
        self.worker_ports, self.held = self.held, self._next_ports()
        self.outbox.put(protocol.PortsHeld(self.held.framework.port, self.held.collective.port))

    def _give_ports_back(self) -> None:
        if self.worker_ports is not None:
            self.worker_ports.close()
        self.worker_ports, self.address_of = None, ""

    def _mend(self, message: protocol.Mend) -> None:
        if self.work is None or self.work.key[0] != message.run_id:
            return  # its worker has ended meanwhile, which is told
        self.work.mend(message)
        self.formations = {self.work.key: self.work.formation}

    def _commits_for(self, formation: protocol.Formation) -> HeldCommits | None:
        from hopsml.cluster.agent.held_commits import HeldCommits

        if not formation.spec.group.regroups:
            return None
        if self.commits is None or self.commits.run_id != formation.run_id:
            folder, token = self.folder / formation.run_id, self.bootstrap.token
            self.commits = HeldCommits(formation.run_id, folder, token, self.outbox.put)
            self._spawn(self._open_door(self.commits))
        self.commits.slots.park, self.commits.slots.progress = False, -1
        return self.commits

    def _sidecar_folder(self, formation: protocol.Formation) -> Path | None:
        return self.folder / f"{formation.run_id}-sidecar" if formation.spec.sidecar else None

    def _have_sidecar(self, formation: protocol.Formation) -> None:
        """Have the run's own process beside its workers, in all its generations, if it wants one."""
        folder = self._sidecar_folder(formation)
        if self.sidecar is not None and self.sidecar.run_id != formation.run_id:
            self._spawn(self.sidecar.close())
            self.sidecar = None
        if folder is not None and self.sidecar is None:
            from hopsml.cluster.agent.sidecar_process import SidecarProcess
            from hopsml.cluster.agent.sidecar_spare import SidecarSpare

            self.spare = self.spare or SidecarSpare()
            where = (self.host, self.bootstrap.port_range, folder)
            self.sidecar = SidecarProcess(formation.run_id, formation.spec.sidecar, *where, self.outbox.put, self.spare)
            self._spawn(self.sidecar.run())

    async def _end_sidecar(self, sidecar: SidecarProcess) -> None:
        await sidecar.close()
        await asyncio.sleep(SPARE_AFTER_S)  # an agent that is not kept for another run has ended by then
        if self.sidecar is None and self.spare is not None:
            self.spare.prepare(sidecar.target)

    async def _open_door(self, commits: HeldCommits) -> None:
        try:
            await commits.door.open(self.host, self.bootstrap.port_range)
        except OSError as error:
            text = f"other agents cannot fetch commits from {self.host}: {error.strerror or error}"
            log.warning(text)
            if self.work is not None:
                self.outbox.put(protocol.WorkNote(*self.work.key, text=text))
            return
        if commits.door.identity is not None:
            self.outbox.put(protocol.CommitDoorOpened(commits.door.port, commits.door.identity.certificate))

    async def _release(self, run_id: str) -> None:
        """The run has no further generation here: bring its last files away, give its commits' memory back."""
        commits, kept = self.commits, self.kept
        if self.address_of == run_id:
            self._give_ports_back()
        if self.sidecar is not None and self.sidecar.run_id == run_id:
            sidecar, self.sidecar = self.sidecar, None
            self._spawn(self._end_sidecar(sidecar))
        if commits is not None and commits.run_id == run_id:
            self.commits = None
        if kept is not None and kept.key[0] == run_id:
            self.kept = None
            if commits is not None and kept.launch.rank == 0:
                await commits.persist_last(kept.formation)
            await kept.tree.close(RELEASE_FLUSH_S)
            shutil.rmtree(kept.folder, ignore_errors=True)
        if commits is not None and commits.run_id == run_id:
            await commits.close()

    async def _persist(self, message: protocol.Persist) -> None:
        """Put the newest commit on shared storage, however long that takes: this agent goes, and nobody else has it."""
        commits = self.commits
        formation = next((one for (run_id, _), one in self.formations.items() if run_id == message.run_id), None)
        if commits is not None and commits.run_id == message.run_id and formation is not None:
            await commits.persist_last(formation, float("inf"))

    def _conflict(self, formation: protocol.Formation) -> str:
        """Whether this executor's environment holds what the user did not want replaced."""
        from hopsml.cluster.shared.layout import check_environment
        from hopsml.errors import EnvironmentConflict

        if formation.spec.honour_environment:
            return ""
        try:
            check_environment(os.environ)
        except EnvironmentConflict as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _next_ports(self) -> WorkerPorts:
        from hopsml.cluster.agent import network

        return network.hold_worker_ports(self.host, self.bootstrap.port_range)

    async def _run(self, work: Work) -> None:
        try:
            await work.run(self.server)
        finally:
            work.forget()
            if not self.address_of:
                self._give_ports_back()
            if self.work is work:
                self.work = None
            if work.keep:
                self.kept = work

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def main() -> None:
    """A local agent: the bootstrap arrives on standard input, whose end is the driver's death.

    Its last word goes into a pipe, where the driver can read it.
    """
    index, last_word = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(last_word, False)
    bootstrap = decode_bootstrap(read_frame(sys.stdin.buffer))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends its agents
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders and processes are put away
    reason = run_agent(bootstrap, index)
    os.write(last_word, reason.encode()[:LAST_WORD_BYTES])
    if not reason.startswith(DISMISSED):
        sys.exit(f"hopsml agent {index} ended: {reason}")


if __name__ == "__main__":
    main()
