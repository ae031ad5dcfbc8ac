"""Life cycle of one worker on its agent, from its assignment to the storing of its last files; its events and messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from hopsml.cluster.agent import worker_files
from hopsml.cluster.agent.checkpoint_queue import CheckpointQueue
from hopsml.cluster.agent.core_lock import SlotCores, WorkerCores
from hopsml.cluster.agent.gpu_lock import WiderSlot, acquire_all_gpus
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.last_files import LastFiles
from hopsml.cluster.agent.local_tree import LAST_S, LiveLog, LocalTree
from hopsml.cluster.agent.profiler import Profiler
from hopsml.cluster.agent.usage import samples, sampling_interval_s
from hopsml.cluster.agent.worker_process import HELD_LIMIT, EventReader, WorkerProcess
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.forking.fork_server import Exited
from hopsml.cluster.shared import protocol, worker_events
from hopsml.cluster.shared.layout import CHIEF
from hopsml.cluster.shared.worker_events import FailureReport, FromWorker, ReportedStep
from hopsml.cluster.worker.worker import DUMP_SIGNAL
from hopsml.core import processes
from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import StorageError
from hopsml.storage.causes import is_transient
from hopsml.storage.run_dir import SYSTEM_METRICS

log = nonblocking_logger("hopsml.agent")

DUMP_S = 0.3  # seconds for a worker to write its stacks
EXIT_GRACE_S = 5.0  # for exit functions and destructors after the function has returned, without waits for storage
LONGEST_GRACE_S = 600.0  # with these waits
TAIL_BYTES = 16_000  # of a failed worker's log, sent with the report


class Work:
    """Runner of one assignment: one worker in one generation, or in several if it is reconfigured in place."""

    def __init__(
        self,
        formation: protocol.Formation,
        launch: protocol.Launch,
        *,
        send: Callable[[protocol.Message], None],
        room: Callable[[], Awaitable[None]],
        folder: Path,
        environment: Mapping[str, str],
        sys_path: tuple[str, ...],
        tree: LocalTree | None = None,
        commits: HeldCommits | None = None,
        cores: SlotCores | None = None,
        sidecar: Path | None = None,
        clock_shift_s: float = 0.0,
    ) -> None:
        """Prepare the worker; nothing is started yet.

        Args:
            formation: what all workers of the generation share.
            launch: what is specific to this worker.
            send: sends a message to the coordinator, in order.
            room: waits until the queue of messages to the coordinator is short enough.
            folder: scratch folder of the worker.
            environment: variables of the slot.
            sys_path: the driver's ``sys.path``, if it shares the disk.
            tree: local tree of the run's last generation on this agent, if there was one.
            commits: commits of a run whose group may change.
            cores: the slot's cores, of which the worker gets a share.
            sidecar: folder in which the run's sidecar stores its address.
            clock_shift_s: seconds by which the driver's clock is ahead; recorded times are by the driver's clock.
        """
        self.formation, self.launch, self.send = formation, launch, send
        self._room, self._clock_shift_s = room, clock_shift_s
        self.folder, self.environment, self.sys_path = folder, dict(environment), sys_path
        self.key = (formation.run_id, formation.generation)
        self._since = formation.generation  # generation in which the worker's process was started
        self._log_name = f"g{formation.generation}-rank{launch.rank}.log"  # unchanged: the worker has it open
        self.tree = tree or LocalTree(formation.run_url, folder, formation.spec.storage_timeout_s, self._mirror_problem)
        self.tree.on_problem = self._mirror_problem  # problems are reported under this generation, not the previous one
        self.commits, self._cores, self._sidecar = commits, cores, sidecar
        self._wider: WiderSlot | None = None
        self._checkpoints: CheckpointQueue | None = None
        self.keep = False  # True if a further generation follows
        self._stopped = asyncio.Event()
        self.reported = False
        self._has_returned = False  # the user's function, according to the worker's last event
        self.last_files = LastFiles(self.tree, folder, formation.spec.group, self._note)
        self._noted: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._process = WorkerProcess(self._kill)
        self._live_log: LiveLog | None = None
        self._profiler = Profiler(self.tree, folder)

    @property
    def must_stop(self) -> bool:
        """True if the worker has to end, or must not start."""
        return self._stopped.is_set()

    @property
    def log_url(self) -> str:
        """URL of the worker's log in the run directory."""
        return self.tree.url(f"logs/{self._log_name}")

    def concerns(self, run_id: str, generation: int) -> bool:
        """Return True if a message for this generation of a run concerns the worker.

        It may have been in several.
        """
        return run_id == self.key[0] and self._since <= generation <= self.key[1]

    async def run(self, server: ForkClient) -> None:
        """Run the worker from its launch to the message ``WorkerClosed``; errors are reported to the coordinator."""
        try:
            await self._live(server)
        except ConnectionError as error:
            self._fail(FailureReport(f"the process that starts workers on this host was killed: {error}", outside=True))
        except StorageError as error:
            self._fail(FailureReport(f"the store could not be read: {error}", storage=is_transient(error)))
        except OSError as error:
            where = "" if error.filename else f" (in {self.folder}; set TMPDIR to use another disk)"
            self._fail(FailureReport(f"the agent could not run the worker: {type(error).__name__}: {error}{where}"))
        except Exception as error:  # noqa: BLE001 any error of the agent is reported as the run's failure
            self._fail(FailureReport(f"the agent could not run the worker: {type(error).__name__}: {error}"))
        unwritten = await self.last_files.write_checkpoints(self._checkpoints, is_last=not self.keep)
        self._checkpoints = None  # its memory is freed, which heartbeats would read while the last files are stored
        if self.keep:
            self._send(worker_events.WorkerClosed(tuple(unwritten), len(unwritten)))
        else:
            self._send(await self.last_files.store(self.formation, self.launch, self.commits, unwritten))

    async def _live(self, server: ForkClient) -> None:
        """Prepare, start and follow the worker until it has exited."""
        self._process.server = server
        await self.tree.open()
        if self.commits is not None and not self.launch.has_commit:
            try:
                await self.commits.fetch_starting_commit(self.formation)
            # most likely the agent that holds it has gone, which is reported separately
            except (OSError, LookupError) as error:
                self._fail(FailureReport(f"the newest commit could not be fetched: {error}", secondary=True))
                return
        if (ahead := await asyncio.to_thread(worker_files.newer_stored_step, self.formation)) is not None:
            self.send(protocol.Persisted(self.key[0], ahead))
            await self._stopped.wait()  # all workers restart from the newer one
            return
        if self.formation.spec.all_gpus:
            await self._take_all_gpus()
        cores = WorkerCores()
        if self._cores is not None:
            cores = await asyncio.to_thread(self._cores.acquire_for, self.formation, self.launch)
        assignment = await asyncio.to_thread(
            worker_files.write_assignment,
            self.formation,
            self.launch,
            self.folder,
            self.tree,
            self.environment,
            self.sys_path,
            self.commits,
            cores,
            self._sidecar,
            self._note_from_thread,
        )
        log_path = self.tree.base / "logs" / self._log_name
        log = self.tree.open_for_appending(f"logs/{self._log_name}")
        try:
            if not await self._ready(server):
                return
            cwd, slots = self.folder / "cwd", self._slots(server)
            reader = await self._process.start(server, assignment, cwd, log, slots, self.commits is not None)
        finally:
            os.close(log)
        self._live_log = LiveLog(
            log_path, self.log_url, lambda text, size: self._send(worker_events.LogLines(text, size))
        )
        tail = asyncio.create_task(self._live_log.follow()) if self.launch.rank == 0 else None
        if self.must_stop:  # stopped during the launch: this worker has not been signalled yet
            self._process.signal(signal.SIGKILL)
        events = asyncio.create_task(self._read_events(reader))
        usage = asyncio.create_task(self._follow_usage())
        try:
            self._conclude(await self._process.wait(reader, events))
        finally:
            self._profiler.kill()
            self._give_cores_back()
            self._live_log.finish()
            if tail is not None:
                await asyncio.wait({tail}, timeout=LAST_S)
            others = [task for task in (events, tail, usage) if task is not None]
            for task in others:
                task.cancel()
            self._process.messages.close()
            self._process.changes.close()
            await asyncio.gather(*others, return_exceptions=True)

    async def _take_all_gpus(self) -> None:
        """Claim every free GPU of this executor for the worker, in addition to those of its slot."""
        self._wider = await asyncio.to_thread(acquire_all_gpus, self.launch.gpu_indices)
        if self._wider.note:
            self._note(self._wider.note)
        self.launch = self._wider.launch_with_gpus(self.launch)

    async def _ready(self, server: ForkClient) -> bool:
        """Wait for the fork server's imports; return False if the work is stopped before they are done."""
        stopped = asyncio.create_task(self._stopped.wait())
        either: list[asyncio.Future[Any]] = [server.ready, stopped]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self.must_stop and not server.ready.done():
            await server.close(0.0)  # it may hang in an import; the next run gets a new one
        return not self.must_stop

    def _slots(self, server: ForkClient) -> list[int]:
        """Create memory that outlives the worker: slots for checkpoints, and for commits if the group may change."""
        if not self.formation.spec.group.collective:
            return []
        self._checkpoints = CheckpointQueue(server, self.folder, self._note)
        commits = self.commits.slots.descriptors if self.commits is not None else []
        return [*self._checkpoints.slots.descriptors, *commits]

    async def _read_events(self, reader: EventReader) -> None:
        """Handle the worker's events as fast as the coordinator takes the resulting messages."""
        try:
            async with contextlib.aclosing(reader.batches()) as batches:
                async for frames in batches:
                    events = (worker_events.decode(frame) for frame in frames)
                    self._on_events([worker_events.shifted(event, self._clock_shift_s) for event in events])
                    await self._room()  # a fast worker must wait for the driver; its agent's heartbeats must not
                    await asyncio.sleep(0)
        except (ValueError, msgspec.MsgspecError) as error:
            self._kill(
                f"the data in the worker's event pipe cannot be read ({error}): a process that was forked from the "
                "worker has also written to it, or its descriptor was used for another purpose"
            )

    def _on_events(self, events: list[FromWorker]) -> None:
        """Handle events in order; consecutive reports are handled together."""
        for are_reports, group in itertools.groupby(events, lambda event: isinstance(event, ReportedStep)):
            if are_reports:
                self._on_reports(cast(tuple[ReportedStep, ...], tuple(group)))
                continue
            for event in group:
                self._on_event(event)

    def _on_reports(self, reports: tuple[ReportedStep, ...]) -> None:
        """Send reports to the driver, and append the chief's to the run directory, one JSON line each."""
        if self.launch.rank == 0:
            self._append("metrics.jsonl", *({"time": one.time, "step": one.step, **one.metrics} for one in reports))
        self._send(worker_events.WorkerReports(reports))

    def _on_event(self, event: FromWorker) -> None:
        """Handle one event of the worker here, or send it on to the coordinator."""
        match event:
            case worker_events.WorkNote():
                self._note(event.text)
            case worker_events.Committed():
                self._committed(event)
            case worker_events.CheckpointSaved():
                if self._checkpoints is not None:
                    self._checkpoints.add(event)
            case worker_events.CheckpointAwaited():
                if self._checkpoints is not None:
                    self._checkpoints.signal_when_stored(event, self.tree.wait_until_stored)
            case worker_events.WorkerReconfigured() | worker_events.WorkerPaused():
                self.send(protocol.WorkerUpdate(self.key[0], event.generation, event))
            case worker_events.WorkerFinished():
                self.reported = self._has_returned = True
                self._send(event)
                shared = self._checkpoints.slots if self._checkpoints is not None else None
                self._process.kill_unless_storing(EXIT_GRACE_S, LONGEST_GRACE_S, shared)
            case FailureReport():
                self._fail(event)
                self._process.kill_in(EXIT_GRACE_S)
            case ReportedStep():
                self._on_reports((event,))
            case _:
                self._send(event)

    def _send(self, event: worker_events.ToDriver) -> None:
        """Send an event of the worker to the coordinator, for the worker's present generation."""
        self.send(protocol.WorkerUpdate(*self.key, event))

    def _committed(self, event: worker_events.Committed) -> None:
        """Record a commit of the worker, report it, and write a checkpoint if one is due."""
        if self.commits is None:
            return
        if event.slot >= 0:
            self.commits.record_commit(event.step, event.slot)
        self._send(event)
        if self.launch.rank == 0:
            self.commits.persist_if_due(self.formation)

    def status(self) -> protocol.WorkerUpdate | None:
        """Return the worker's status for a heartbeat; None if there is nothing to report."""
        if not self.formation.spec.group.collective:
            return None
        shared = self._checkpoints.slots if self._checkpoints is not None else None
        event = self._process.status(self.commits.slots if self.commits is not None else None, shared)
        return protocol.WorkerUpdate(*self.key, event) if event is not None else None

    def recover_stopped_processes(self) -> None:
        """Wake, or kill, stopped processes that the worker depends on.

        Called with each heartbeat. A worker of an independent group that remains stopped is killed as well, since it
        can be replaced.
        """
        server = self._process.server
        if server is not None and (problem := server.check_health(self._process.waits_for_server())):
            self._note(problem)
        if problem := self.tree.check_health():
            self._note(problem)
        if self._checkpoints is not None:
            self._checkpoints.check_health()
        if not self.formation.spec.group.collective and self._process.check_stopped_at_heartbeat():
            self._kill(f"its process was stopped (SIGSTOP) for {HELD_LIMIT} heartbeats")

    def _append(self, name: str, *rows: dict[str, Any]) -> None:
        """Append a line for each row to a file of the run directory; NaN is stored as NaN, for a loss that diverged.

        A full disk costs these lines, not the training.
        """
        try:
            with open(self.tree.open_for_appending(name), "ab") as file:
                file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        except OSError as error:
            self._note(f"lines of {name} were lost: {self.tree.base}: {error.strerror or error}")

    def _note_from_thread(self, text: str) -> None:
        self._loop.call_soon_threadsafe(self._note, text)

    def _note(self, text: str) -> None:
        """Send a note for the user, each text once."""
        if text not in self._noted:
            self._noted.add(text)
            self._send(worker_events.WorkNote(f"rank {self.launch.rank}: {text}"))

    async def _follow_usage(self) -> None:
        """Sample the worker's resource usage.

        Each sample is sent to the coordinator and appended to a file next to the log.
        """
        interval_s = sampling_interval_s(self.formation.spec.environment)
        if interval_s <= 0:
            return
        name = f"logs/{self._log_name.removesuffix('.log')}{SYSTEM_METRICS}"
        moved = self._checkpoints.slots.traffic if self._checkpoints is not None else dict[str, tuple[int, int]]
        sampling = samples(self._process.pid, self.launch.gpu_indices, interval_s, moved)
        async with contextlib.aclosing(sampling):
            async for number, metrics in sampling:
                now = time.time() + self._clock_shift_s
                self._append(name, {"time": now, "step": number, **metrics})
                self._send(worker_events.WorkerUsage(number, metrics, now))

    def _conclude(self, exited: Exited) -> None:
        """Report a failure if the worker has exited without reporting its end."""
        if self._has_returned and not self.must_stop and processes.was_killed(exited.status):
            self._note(
                f"its process was killed {EXIT_GRACE_S:g} s after its function had returned: non-daemon threads or "
                "exit functions were still running, and the files that they write may be incomplete. Join such "
                "threads in the training function"
            )
        if self.reported or self.must_stop:
            return
        cause = self._process.describe_exit(exited)
        self._fail(FailureReport(cause, outside=processes.was_killed(exited.status)))

    def _fail(self, report: FailureReport) -> None:
        """Report the worker's failure with its log, once."""
        if self.reported:
            return
        self.reported = True
        group = self.formation.spec.group
        again = group.relaunches and self.launch.role != CHIEF
        self.keep = self.keep or group.changes or again  # retained until the coordinator decides what follows
        self._send(
            msgspec.structs.replace(
                report, log=self.log_url, log_tail=self.tree.end_of(f"logs/{self._log_name}", TAIL_BYTES)
            )
        )

    def fail_before_start(self, cause: str) -> None:
        """Report a failure before anything is started."""
        self._stopped.set()
        self._fail(FailureReport(cause))

    def send_to_worker(self, data: bytes) -> None:
        """Send data from the driver to the worker, without blocking."""
        self._process.messages.send(data)

    def reconfigure_in_place(self, message: protocol.ReconfigureInPlace) -> None:
        """Reconfigure the worker in place: let it continue as a member of the group in ``message``.

        Nothing happens if the worker has already reported its end, or is stopping.
        """
        if self.reported or self.must_stop:
            return
        rank, local_rank = message.ranks_of(self.formation.collective[self.launch.rank])
        self.formation = msgspec.structs.replace(
            self.formation,
            generation=message.generation,
            leader=message.leader,
            world_size=len(message.collective),
            collective=message.collective,
            collective_key=message.collective_key,
            joins=False,
        )
        self.launch = msgspec.structs.replace(
            self.launch, generation=message.generation, rank=rank, local_rank=local_rank
        )
        self.key = (message.run_id, message.generation)
        self._process.changes.send(protocol.encode(message))

    def pause(self, message: protocol.Pause) -> None:
        """Make the worker's group pause between two batches, so that newcomers can join."""
        self._process.changes.send(protocol.encode(message))

    def profile(self, message: protocol.TakeProfile) -> None:
        """Start a profile of the worker; the result is reported by ``ProfileTaken``."""

        def said(problem: str) -> None:
            self._send(worker_events.ProfileTaken(message.wish, problem))

        self._profiler.start_profile(self._process.pid, message, said)

    def record_log_acknowledged(self, size: int) -> None:
        """Record that the driver has received ``size`` more bytes of the worker's output."""
        if self._live_log is not None:
            self._live_log.record_acknowledged(size)

    def end_after_current_work(self) -> None:
        """Close the message pipe of a worker of an independent group: it finishes its current work and exits."""
        if not self.formation.spec.group.collective:
            self._process.messages.close()

    def _kill(self, reason: str) -> None:
        """Report the worker's failure, and kill it."""
        self._fail(FailureReport(reason))
        self._process.signal(signal.SIGKILL)

    def stop(self, grace_s: float, flush_s: float, keep: bool = False, dump: bool = False) -> None:
        """Stop the worker: SIGTERM, then SIGKILL of its process group after the grace time. Idempotent.

        Args:
            grace_s: seconds between the signals; 0 for SIGKILL at once.
            flush_s: seconds for storing the last files.
            keep: True if a further generation follows, so that files and commits are retained.
            dump: True to let the worker's threads write their stacks into the log before SIGKILL.
        """
        is_storing = self._has_returned or self.must_stop
        if not (keep and is_storing):
            self.last_files.limit(flush_s, is_storing)
        if self.must_stop:
            return
        self._stopped.set()
        self.keep = keep
        if dump:
            self._process.signal(DUMP_SIGNAL)
            self._process.kill_in(DUMP_S)
            return
        if not grace_s:
            self._process.kill_in(0.0)
            return
        self._process.signal(signal.SIGTERM)
        self._process.signal(signal.SIGCONT)
        self._process.kill_in(grace_s)

    def release_resources(self) -> None:
        """Release the worker's exclusive cores and additional GPUs, and discard checkpoints that have not been written."""
        self._give_cores_back()
        if self._checkpoints is not None:
            self._checkpoints.discard()

    def _give_cores_back(self) -> None:
        """Release the worker's exclusive cores and additional GPUs."""
        if self._wider is not None:
            self._wider.close()
        if self._cores is not None:
            self._cores.release()

    def _mirror_problem(self, problem: str, count: int) -> None:
        self._send(worker_events.MirrorLag(problem, count))
