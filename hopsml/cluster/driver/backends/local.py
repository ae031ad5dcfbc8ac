"""Local backend: agents as subprocesses of the driver, without Spark or a JVM, for laptops, tests and GPU machines."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hopsml.cluster.agent.agent import LAST_MESSAGE_BYTES, NEVER_JOINED, WORKERS_NEED, folder_prefix
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.base import AskEnded, Capacity, EndWarning, SlotEnded
from hopsml.cluster.forking.fork_server import own_sys_path
from hopsml.cluster.shared import gpus
from hopsml.cluster.shared.framing import framed
from hopsml.core.newer_python import module_arguments
from hopsml.core.platforms import core_count, why_not_here
from hopsml.core.processes import describe_exit
from hopsml.errors import ClusterError

GRACE_S = 5.0
LOSS_S = 1.0  # seconds to wait for the exit of an agent's process after its connection has broken


class _AgentProcess(subprocess.Popen[bytes]):
    """Process of an agent, with the pipe for its final message and a pidfd that is readable once it has ended."""

    message_fd = -1
    lives = -1

    def last_message(self) -> str:
        """Return the final message of a process that has ended, which gives the reason; empty if it left none."""
        os.set_blocking(self.message_fd, False)
        try:
            return os.read(self.message_fd, LAST_MESSAGE_BYTES).decode(errors="replace")
        except BlockingIOError:  # a process that it has left behind holds the other end
            return ""
        finally:
            os.close(self.message_fd)


class LocalBackend:
    """Backend with ``slots`` agents on this machine."""

    name = "local"
    restarts_agents = False
    grows = False
    cores_per_agent = 0

    def __init__(self, slots: int | None = None) -> None:
        if problem := why_not_here(*WORKERS_NEED):
            raise ClusterError(problem)
        devices, cores = len(gpus.host_gpus()), core_count()
        self.gpus_per_agent = 1 if devices else 0
        self.slots = slots or devices or cores
        self._together = slots or max(devices, cores)
        # processes of an agent request, as far as they have been started
        self._processes: dict[int, list[_AgentProcess]] = {}
        self._cancelled: set[int] = set()  # agent requests of which no more are started
        self._ended: deque[tuple[int, int]] = deque(maxlen=64)  # pid and status of the newest processes that have ended
        self._watchers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def capacity(self) -> Capacity:
        """Return the number of slots: ``local_slots`` of the profile, else one per GPU, else one per CPU core."""
        setting = f"local_slots={self.slots}: HOPSML_LOCAL_SLOTS, else the profile's, else GPUs, else CPU cores"
        if not self.gpus_per_agent:
            return Capacity(self.slots, setting, self.slots)
        return Capacity(self.slots, setting, self.slots, bare=self._together, together=self._together)

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        """Return the loopback address, as no other machine connects."""
        return "127.0.0.1", ("127.0.0.1",)

    def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Start ``count`` agent processes on a thread that waits for them.

        There is one thread for each request, as the processes die with the thread that has started them.
        """
        watcher = threading.Thread(
            target=self._watch,
            args=(bootstrap, count, ended, slot_ended),
            name=f"hopsml-local-ask-{bootstrap.request_id}",
            daemon=True,
        )
        with self._lock:
            self._processes[bootstrap.request_id] = []
            self._watchers.append(watcher)
        watcher.start()

    def _watch(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        """Start the processes of a request, and report their ends."""
        request_id, failed, problem = bootstrap.request_id, "", ""
        try:
            self._start_all(bootstrap, count)
        except OSError as error:
            failed = f"no agent process could be started: {error}"
            self.cancel(request_id)  # the others are of no use alone
        started = self._processes[request_id]
        left = len(started)
        for index in _in_order_of_their_ends(started):
            left -= 1
            self._ended.append((started[index].pid, started[index].returncode))
            problem = _put_away(started[index])
            if left and not failed:
                slot_ended(request_id, index, problem)
        with self._lock:
            del self._processes[request_id]
            self._cancelled.discard(request_id)
            self._watchers.remove(threading.current_thread())
        ended(request_id, failed or problem)

    def _start_all(self, bootstrap: Bootstrap, count: int) -> None:
        """Start the processes of a request; each is registered at once, so that a cancellation in between ends it."""
        for index in range(count):
            if bootstrap.request_id in self._cancelled:
                return
            process = self._start(bootstrap, index)
            with self._lock:
                self._processes[bootstrap.request_id].append(process)
                is_cancelled = bootstrap.request_id in self._cancelled
            if is_cancelled:
                process.send_signal(signal.SIGTERM)

    @staticmethod
    def _start(bootstrap: Bootstrap, index: int) -> _AgentProcess:
        """Start one agent process and send it the data that it needs to connect."""
        message_fd, agent_fd = os.pipe()
        try:
            process = _AgentProcess(
                [sys.executable, *module_arguments("hopsml.cluster.agent.agent"), str(index), str(agent_fd)],
                # As Spark does for its executors: sets are iterated in the same order in this run and in its
                # repetition.
                env={"PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": os.pathsep.join(own_sys_path())},
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=[agent_fd],
            )
        except OSError:
            os.close(message_fd)
            raise
        finally:
            os.close(agent_fd)
        process.message_fd, process.lives = message_fd, os.pidfd_open(process.pid)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(framed(msgspec.msgpack.encode(bootstrap)))
        return process

    def cancel(self, request_id: int) -> None:
        """End the processes of the agent request, and start no more."""
        with self._lock:
            processes = list(self._processes.get(request_id, []))
            self._cancelled |= {request_id} & self._processes.keys()
        for process in processes:
            process.send_signal(signal.SIGTERM)

    def evict(self, task: int, pid: int) -> None:
        """Kill the agent's process, by its process id."""
        with self._lock:
            agents = [process for group in self._processes.values() for process in group if process.pid == pid]
        for process in agents:
            process.kill()

    def why_missing(self, request_id: int) -> str:
        """Return how many processes of the request run without a connection, or have ended."""
        with self._lock:
            processes = list(self._processes.get(request_id, []))
        ended = [process.returncode for process in processes if process.poll() is not None]
        if ended:
            return f"{len(ended)} of {len(processes)} local agent processes ended (status {ended})"
        return f"{len(processes)} local agent processes are running, but have not connected"

    def is_contended(self) -> bool:
        """Return False, as only this application uses the slots."""
        return False

    def other_work(self) -> str:
        """Return "": a program without Spark has no other work on slots."""
        return ""

    def leaving_tasks(self, tasks: frozenset[int]) -> dict[int, EndWarning]:
        """Return an empty dict: agents of this machine are warned only by SIGTERM."""
        return {}

    def why_lost(self, task: int, pid: int) -> str:
        """Return as text which signal has ended the agent's process; "" if none has."""
        with self._lock:
            process = next((one for group in self._processes.values() for one in group if one.pid == pid), None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOSS_S)
        code = process.returncode if process is not None else dict(self._ended).get(pid)
        return f"its process {pid} was {describe_exit(-code)}" if code is not None and code < 0 else ""

    def why_unavailable(self) -> str:
        """Return "": this machine is available as long as its driver."""
        return ""

    def close(self) -> None:
        """End all agent processes; their children end by their parent-death signals."""
        with self._lock:
            processes = [process for group in self._processes.values() for process in group]
            self._cancelled.update(self._processes)
        deadline = time.monotonic() + GRACE_S  # dismissed agents are removing their folders
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.join(5)


def _in_order_of_their_ends(processes: Sequence[_AgentProcess]) -> Iterator[int]:
    """Yield the index of each process once it has ended, in the order in which they end."""
    poll, watched = select.poll(), {process.lives: index for index, process in enumerate(processes)}
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    while watched:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            os.close(descriptor)
            index = watched.pop(descriptor)
            processes[index].wait()
            yield index


def _put_away(process: _AgentProcess) -> str:
    """Remove the folders of an agent that was killed, and return its error; "" if it was dismissed, or killed.

    An agent with a final message either had been in use, or reports that it never joined; one that crashed left none.
    """
    final_message = process.last_message()
    for folder in Path(tempfile.gettempdir()).glob(f"{folder_prefix(process.pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)
    if final_message.startswith(NEVER_JOINED):
        return f"a local agent {final_message}"
    if final_message or process.returncode in (0, 143, -signal.SIGKILL, -signal.SIGTERM):
        return ""
    return f"a local agent ended with status {process.returncode}"
