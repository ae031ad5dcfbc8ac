"""Process of a trial slot (lane), whose worker calls ``serve``; it never runs the user's code.

Trials come from the driver through the worker's inbox. A *runner*, a fork of this process, runs them one after
another and sends its messages through a socket, which this process relays. ``lane_queue.py`` decides what to do next.
This process reaps everything that runners leave running, so that a trial's processes end with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import select
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.agent.usage import OomWatch
from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.core import processes
from hopsml.errors import ArgumentError
from hopsml.search import messages
from hopsml.search.messages import TrialEnded, TrialReported
from hopsml.training.trials import lane_queue, runner, trial_files
from hopsml.training.trials.lane_queue import FromRunner, LaneQueue

_READ_BYTES = 1 << 18
_LOOK_S = 1.0  # interval of checks whether the runner is stopped
_STOPPED_S = 3.0  # a runner stopped by the system (SIGSTOP) for this long is killed, and its trial is repeated
_decode: msgspec.msgpack.Decoder[FromRunner] = msgspec.msgpack.Decoder(FromRunner)


def run_lane(**options: Any) -> None:
    """Run the driver's trials until it sends no more; called in the worker of a trial slot (lane).

    Args:
        **options: fields of ``runner.RunnerOptions``.
    """
    context = current()
    if context is None or context.inbox is None:
        raise ArgumentError("a lane is a worker of a search; experiment.search() starts it")
    asked = runner.RunnerOptions(**options)
    Lane(dataclasses.replace(context, trials=asked.trials), asked).serve()


class Lane:
    """Event loop of a trial slot (lane), which carries out the actions of its ``LaneQueue``.

    It forks, feeds and kills runners, and is single-threaded, so that it can fork.
    """

    def __init__(self, context: WorkerContext, options: runner.RunnerOptions) -> None:
        assert context.inbox is not None
        self.context, self.options, self.inbox = context, options, context.inbox
        self.queue = LaneQueue()
        self.thinner = lane_queue.ReportRateLimit()
        self.done = False
        self._poll = select.poll()
        self._connection: socket.socket | None = None
        self._unsent = bytearray()  # bytes that the runner has not read yet; it may still be importing a framework
        self._sends_no_more = False  # no further message for this runner after the unsent bytes
        self._frames = FrameDecoder()
        self._pid, self._pidfd = 0, -1
        self._stopped_at: float | None = None  # time at which the system has stopped the runner
        self._killed_for = ""
        self._oom: OomWatch | None = None  # watch on the runner's memory
        self._next: tuple[int, socket.socket] | None = None  # prepared runner that has not been given a trial yet

    def serve(self) -> None:
        """Run the event loop until the driver sends no more trials and the last runner has exited."""
        import cloudpickle  # noqa: F401 what every runner needs is imported once, before they are forked

        runner.import_deferred_modules()
        processes.become_subreaper()
        gc.freeze()  # keeps the objects that exist now out of the runners' garbage collection
        self._poll.register(self.inbox.fileno(), select.POLLIN)
        while not self.done:
            self._run_once()
        self._forget_next()

    def _run_once(self) -> None:
        """Wait for events, and handle all that are ready."""
        ready = dict(self._poll.poll(self._patience_ms()))
        if self._connection is not None and (events := ready.get(self._connection.fileno(), 0)):
            if events & select.POLLOUT:
                self._push()
            if events & ~select.POLLOUT:
                self._read_runner()
        if self._pidfd in ready:
            self._reap_runner()
        if self.inbox.fileno() in ready:
            for data in self.inbox.take():
                self._do(self.queue.handle_driver_message(messages.decode_for_lane(data), time.monotonic()))
            if self.inbox.ended:
                self._poll.unregister(self.inbox.fileno())
                self._do(self.queue.handle_driver_closed(time.monotonic()))
        for report in self.thinner.pop_due_reports(time.monotonic()):
            self._say(report)
        self._do(self.queue.tick(time.monotonic()))
        self._look_after_runner(time.monotonic())

    def _patience_ms(self) -> float | None:
        """Return the time until the next timed action in milliseconds; None for no limit."""
        next_look = time.monotonic() + _LOOK_S if self._pid else None
        times = [at for at in (self.queue.kill_at, self.thinner.next_due_time(), next_look) if at is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _look_after_runner(self, now: float) -> None:
        """Kill the runner if the system has held it stopped for too long."""
        if not self._pid or not processes.is_stopped(self._pid):
            self._stopped_at = None
            return
        self._stopped_at = now if self._stopped_at is None else self._stopped_at
        if now - self._stopped_at >= _STOPPED_S:
            self._killed_for = f"its process was stopped (SIGSTOP) for {_STOPPED_S:g} s"
            self._kill()

    # ------------------------------------------------------------------------------------------ actions

    def _do(self, actions: list[lane_queue.Action]) -> None:
        """Carry out the queue's actions in order."""
        for action in actions:
            match action:
                case lane_queue.StartRunner():
                    self._start()
                case lane_queue.PrepareRunner():
                    self._prepare()
                case lane_queue.SendToRunner():
                    self._give(action.message)
                case lane_queue.CloseRunnerConnection():
                    self._end_messages()
                case lane_queue.KillRunner():
                    self._kill()
                case lane_queue.SendReport(TrialReported() as report):
                    for passed in self.thinner.add_report(report, time.monotonic()):
                        self._say(passed)
                case lane_queue.SendReport():
                    if isinstance(action.message, TrialEnded):
                        for report in self.thinner.pop_all_reports():
                            self._say(report)
                    self._say(action.message)
                case lane_queue.ExitLane():
                    self.done = True

    def _say(self, message: messages.ToDriver) -> None:
        """Send a message to the driver."""
        self.context.say(messages.encode(message))

    def _give(self, message: messages.ToLane) -> None:
        """Send a message to the runner."""
        self._unsent += framed(messages.encode(message))
        self._push()

    def _push(self) -> None:
        """Send as many bytes as the runner reads now; the rest is sent when it reads again, without a time limit."""
        if self._connection is None:
            self._unsent.clear()  # the runner has exited: its pidfd is about to become readable
            return
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:  # the runner is exiting: its pidfd is about to become readable
            self._unsent.clear()
        if self._sends_no_more and not self._unsent:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
        self._poll.modify(self._connection.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))

    # ------------------------------------------------------------------------------------------ the runner

    def _start(self) -> None:
        """Start a runner, or use the prepared one if it lives."""
        if self._next is not None and not _lives(self._next[0]):
            self._forget_next()
        self._pid, ours = self._next or self._new()
        self._next = None
        self._connection, self._frames, self._unsent, self._sends_no_more = ours, FrameDecoder(), bytearray(), False
        self._pidfd = os.pidfd_open(self._pid)
        self._oom = OomWatch(self._pid)
        self._poll.register(ours.fileno(), select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)

    def _prepare(self) -> None:
        """Start the next runner ahead of time, if this process can fork."""
        # A fresh interpreter would take time and memory from the running trial.
        if self._next is None and _has_one_thread():
            self._next = self._new()

    def _forget_next(self) -> None:
        """Kill the prepared runner, if there is one."""
        if self._next is not None:
            pid, connection = self._next
            processes.kill_quietly(pid)
            os.waitpid(pid, 0)
            connection.close()
            self._next = None

    def _new(self) -> tuple[int, socket.socket]:
        """Start a process for a runner; return its pid and the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            if _has_one_thread():
                return self._fork(ours, theirs), ours
            # The framework's import, or a hook, has started threads, so a fork is not safe.
            return runner.spawn_runner(self.context, self.options, theirs), ours

    def _fork(self, ours: socket.socket, theirs: socket.socket) -> int:
        """Fork a runner and return its pid."""
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.close(self.inbox.fileno())
            if self._connection is not None:  # the connection of the busy runner, if the next one is being prepared
                self._connection.close()
                os.close(self._pidfd)
            if self.context.event_pipe >= 0:
                os.close(self.context.event_pipe)
            runner.become_runner(self.context, self.options, theirs, host)
        return pid

    def _read_runner(self) -> None:
        """Read the runner's messages and pass them to the queue."""
        connection = self._connection
        assert connection is not None
        try:
            piece = connection.recv(_READ_BYTES)
        except OSError:
            piece = b""
        if not piece:
            self._poll.unregister(connection.fileno())
            connection.close()
            self._connection = None
        for data in self._frames.feed(piece):
            self._do(self.queue.handle_runner_message(_decode.decode(data), time.monotonic()))

    def _end_messages(self) -> None:
        """Close the sending side of the connection to the runner after the unsent bytes."""
        self._sends_no_more = True
        self._push()

    def _kill(self) -> None:
        """Kill the runner with its process group."""
        if self._pid and not processes.kill_group_quietly(self._pid):
            processes.kill_quietly(self._pid)  # it has not called setsid yet

    def _reap_runner(self) -> None:
        """Handle the runner's exit: read its last messages, end processes it has left, and inform the queue."""
        while self._connection is not None:
            self._connection.setblocking(False)
            self._read_runner()
        processes.kill_group_quietly(self._pid)  # before its pid is freed
        _, status, usage = os.wait4(self._pid, 0)
        self._poll.unregister(self._pidfd)
        os.close(self._pidfd)
        self._pid, self._pidfd = 0, -1
        kill_descendants(self._next[0] if self._next is not None else 0)
        assert self._oom is not None
        how, self._killed_for = self._killed_for or processes.describe_exit(status, self._oom.explain()), ""
        if os.WIFSIGNALED(status):
            how += f" (its memory had peaked at {usage.ru_maxrss // 1024} MB)"
        self._do(self.queue.handle_runner_exit(how, self._record_death(how), time.monotonic()))

    def _record_death(self, how: str) -> int:
        """Write the files of a trial whose process has died; return the step of its newest checkpoint, or -1."""
        trial = self.queue.current
        if trial is None:
            return -1
        folder = trial_files.trial_folder(self.context, trial.trial_id)
        trial_files.write_death_record(folder, trial, how)
        return trial_files.newest_checkpoint_step(folder / trial_files.CHECKPOINTS)


def kill_descendants(spare: int) -> None:
    """Kill every descendant of this process except process ``spare``; cheap when there is none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    if spare and _children() == [spare]:
        return
    processes.end_descendants(spare)


def _children() -> list[int]:
    """Return the process ids of the children, from the kernel's list of them if it has one."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:
        return processes.children_of(os.getpid())


def _lives(pid: int) -> bool:
    """Return True if the child has not exited."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _has_one_thread() -> bool:
    """Return True if this process has a single thread, so that it can fork."""
    return len(os.listdir("/proc/self/task")) == 1
