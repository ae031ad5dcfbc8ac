"""Life cycle of one worker on its agent: folders, launch, events, log, exit, and storing of its last files."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.agent import assigning
from hopsml.cluster.agent.checkpoint_queue import CheckpointQueue, Saved
from hopsml.cluster.agent.core_lock import SlotCores, WorkerCores
from hopsml.cluster.agent.gpu_lock import WiderSlot, all_gpus
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.local_tree import LAST_S, LiveLog, LocalTree
from hopsml.cluster.agent.profiler import Profiler
from hopsml.cluster.agent.usage import Idleness, OomWatch, UsageSampler
from hopsml.cluster.agent.worker_pipe import EventReader, WorkerPipe
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.forking.fork_server import Exited
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.shared.gpus import environment_for
from hopsml.cluster.shared.layout import CHIEF
from hopsml.cluster.worker import returned
from hopsml.cluster.worker.worker import DUMP_SIGNAL, Event
from hopsml.core import processes
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.variables import Settings
from hopsml.errors import StorageError
from hopsml.storage.causes import is_transient
from hopsml.storage.run_dir import SYSTEM_METRICS

log = nonblocking_logger("hopsml.agent")

DUMP_S = 0.3  # seconds for a worker to write its stacks
EXIT_GRACE_S = 5.0  # for exit functions and destructors after the function has returned
STORE_S = 1.0  # longest single wait for the mirror, which serves no other request during it
TAIL_BYTES = 16_000  # of a failed worker's log, sent with the report
HELD_LIMIT = 3  # consecutive heartbeats with a stopped process
_event = msgspec.msgpack.Decoder(Event)


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
        """
        self.formation, self.launch, self.send = formation, launch, send
        self._room = room
        self.folder, self.environment, self.sys_path = folder, dict(environment), sys_path
        self.key = (formation.run_id, formation.generation)
        self._since = formation.generation  # generation in which the worker's process was started
        self._log_name = f"g{formation.generation}-rank{launch.rank}.log"  # unchanged: the worker has it open
        self.tree = tree or LocalTree(formation.run_url, folder, formation.spec.storage_timeout_s, self._mirror_problem)
        self.tree.on_problem = self._mirror_problem  # problems are reported under this generation, not the previous one
        self.commits, self._cores, self._sidecar = commits, cores, sidecar
        self._wider: WiderSlot | None = None
        self._checkpoints: CheckpointQueue | None = None
        self._storing: asyncio.Task[None] | None = None
        self.keep = False  # True if a further generation follows
        self._stopped = asyncio.Event()
        self.reported = False
        self._has_returned = False  # the user's function, according to the worker's last event
        self._flush_s = formation.spec.group.flush_s
        self._server: ForkClient | None = None
        self._noted: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._worker, self._pid = 0, 0  # the fork server's number for it, and the kernel's pid
        self._pipe = WorkerPipe(self._undeliverable)
        self._mends = WorkerPipe(self._undeliverable)  # carries changes of the group to the worker
        self._ends_by = float("inf")  # monotonic seconds: deadline of the worker's exit
        self._oom: OomWatch | None = None
        self._idleness: Idleness | None = None
        self._quiet = True  # the last heartbeat had nothing to report about it
        self._held = 0  # heartbeats for which its process has been stopped
        self._live_log: LiveLog | None = None
        self._profiler = Profiler(self.tree, folder)

    @property
    def stopping(self) -> bool:
        """True if the worker has to end, or must not start."""
        return self._stopped.is_set()

    @property
    def log(self) -> str:
        """URL of the worker's log in the run directory."""
        return self.tree.url(f"logs/{self._log_name}")

    def concerns(self, run_id: str, generation: int) -> bool:
        """Return True if a message for this generation of a run concerns the worker.

        It may have been in several.
        """
        return run_id == self.key[0] and self._since <= generation <= self.key[1]

    # ------------------------------------------------------------------------------------------ life cycle

    async def run(self, server: ForkClient) -> None:
        """Run the worker from its launch to the message ``WorkerClosed``; errors are reported to the coordinator."""
        try:
            await self._live(server)
        except ConnectionError as error:
            self._fail(f"the process that starts workers on this host was killed: {error}", outside=True)
        except StorageError as error:
            self._fail(f"the store could not be read: {error}", storage=is_transient(error))
        except OSError as error:
            where = "" if error.filename else f" (in {self.folder}; TMPDIR chooses another disk)"
            self._fail(f"the agent could not run the worker: {type(error).__name__}: {error}{where}")
        except Exception as error:  # noqa: BLE001 any error of the agent is reported as the run's failure
            self._fail(f"the agent could not run the worker: {type(error).__name__}: {error}")
        behind = await self._finish_checkpoints()
        if not self.keep:
            behind += await self._close_tree()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.send(protocol.WorkerClosed(*self.key, behind=tuple(behind)))

    async def _live(self, server: ForkClient) -> None:
        """Prepare, start and follow the worker until it has exited."""
        self._server = server
        await self.tree.open()
        if self.commits is not None and not self.launch.has_commit:
            try:
                await self.commits.obtain(self.formation)
            # most likely the agent that holds it has gone, which is reported separately
            except (OSError, LookupError) as error:
                self._fail(f"the newest commit did not come: {error}", secondary=True)
                return
        if (ahead := await asyncio.to_thread(assigning.stored_ahead, self.formation)) is not None:
            self.send(protocol.Persisted(self.key[0], ahead))
            await self._stopped.wait()  # all workers restart from the newer one
            return
        if self.formation.spec.all_gpus:
            await self._take_all_gpus()
        cores = WorkerCores()
        if self._cores is not None:
            cores = await asyncio.to_thread(self._cores.acquire_for, self.formation, self.launch)
        assignment = await asyncio.to_thread(
            assigning.write,
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
        log = self.tree.append_to(f"logs/{self._log_name}")
        try:
            if not await self._ready(server):
                return
            read_end = await self._start(server, assignment, log)
        finally:
            os.close(log)
        self._live_log = LiveLog(
            log_path, self.log, lambda text, size: self.send(protocol.LogLines(*self.key, text, size))
        )
        tail = asyncio.create_task(self._live_log.follow()) if self.launch.rank == 0 else None
        reader = EventReader(read_end)
        events = asyncio.create_task(self._read_events(reader))
        usage = asyncio.create_task(self._follow_usage())
        try:
            self._conclude(await self._end_of_worker(server, reader, events))
        finally:
            self._profiler.end()
            self._give_cores_back()
            self._live_log.finish()
            if tail is not None:
                await asyncio.wait({tail}, timeout=LAST_S)
            others = [task for task in (events, tail, usage) if task is not None]
            for task in others:
                task.cancel()
            self._pipe.close()
            self._mends.close()
            await asyncio.gather(*others, return_exceptions=True)

    async def _end_of_worker(self, server: ForkClient, reader: EventReader, events: asyncio.Task[None]) -> Exited:
        """Wait until the worker has exited and all of its output is read, without a time limit.

        A slow driver may delay it; this agent exits if the driver disconnects.

        Raises:
            ConnectionError: if the fork server was killed, and the worker with it.
        """
        try:
            exited = await server.exited(self._worker)
        except ConnectionError:
            reader.exited()
            await events
            raise
        reader.exited()
        await events
        return exited

    async def _take_all_gpus(self) -> None:
        """Claim every free GPU of this executor for the worker, in addition to those of its slot."""
        self._wider = await asyncio.to_thread(all_gpus, self.launch.gpu_indices)
        if self._wider.note:
            self._note(self._wider.note)
        indices = self._wider.indices
        self.launch = msgspec.structs.replace(
            self.launch,
            gpu_indices=indices,
            ring_order=",".join(map(str, range(len(indices)))) if len(indices) > 1 else "",
            environment=self.launch.environment | environment_for(indices),
        )

    async def _ready(self, server: ForkClient) -> bool:
        """Wait for the fork server's imports; return False if the work is stopped before they are done."""
        stopped = asyncio.create_task(self._stopped.wait())
        either: list[asyncio.Future[Any]] = [server.ready, stopped]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self.stopping and not server.ready.done():
            await server.close(0.0)  # it may hang in an import; the next run gets a new one
        return not self.stopping

    async def _start(self, server: ForkClient, assignment: Path, log: int) -> int:
        """Launch the worker; return the read end of its event pipe."""
        read_end, write_end = os.pipe()
        inbox = await self._pipe.open()
        mends = [await self._mends.open()] if self.commits is not None else []
        try:
            slots = [*self._slots(server), *mends]
            launched = server.launch(str(assignment), str(self.folder / "cwd"), write_end, log, slots, inbox)
            self._worker, self._pid = await launched
            self._oom = OomWatch(self._pid)
        except OSError:  # the server has gone, or cannot fork
            os.close(read_end)
            raise
        finally:
            for descriptor in (write_end, inbox, *mends):
                os.close(descriptor)
        if self.stopping:  # stopped during the launch: this worker has not been signalled yet
            self._signal(signal.SIGKILL)
        return read_end

    def _slots(self, server: ForkClient) -> list[int]:
        """Create memory that outlives the worker: slots for checkpoints, and for commits if the group may change."""
        if not self.formation.spec.group.collective:
            return []
        self._checkpoints = CheckpointQueue(server, self.folder, self._note)
        commits = self.commits.slots.descriptors if self.commits is not None else []
        return [*self._checkpoints.slots.descriptors, *commits]

    # ------------------------------------------------------------------------------------------ events

    async def _read_events(self, reader: EventReader) -> None:
        """Handle the worker's events as fast as the coordinator takes the resulting messages."""
        try:
            async with contextlib.aclosing(reader.batches()) as batches:
                async for frames in batches:
                    self._on_events([_event.decode(frame) for frame in frames])
                    await self._room()  # a fast worker must wait for the driver; its agent's heartbeats must not
                    await asyncio.sleep(0)
        except (ValueError, msgspec.MsgspecError) as error:
            self._fail(
                f"the data in the worker's event pipe cannot be read ({error}): a process that was forked from the worker "
                "has written to it as well, or its descriptor was used for another purpose"
            )
            self._signal(signal.SIGKILL)

    def _on_events(self, events: list[Event]) -> None:
        """Handle events in order; consecutive reports are handled together."""
        for are_reports, group in itertools.groupby(events, lambda event: event.kind == "report"):
            if are_reports:
                self._on_reports(list(group))
                continue
            for event in group:
                self._on_event(event)

    def _on_reports(self, events: Sequence[Event]) -> None:
        """Send reports to the driver, and append the chief's to the run directory, one JSON line each."""
        if self.launch.rank == 0:
            self._append("metrics.jsonl", *({"time": one.time, "step": one.step, **one.metrics} for one in events))
        reports = tuple(protocol.ReportedStep(one.step, one.metrics, one.time) for one in events)
        self.send(protocol.WorkerReports(*self.key, reports))

    def _on_event(self, event: Event) -> None:
        """Forward one event of the worker to the coordinator, or handle it here."""
        if event.kind == "started":
            self.send(protocol.WorkerStarted(*self.key))
        elif event.kind == "forming":
            self.send(protocol.WorkerForming(*self.key, size=event.total))
        elif event.kind == "mendable":
            self.send(protocol.WorkerReconfigurable(*self.key, fixed=event.cause))
        elif event.kind == "mended":
            step = event.step if event.step is not None else -1
            self.send(protocol.WorkerReconfigured(self.key[0], event.generation, step, event.cause))
        elif event.kind == "paused":
            step = event.step if event.step is not None else -1
            self.send(protocol.WorkerPaused(self.key[0], event.generation, step))
        elif event.kind == "progress":
            done = event.step if event.step is not None else 0
            self.send(
                protocol.WorkerProgress(*self.key, done=done, total=event.total, unit=event.unit, time=event.time)
            )
        elif event.kind == "said":
            self.send(protocol.WorkerMessage(*self.key, data=event.data))
        elif event.kind == "note":
            self._note(event.cause)
        elif event.kind in ("committed", "parked"):
            self._committed(event)
        elif event.kind in ("saved", "store"):
            self._saved(event)
        elif event.kind == "finished":
            self.reported = self._has_returned = True
            self.send(protocol.WorkerFinished(*self.key, result=event.result, seen=event.seen, exited=event.exited))
            self._kill_in(EXIT_GRACE_S)
        else:
            self._fail(event.cause, event.traceback, secondary=event.secondary, raised=True)
            self._kill_in(EXIT_GRACE_S)

    def _committed(self, event: Event) -> None:
        """Record a commit of the worker, report it, and write a checkpoint if one is due."""
        if self.commits is None or event.step is None:
            return
        if event.slot >= 0:
            self.commits.committed(event.step, event.slot)
        parked = event.kind == "parked"
        self.send(protocol.Committed(*self.key, step=event.step, parked=parked))
        if self.launch.rank == 0:
            self.commits.persist_if_due(self.formation)

    def _saved(self, event: Event) -> None:
        """Queue a checkpoint, or start waiting until one is on shared storage."""
        if self._checkpoints is None or event.step is None:
            return
        if event.kind == "saved":
            self._checkpoints.add(Saved(event.step, event.slot, event.cause))
            return
        if self._storing is not None:
            self._storing.cancel()  # the worker waits only for the newest one
        self._storing = asyncio.create_task(self._store(self._checkpoints.slots, event.step, event.cause))

    async def _store(self, slots: CommitSlots, number: int, target: str) -> None:
        """Wait until a checkpoint is on shared storage, then signal that to the worker.

        The mirror reports any delay.
        """
        while not await self.tree.has_stored(target, STORE_S):
            await asyncio.sleep(STORE_S)
        slots.stored = number

    def stepped(self) -> protocol.WorkerStatus | None:
        """Return the worker's status for a heartbeat.

        None if neither this nor the last heartbeat has anything to report.
        """
        if not self._pid or not self.formation.spec.group.collective:
            return None
        self._idleness = self._idleness or Idleness(self._pid)
        slots = self.commits.slots if self.commits is not None else None
        step, age_s = (slots.progress, slots.progress_age_s) if slots is not None and slots.progress >= 0 else (-1, 0.0)
        stopped, idle_s = processes.is_stopped(self._pid), self._idleness.seconds()
        was_quiet, self._quiet = self._quiet, not stopped and not idle_s
        if step < 0 and self._quiet and was_quiet:
            return None
        return protocol.WorkerStatus(*self.key, step=step, stopped=stopped, age_s=age_s, idle_s=idle_s)

    def check_processes(self) -> None:
        """Wake, or kill, stopped processes that the worker depends on.

        Called with each heartbeat. A worker of an independent group that remains stopped is killed as well, since it
        can be replaced.
        """
        if self._server is not None and (problem := self._server.check_health(self._waits_for_server())):
            self._note(problem)
        if problem := self.tree.check_health():
            self._note(problem)
        if self._checkpoints is not None:
            self._checkpoints.check_health()
        if self.formation.spec.group.collective or not self._pid:
            return
        self._held = self._held + 1 if processes.is_stopped(self._pid) else 0
        if self._held >= HELD_LIMIT:
            self._fail(f"its process was stopped (SIGSTOP) for {HELD_LIMIT} heartbeats")
            self._signal(signal.SIGKILL)

    def _waits_for_server(self) -> bool:
        """Return True if progress depends on the fork server; a worker that trains does not need it."""
        return not self._pid or processes.has_ended(self._pid) or time.monotonic() > self._ends_by

    def _append(self, name: str, *rows: dict[str, Any]) -> None:
        """Append a line for each row to a file of the run directory; NaN is stored as NaN, for a loss that diverged.

        A full disk costs these lines, not the training.
        """
        try:
            with open(self.tree.append_to(name), "ab") as file:
                file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        except OSError as error:
            self._note(f"lines of {name} are lost: {self.tree.base}: {error.strerror or error}")

    def _note_from_thread(self, text: str) -> None:
        self._loop.call_soon_threadsafe(self._note, text)

    def _note(self, text: str) -> None:
        """Send a note for the user, each text once."""
        if text not in self._noted:
            self._noted.add(text)
            self.send(protocol.WorkNote(*self.key, text=f"rank {self.launch.rank}: {text}"))

    async def _follow_usage(self) -> None:
        """Sample the worker's resource usage.

        Each sample is sent to the coordinator and appended to a file next to the log.
        """
        interval_s = Settings({Settings.system_metrics_s.name: "0", **self.formation.spec.environment}).system_metrics_s
        if interval_s <= 0:
            return
        name = f"logs/{self._log_name.removesuffix('.log')}{SYSTEM_METRICS}"
        sampler = UsageSampler(self._pid, self.launch.gpu_indices)
        try:
            sampler.sample()  # sets the starting point of the counters
            for number in itertools.count():
                await asyncio.sleep(interval_s)
                if metrics := sampler.sample():
                    now = time.time()
                    self._append(name, {"time": now, "step": number, **metrics})
                    self.send(protocol.WorkerUsage(*self.key, sample=number, metrics=metrics, time=now))
        finally:
            sampler.close()

    def _conclude(self, exited: Exited) -> None:
        """Report a failure if the worker has exited without reporting its end."""
        if self._has_returned and not self.stopping and processes.was_killed(exited.status):
            self._note(
                f"its process was killed {EXIT_GRACE_S:g} s after its function had returned: non-daemon threads or exit "
                "functions were still running, and the files that they write may be incomplete. Join them in the function"
            )
        if self.reported or self.stopping:
            return
        sender = self._oom.explain() if self._oom is not None else "hopsml did not send it"
        cause = processes.describe_exit(exited.status, sender)
        if os.WIFSIGNALED(exited.status):
            cause += f" (its memory had peaked at {exited.max_rss_mb} MB)"
        self._fail(cause, outside=processes.was_killed(exited.status))

    def _fail(
        self,
        cause: str,
        traceback: str = "",
        *,
        secondary: bool = False,
        raised: bool = False,
        outside: bool = False,
        storage: bool = False,
    ) -> None:
        """Report the worker's failure, once; arguments as of ``FailureReport``."""
        if self.reported:
            return
        self.reported = True
        group = self.formation.spec.group
        again = group.relaunches and self.launch.role != CHIEF
        self.keep = self.keep or group.changes or again  # retained until the coordinator decides what follows
        tail = self._log_tail()
        self.send(
            protocol.FailureReport(
                *self.key, cause, traceback, secondary, self.log, tail, raised=raised, outside=outside, storage=storage
            )
        )

    def _log_tail(self) -> str:
        """Return the end of the worker's log; "" if it cannot be read."""
        try:
            with open(self.tree.base / "logs" / self._log_name, "rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    # ------------------------------------------------------------------------------------------ end

    def refuse(self, cause: str) -> None:
        """Report a failure before anything is started."""
        self._stopped.set()
        self._fail(cause)

    def send_to_worker(self, data: bytes) -> None:
        """Send data from the driver to the worker, without blocking."""
        self._pipe.send(data)

    def reconfigure_in_place(self, message: protocol.ReconfigureInPlace) -> None:
        """Reconfigure the worker in place: let it continue as a member of the group in ``message``.

        Nothing happens if the worker has already reported its end, or is stopping.
        """
        if self.reported or self.stopping:
            return
        rank, local_rank = message.place(self.formation.collective[self.launch.rank])
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
        self._mends.send(protocol.encode(message))

    def pause(self, message: protocol.Pause) -> None:
        """Make the worker's group pause between two batches, so that newcomers can join."""
        self._mends.send(protocol.encode(message))

    def profile(self, message: protocol.TakeProfile) -> None:
        """Start a profile of the worker; the result is reported by ``ProfileTaken``."""

        def said(problem: str) -> None:
            self.send(protocol.ProfileTaken(*self.key, message.wish, problem))

        self._profiler.begin(self._pid, message, said)

    def log_taken(self, size: int) -> None:
        """Record that the driver has received ``size`` more bytes of the worker's output."""
        if self._live_log is not None:
            self._live_log.taken(size)

    def park(self) -> None:
        """Close the message pipe of a worker of an independent group: it finishes its current work and exits."""
        if not self.formation.spec.group.collective:
            self._pipe.close()

    def _undeliverable(self, reason: str) -> None:
        """Fail and kill a worker that does not read its messages."""
        self._fail(reason)
        self._signal(signal.SIGKILL)

    def stop(self, grace_s: float, flush_s: float, keep: bool = False, dump: bool = False) -> None:
        """Stop the worker: SIGTERM, then SIGKILL of its process group after the grace time. Idempotent.

        Args:
            grace_s: seconds between the signals; 0 for SIGKILL at once.
            flush_s: seconds for storing the last files.
            keep: True if a further generation follows, so that files and commits are retained.
            dump: True to let the worker's threads write their stacks into the log before SIGKILL.
        """
        if self.stopping:
            return
        self._stopped.set()
        self.keep = keep
        self._flush_s = min(self._flush_s, flush_s)
        if dump:
            self._signal(DUMP_SIGNAL)
            self._kill_in(DUMP_S)
            return
        if not grace_s:
            self._kill_in(0.0)
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        self._kill_in(grace_s)

    def _kill_in(self, seconds: float) -> None:
        """Send SIGKILL after so many seconds."""
        self._ends_by = min(self._ends_by, time.monotonic() + seconds)
        if seconds:
            self._loop.call_later(seconds, self._signal, signal.SIGKILL)
        else:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Send a signal to the worker's process group, through the fork server, and directly if that is stopped."""
        if self._server is not None and self._worker:
            self._server.signal(self._worker, number)
            if self._server.is_held:  # it reaps no process, so the pid is still this worker's
                processes.kill_group_quietly(self._pid, number)

    async def _keep_what_it_saved(self) -> None:
        """Store the files of the worker's working folder in the run directory.

        A search has stored those of its trials already.
        """
        folder, name = (
            self.folder / "cwd",
            "artifacts" if self.launch.rank == 0 else f"artifacts/rank-{self.launch.rank}",
        )
        if not self.formation.spec.group.collective or not folder.is_dir():
            return
        try:
            note = await asyncio.to_thread(returned.store_files, folder, self.tree.base / name)
        except OSError as error:
            note = self._leave_what_it_saved(folder, f"{self.tree.url(name)}: {error.strerror or error}")
        if note:
            self._note(note)

    def _leave_what_it_saved(self, folder: Path, reason: str) -> str:
        """Move the worker's folder, whose files could not be stored, to where it outlives the agent; return a note."""
        name = f"hopsml-left-{self.formation.run_id}-rank-{self.launch.rank}"
        said = f"what was saved in the worker's folder could not be brought to {reason}"
        try:
            left = returned.leave_folder(folder, name, (Path(tempfile.gettempdir()), self.folder.parent.parent))
        except OSError as error:
            return f"{said}; it is lost, as it could not be left on {platform.node()} either: {error}"
        return f"{said}; it is left in {left} on {platform.node()}: take it from there, and remove that folder"

    async def _store_last_commit(self) -> None:
        if self.commits is not None and self.launch.rank == 0:
            await self.commits.persist_last(self.formation, self._flush_s)

    async def _finish_checkpoints(self) -> list[str]:
        """Write the checkpoints that are still in memory to the local disk; return those that could not be written."""
        began, checkpoints = time.monotonic(), self._checkpoints
        if checkpoints is None:
            return []
        if self._storing is not None:
            self._storing.cancel()
        behind = await checkpoints.close(self._flush_s)
        self._flush_s = max(0.0, self._flush_s - (time.monotonic() - began))
        return behind

    def forget(self) -> None:
        """Release the worker's memory and cores, whatever has not been written."""
        self._give_cores_back()
        if self._storing is not None:
            self._storing.cancel()
        if self._checkpoints is not None:
            self._checkpoints.discard()

    def _give_cores_back(self) -> None:
        """Release the worker's exclusive cores and additional GPUs."""
        if self._wider is not None:
            self._wider.close()
        if self._cores is not None:
            self._cores.give_back()

    async def _close_tree(self) -> list[str]:
        """Store the last files and the last commit; return the files that are not on shared storage."""
        began = time.monotonic()
        await self._keep_what_it_saved()
        # Concurrently: one after the other would take so long that this agent would be considered lost.
        behind, _ = await asyncio.gather(self.tree.close(self._flush_s), self._store_last_commit())
        if behind:
            took_s = time.monotonic() - began
            log.warning("%d files not on shared storage after %.1f s: %s", len(behind), took_s, behind)
        return behind

    def _mirror_problem(self, problem: str) -> None:
        self.send(protocol.MirrorLag(*self.key, problem=problem))
