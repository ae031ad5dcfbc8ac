"""Worker process, which runs the user's function: forked, or ``python -m hopsml.cluster.worker.worker``.

It reads its assignment from a file, takes its rank, calls the function and reports the result to the agent through a
pipe. The fork server detects ends that it cannot report (``os._exit``, a crash in native code, a kill).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.shared import worker_events
from hopsml.cluster.shared.commit_slots import DESCRIPTORS, CommitSlots
from hopsml.cluster.shared.framing import framed
from hopsml.cluster.shared.plain import utf8
from hopsml.cluster.shared.protocol import Formation, Launch, decode_for_group
from hopsml.cluster.shared.spec import RunSpec
from hopsml.cluster.shared.worker_events import (
    FailureReport,
    FromWorker,
    ReportedStep,
    WorkerFinished,
    WorkerForming,
    WorkerMessage,
    WorkerProgress,
    WorkerStarted,
    WorkNote,
)
from hopsml.cluster.worker import calling, collective_stats, returned, server_guard
from hopsml.cluster.worker.context import (
    CheckpointPort,
    CollectiveSeat,
    CommitPort,
    Inbox,
    ReconfigurationPort,
    WorkerContext,
    current,
    set_current,
)
from hopsml.cluster.worker.reported import ReportedValues
from hopsml.cluster.worker.returned import pickle_result, plain
from hopsml.core import moved_names, redact, tracebacks, traffic
from hopsml.core.commands import CommandFailed
from hopsml.core.processes import UNREPORTED, allow_tracing_by
from hopsml.errors import ArgumentError, PeerLost
from hopsml.search.metric import MetricCheck
from hopsml.storage import privacy, waiting

DUMP_SIGNAL = signal.SIGUSR2  # the Python threads write their stacks to the log
_SETTLE_S = 1.0  # longest wait for a note to be sent
_ECHOES = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "DistBackendError")
_ECHO_PHRASES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Socket closed",
    "Collective ops is aborted",
    "PeerLost: ",  # as torch's C++ passes on the error of an operation
)


class Assignment(msgspec.Struct, frozen=True):
    """Assignment that the agent writes for the worker: the driver's messages, and paths on this machine.

    Paths are as in WorkerContext, and text.
    """

    formation: Formation  # without its payload
    launch: Launch
    work_dir: str
    events_dir: str  # may contain a URL
    checkpoint_dir: str
    export_dir: str
    payload: str  # path of the pickled (function, keyword arguments)
    resume_checkpoint: str
    environment: dict[str, str]
    sys_path: tuple[str, ...]
    cores: tuple[int, ...] = ()  # processors that its agent reserves for it; none: those of the agent
    commit_slot: int = -1  # slot with the commit to continue from; -1: none
    resume_fits: str = ""  # folder of the checkpoints for further calls of fit; empty if there are none
    commit_folder: str = ""  # for commits that do not fit in memory; empty if the run is not elastic
    sidecar: str = ""  # file in which the run's sidecar writes its address; empty if it has none
    agent_pid: int = 0  # pid of the agent, whose children may inspect the worker, to profile it


_assignment = msgspec.msgpack.Decoder(Assignment)


class EventPipe:
    """Worker's end of the pipe to its agent; frames are written as a whole by any thread."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: FromWorker) -> None:
        """Write one event to the pipe; blocks while the agent is behind.

        Raises:
            BrokenPipeError: The agent has ended.
        """
        frame = memoryview(framed(worker_events.encode(event)))
        with self._lock:
            while frame:
                frame = frame[os.write(self.descriptor, frame) :]


def run(assignment_path: str, descriptor: int, slots: Sequence[int] = (), inbox: int = -1) -> int:
    """Carry out the assignment: set up the process, call the user's function, report its end.

    Args:
        assignment_path: File with the assignment.
        descriptor: Write end of the event pipe.
        slots: Descriptors of the slots for checkpoints and commits, and of the pipe for changes of the group.
        inbox: Read end of the pipe for the driver's messages; -1: none.

    Returns:
        The exit status.
    """
    faulthandler.enable(all_threads=True)
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the driver, which ends the run
    pipe = EventPipe(descriptor)
    losses = calling.install_log_streams(lambda text: _note(pipe, text))
    event = _play(assignment_path, pipe, slots, inbox)
    losses.wait_until_sent(_SETTLE_S)
    try:
        pipe.send(event)
    except OSError:  # its descriptor was closed, or has been reused for another file
        calling.write_to_log(redact.text(traceback.format_exc()))
        return run_exit_functions(UNREPORTED)
    has_finished = isinstance(event, WorkerFinished)
    if has_finished:
        _await_threads()
    return run_exit_functions(0 if has_finished else 1)


def _await_threads() -> None:
    """Wait for threads that are no daemons, such as one that still saves, as the interpreter does at its end.

    The agent ends the worker if that takes too long (``work.EXIT_GRACE_S``).
    """
    here = threading.current_thread()
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not here]
    if names:
        calling.write_to_log(
            "hopsml: the function has returned, but some of its threads are still running; waiting a few "
            f"seconds for {', '.join(names)}"
        )
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001 as in ``run_exit_functions``
        calling.write_to_log(redact.text(traceback.format_exc()))


def _play(assignment_path: str, pipe: EventPipe, slots: Sequence[int], inbox: int) -> WorkerFinished | FailureReport:
    """Call the user's function and return how it ended; any error of its code is reported."""
    try:
        assignment = _assignment.decode(Path(assignment_path).read_bytes())
        context = _prepare(assignment, pipe, slots, inbox)
        function, arguments = _restore(Path(assignment.payload))
        calling.reset_argv(function)
        pipe.send(WorkerStarted())
        if body := context.spec.body:
            function, arguments = partial(_named(body), function, arguments, context), {}
        value = calling.call(function, arguments)
        _complete_commits()
        result = pickle_result(value, context, lambda text: _note(pipe, text)) if context.is_chief else b""
        return WorkerFinished(result, collective_stats.recorded_values())
    except BaseException as error:  # noqa: BLE001 reported to the agent
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _complete_commits()
            return WorkerFinished(seen=collective_stats.recorded_values(), exited=True)
        return _failure(error, Path(assignment_path).parent / "cwd")


def run_exit_functions(status: int) -> int:
    """Run exit functions and flush output, as the interpreter would at its end; return the ``status`` to exit with."""
    try:
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 an exit function of the user's must not change the run's outcome
        calling.write_to_log(redact.text(traceback.format_exc()))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    return status


# ---------------------------------------------------------------------------------------------- before the function


def _prepare(assignment: Assignment, pipe: EventPipe, slots: Sequence[int], inbox: int) -> WorkerContext:
    """Set up the process by its assignment, and return its context."""
    os.environ.update(assignment.environment)
    if assignment.cores:
        with contextlib.suppress(OSError):  # its control group has been changed since the agent read it
            os.sched_setaffinity(0, assignment.cores)  # inherited by child processes; the function may undo it
    for entry in assignment.sys_path:
        if entry not in sys.path:
            sys.path.append(entry)
    allow_tracing_by(assignment.agent_pid)
    folder = os.stat(os.path.dirname(assignment.events_dir))
    os.umask(
        os.umask(0o077) | privacy.umask_for_folder(folder.st_mode)
    )  # its files are as accessible as the run's folder
    formation, launch = assignment.formation, assignment.launch
    context = WorkerContext(
        run_id=formation.run_id,
        generation=formation.generation,
        rank=launch.rank,
        world_size=formation.world_size,
        local_rank=launch.local_rank,
        role=launch.role,
        run_url=formation.run_url,
        work_dir=Path(assignment.work_dir),
        events_dir=Path(assignment.events_dir),
        checkpoint_dir=Path(assignment.checkpoint_dir),
        export_dir=Path(assignment.export_dir),
        logdir=assignment.events_dir,
        leader=formation.leader,
        gpu_indices=launch.gpu_indices,
        ring_order=launch.ring_order,
        spec=formation.spec,
        resume_checkpoint=Path(assignment.resume_checkpoint) if assignment.resume_checkpoint else None,
        resume_fits=Path(assignment.resume_fits) if assignment.resume_fits else None,
        send=_reports(pipe, formation.spec, launch.rank),
        commits=_commits(assignment, pipe, slots[DESCRIPTORS : 2 * DESCRIPTORS]),
        mends=_mends(pipe, slots[2 * DESCRIPTORS :]),
        checkpoints=_checkpoints(pipe, slots[:DESCRIPTORS]),
        progress=lambda done, total, unit: pipe.send(WorkerProgress(done, total, unit, time.time())),
        say=lambda data: pipe.send(WorkerMessage(data)),
        note=lambda text: _note(pipe, text),
        event_pipe=pipe.descriptor,
        inbox=Inbox(inbox) if inbox >= 0 else None,
        sidecar=Path(assignment.sidecar) if assignment.sidecar else None,
        collective=_seat(formation, launch, pipe),
        joins=formation.joins,
        server_key=formation.collective_key if formation.guarded else b"",
    )
    set_current(context)
    collective_stats.reset()
    if formation.world_size > 1 or formation.spec.group.relaunches:
        server_guard.start_keepalive_by_environment()
    for hook in formation.spec.hooks:
        _named(hook)(context)
    return context


def _named(text: str) -> Callable[..., Any]:
    """Return the object named by "module:function"; by name, as this layer must not import higher ones."""
    module, _, name = text.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _seat(formation: Formation, launch: Launch, pipe: EventPipe) -> CollectiveSeat | None:
    """Return how this worker joins its collective; None for a rank without one."""
    size = len(formation.collective)
    if launch.rank >= size:
        return None
    return CollectiveSeat(
        formation.collective,
        formation.collective_key,
        lambda: pipe.send(WorkerForming(size)),
    )


def _commits(assignment: Assignment, pipe: EventPipe, slots: Sequence[int]) -> CommitPort | None:
    """Return the interface for commits; None for a run without them."""
    if not slots:
        return None
    return CommitPort(
        CommitSlots(slots, Path(assignment.commit_folder)),
        assignment.commit_slot,
        pipe.send,
    )


def _mends(pipe: EventPipe, slots: Sequence[int]) -> ReconfigurationPort | None:
    """Return the interface for changes of the group in place; None for a run without them."""
    if not slots:
        return None
    inbox = Inbox(slots[0])
    return ReconfigurationPort(
        lambda timeout_s: decode_for_group(data) if (data := inbox.get(timeout_s)) is not None else None,
        lambda: inbox.ended,
        pipe.send,
    )


def _checkpoints(pipe: EventPipe, slots: Sequence[int]) -> CheckpointPort | None:
    """Return the interface for checkpoints; None if the worker writes them itself.

    Waits for storage and bytes over the network are recorded there as well.
    """
    if not slots:
        return None
    shared = CommitSlots(slots)
    waiting.set_wait_reporter(shared.record_storage_wait)
    traffic.set_traffic_reporter(shared.record_traffic, shared.collective_counters())
    return CheckpointPort(shared, pipe.send)


def _restore(path: Path) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the user's function and its arguments from a file."""
    function, arguments = moved_names.loads(path.read_bytes())
    return function, arguments


def _reports(pipe: EventPipe, spec: RunSpec, rank: int) -> Callable[[dict[str, Any]], None]:
    """Return the function that sends reports of the user's code.

    It raises ArgumentError in the chief if ``metric_key``, or the metric of an evaluation, is a misspelt name of a reported
    value: the run would fail at its end.
    """
    asked = spec.metric_key or (spec.evaluation.metric if spec.evaluation is not None else "")
    check, values = MetricCheck(asked if rank == 0 else ""), ReportedValues()

    def send(message: dict[str, Any]) -> None:
        event = _report(message)
        if asked in event.metrics:
            check.found()
        elif problem := check.problem(0, event.step or 0, event.metrics):
            remedy = "metric_key" if spec.metric_key else "metric= (--metric) of the evaluation"
            raise ArgumentError(f"{problem} Correct {remedy}, or report it")
        pipe.send(event)
        for text in values.notes(message.get("metrics", {}), event.metrics, event.step) if rank == 0 else ():
            _note(pipe, text)

    return send


def _report(message: dict[str, Any]) -> ReportedStep:
    """Return the event for a report of the user's code."""
    step = message.get("step")
    metrics = redact.arguments({utf8(str(key)): plain(value) for key, value in message.get("metrics", {}).items()})
    return ReportedStep(None if step is None else int(step), metrics, time.time())


def _note(pipe: EventPipe, text: str) -> None:
    """Send a note for users to the agent."""
    pipe.send(WorkNote(redact.text(utf8(text))[: calling.MOST_CAUSE]))


# ---------------------------------------------------------------------------------------------- after the function


def _complete_commits() -> None:
    """Wait for the last commit to be written: the function may have returned before."""
    context = current()
    for complete in context.commits.at_end if context is not None and context.commits is not None else ():
        complete()


def _failure(error: BaseException, folder: Path) -> FailureReport:
    """Return the event for an error of the user's function, and write its traceback to the log.

    A command has written its traceback to the log itself.
    """
    if isinstance(error, CommandFailed):
        cause, text = (redact.text(utf8(one)) for one in (error.cause, error.remote_traceback))
        return FailureReport(cause[: calling.MOST_CAUSE], text[-60_000:], _echoes_another(error), raised=True)
    cause = calling.short_error_text(error) + returned.missing_path_hint(error, folder)
    echoes = _echoes_another(error)
    context = current()
    if context is None:  # its assignment could not be carried out
        text = calling.traceback_text(error, tracebacks.from_first_user_frame(error.__traceback__))
        calling.write_to_log(text)
    else:
        name = f"logs/g{context.generation}-rank{context.rank}.traceback.log"
        file, url = context.checkpoint_dir.parent / name, f"{context.run_url.rstrip('/')}/{name}"
        text = calling.report_traceback(error, file, url)
    return FailureReport(cause, text[-60_000:], echoes, raised=True)


def _echoes_another(error: BaseException) -> bool:
    """Return True if the error is one that a worker sees when another worker of the collective fails."""
    for seen in calling.chain(error):
        module = type(seen).__module__.partition(".")[0]
        if isinstance(seen, PeerLost) or (module in ("tensorflow", "torch") and type(seen).__name__ in _ECHOES):
            return True
        said = calling.error_text(seen)
        if any(phrase in said for phrase in _ECHO_PHRASES):
            return True
    return False


def main() -> None:
    """Run as a worker in a fresh interpreter, used if a fork is not safe."""
    from hopsml.core import processes

    assignment, descriptor, parent, cwd, inbox, *slots = sys.argv[1:]
    processes.die_with_parent(int(parent))
    os.chdir(cwd)
    os._exit(run(assignment, int(descriptor), tuple(map(int, slots)), int(inbox)))


if __name__ == "__main__":
    main()
