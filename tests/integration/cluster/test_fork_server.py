"""Tests of fork server and worker as real processes: launch, results, all kinds of exit, no leftovers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import psutil
import pytest

from hopsml.cluster.forking import fork_client, fork_server
from hopsml.cluster.forking.fork_server import Exited, Imported
from hopsml.cluster.shared import worker_events
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.cluster.shared.spec import RunSpec
from hopsml.cluster.shared.worker_events import FailureReport, ReportedStep, WorkerFinished, WorkerStarted, WorkNote
from hopsml.cluster.worker.worker import Assignment
from hopsml.core import processes
from tests.helpers import small_disk
from tests.helpers.clock import wait_until

pytestmark = pytest.mark.local
TIMEOUT_S = 20.0


def assignment(folder: Path, function: Callable[..., Any], **arguments: Any) -> str:
    payload = folder / "function.pickle"
    payload.write_bytes(cloudpickle.dumps((function, arguments)))
    for name in ("events", "checkpoints", "export"):
        (folder / name).mkdir(exist_ok=True)
    content = Assignment(
        formation=Formation("app_1", 0, RunSpec(), payload=b"", run_url=str(folder), cluster_json="",
            leader="", world_size=1),
        launch=Launch("app_1", 0, 0, 0, "chief", 0, gpu_indices=(), ring_order="", environment={}),
        work_dir=str(folder), events_dir=str(folder / "events"), checkpoint_dir=str(folder / "checkpoints"),
        export_dir=str(folder / "export"), payload=str(payload), resume_checkpoint="", environment={"MARK": "set"},
        sys_path=tuple(sys.path),
    )  # fmt: skip
    path = folder / "assignment"
    path.write_bytes(msgspec.msgpack.encode(content))
    return str(path)


class Ended(msgspec.Struct):
    exited: Exited
    events: list[Any]
    log: str
    seconds: float


async def play(
    folder: Path, function: Callable[..., Any], disturb: Callable[[int], None] | None = None, **arguments: Any
) -> Ended:
    """Run one worker; ``meddle`` gets its pid once it has begun."""
    client = fork_client.ForkClient((), *fork_client.start_process(()))
    try:
        return await asyncio.wait_for(_play(client, folder, function, disturb, arguments), TIMEOUT_S)
    finally:
        await client.close()


async def _play(client: fork_client.ForkClient, folder: Path, function: Any, disturb: Any, arguments: Any) -> Ended:
    read_end, write_end = os.pipe()
    with open(folder / "log", "ab") as log:
        start_s = time.monotonic()
        identity, pid = await client.launch(
            assignment(folder, function, **arguments), str(folder), write_end, log.fileno()
        )
    os.close(write_end)
    frames = bytearray()
    loop = asyncio.get_running_loop()
    started = asyncio.Event()

    def receive() -> None:
        data = os.read(read_end, 1 << 16)
        frames.extend(data)
        started.set()
        if not data:
            loop.remove_reader(read_end)

    loop.add_reader(read_end, receive)
    if disturb is not None:
        await started.wait()
        disturb(pid)
    exited = await client.wait_for_exit(identity)
    await asyncio.sleep(0)
    loop.remove_reader(read_end)
    os.set_blocking(read_end, False)
    try:
        while data := os.read(read_end, 1 << 16):
            frames.extend(data)
    except BlockingIOError:
        pass
    os.close(read_end)
    return Ended(exited, decode(bytes(frames)), (folder / "log").read_text(), time.monotonic() - start_s)


def decode(data: bytes) -> list[Any]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(worker_events.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


def run(
    folder: Path, function: Callable[..., Any], disturb: Callable[[int], None] | None = None, **arguments: Any
) -> Ended:
    return asyncio.run(play(folder, function, disturb, **arguments))


def test_function_receives_its_arguments_and_its_value_is_returned(tmp_path):
    def train(a, b):
        print("hello from the worker")
        return {"sum": a + b, "mark": os.environ["MARK"]}

    ended = run(tmp_path, train, a=1, b=2)
    assert [type(event) for event in ended.events] == [WorkerStarted, WorkerFinished]
    assert cloudpickle.loads(ended.events[-1].result) == {"sum": 3, "mark": "set"}
    assert os.waitstatus_to_exitcode(ended.exited.status) == 0
    assert "hello from the worker" in ended.log


def test_exception_is_reported_with_its_traceback(tmp_path):
    def train():
        raise KeyError("no such layer")

    last = run(tmp_path, train).events[-1]
    assert isinstance(last, FailureReport) and last.cause == "KeyError: 'no such layer'"
    assert "raise KeyError" in last.traceback and not last.secondary


def test_sys_exit_with_a_status_is_a_failure_and_without_one_is_not(tmp_path):
    assert run(tmp_path, lambda: sys.exit(3)).events[-1].cause == "called sys.exit(3)"
    assert isinstance(run(tmp_path, lambda: sys.exit()).events[-1], WorkerFinished)


class WithoutWords(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words either")

    __repr__ = __str__


def test_error_whose_str_raises_is_named_by_its_type(tmp_path):
    def train():
        raise WithoutWords

    last = run(tmp_path, train).events[-1]
    assert last.cause == "WithoutWords: (its text is not available, since str() raises RuntimeError)"
    assert "raise WithoutWords" in last.traceback and not last.secondary

    def leave():
        sys.exit(WithoutWords())

    assert "called sys.exit((its text is not available" in run(tmp_path, leave).events[-1].cause


@pytest.mark.parametrize("log", ["on a full disk", "closed"])
def test_error_is_reported_although_the_log_cannot_be_written(tmp_path, log):
    def train():
        if log == "closed":
            sys.stderr.close()
        else:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        raise KeyError("no such layer")

    assert run(tmp_path, train).events[-1].cause == "KeyError: 'no such layer'"


def test_cyclic_error_causes_are_reported_once(tmp_path):
    def train():
        first, second = ValueError("the first"), ValueError("the second")
        first.__cause__, second.__cause__ = second, first
        raise first

    assert run(tmp_path, train).events[-1].cause == "ValueError: the first"


def test_very_long_error_is_truncated_quickly(tmp_path):
    def train():
        raise ValueError("y" * 20_000_000)

    ended = run(tmp_path, train)  # within TIMEOUT_S: each stored character is searched for secrets
    assert len(ended.events[-1].cause) == 4000 and len(ended.log) < 1_100_000


def test_forked_child_that_returns_from_the_function_is_not_taken_for_the_worker(tmp_path):
    def train(raises):
        child = os.fork()
        if not child and raises:
            raise ValueError("of the child")
        if not child:
            return "the child's"
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for raises in (False, True):
        ended = run(tmp_path, train, raises=raises)
        assert [type(event) for event in ended.events] == [WorkerStarted, WorkerFinished]
        assert cloudpickle.loads(ended.events[-1].result) == int(raises)
    assert "ValueError: of the child" in ended.log


def test_files_written_by_threads_after_the_return_are_complete(tmp_path):
    def train():
        import concurrent.futures
        import threading

        def save(name):
            time.sleep(0.3)
            Path(name).write_text("saved")

        threading.Thread(target=save, args=("by-a-thread",), name="saver").start()
        concurrent.futures.ThreadPoolExecutor(1).submit(save, "by-a-pool")
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    ended = run(tmp_path, train)
    assert (tmp_path / "by-a-thread").read_text() == (tmp_path / "by-a-pool").read_text() == "saved"
    assert "waiting a few seconds for saver" in ended.log


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: os._exit(1), "exited with status 1 before the training function returned"),
        (lambda: os._exit(0), "exited with status 0 before the training function returned"),
        (crash, "signal 11 (SIGSEGV)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9 (SIGKILL)"),
    ],
    ids=["exit-1", "exit-0", "segfault", "sigkill"],
)
def test_exit_without_a_report_is_described_by_its_status(tmp_path, function, words):
    ended = run(tmp_path, function)
    assert ended.events == [WorkerStarted()]
    assert words in processes.describe_exit(ended.exited.status)


def test_crash_in_native_code_leaves_the_python_frames_in_the_log(tmp_path):
    assert "Fatal Python error: Segmentation fault" in run(tmp_path, crash).log


def test_unpicklable_result_is_omitted_with_a_note(tmp_path):
    import threading

    _, note, last = run(tmp_path, lambda: threading.Lock()).events
    assert isinstance(note, WorkNote) and "a lock, is omitted: it cannot be pickled" in note.text
    assert isinstance(last, WorkerFinished) and cloudpickle.loads(last.result) is None


def test_full_disk_loses_log_lines_but_not_the_training(tmp_path):
    def train():
        small_disk.fill(disk)
        for number in range(200):
            print(number, "x" * 100, flush=True)
            print(number, "x" * 100, file=sys.stderr)
        sys.stdout.buffer.write(b"x" * 100_000)
        sys.stdout.flush()
        return 7

    with small_disk.mounted(tmp_path / "disk", 1_000) as disk:
        _, note, last = run(disk, train).events
    assert note.text == "lines of its log are lost, since its disk cannot be written: No space left on device"
    assert isinstance(last, WorkerFinished) and cloudpickle.loads(last.result) == 7


def test_returned_text_path_and_file_are_handled_by_their_kind(tmp_path):
    def write():
        Path("plot.png").write_bytes(b"png")
        return {"plot": "plot.png"}

    text = run(tmp_path, lambda: "models/none.h5").events[-1].result
    assert cloudpickle.loads(text) == "models/none.h5"
    assert "is missing" in run(tmp_path, lambda: Path("models/none.h5")).events[1].text
    (tmp_path / "cwd").mkdir()
    value = cloudpickle.loads(run(tmp_path, write).events[-1].result)
    assert value == {"plot": "Experiments/app_1/plot.png"}
    assert (tmp_path / "plot.png").read_bytes() == b"png"


def test_reports_of_many_threads_are_complete_and_consistent(tmp_path):
    def train():
        from concurrent.futures import ThreadPoolExecutor

        import hopsml

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda step: hopsml.report(step=step, loss=step / 2), range(500)))

    reports = [event for event in run(tmp_path, train).events if isinstance(event, ReportedStep)]
    assert sorted(event.step for event in reports) == list(range(500))
    assert all(event.metrics["loss"] == event.step / 2 for event in reports)


def test_all_processes_started_by_the_worker_end_with_it(tmp_path):
    """A child, a child in a separate session, and a double fork all end."""

    def train():
        import subprocess

        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
        popen = "s.Popen(sys.argv[1:], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL)"
        grandchild = subprocess.run(
            [sys.executable, "-c", f"import subprocess as s, sys; print({popen}.pid)", *sleep],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        return [*pids, int(grandchild.stdout)]

    pids = cloudpickle.loads(run(tmp_path, train).events[-1].result)
    assert len(pids) == 3
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5)
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_stopped_worker_can_be_ended(tmp_path):
    """SIGSTOP: the kind of hang that ignores SIGTERM."""

    async def scenario() -> Exited:
        client = fork_client.ForkClient((), *fork_client.start_process(()))
        try:
            read_end, write_end = os.pipe()
            with open(tmp_path / "log", "ab") as log:
                identity, pid = await client.launch(
                    assignment(tmp_path, lambda: time.sleep(600)), str(tmp_path), write_end, log.fileno()
                )
            os.close(write_end)
            os.kill(pid, signal.SIGSTOP)
            client.signal(identity, signal.SIGKILL)
            os.close(read_end)
            return await asyncio.wait_for(client.wait_for_exit(identity), 5)
        finally:
            await client.close()

    assert os.WTERMSIG(asyncio.run(scenario()).status) == signal.SIGKILL


def test_client_retains_no_data_of_ended_workers(tmp_path):
    async def scenario() -> list[dict[int, Any]]:
        client = fork_client.ForkClient((), *fork_client.start_process(()))
        try:
            await client.ready
            with open(os.devnull, "wb") as nowhere:
                begin = (assignment(tmp_path, int), str(tmp_path), nowhere.fileno(), nowhere.fileno())
                for _ in range(3):
                    identity, _ = await client.launch(*begin)
                    await client.wait_for_exit(identity)
                given_up = asyncio.create_task(client.launch(*begin))
                await asyncio.sleep(0)  # it is sent
                given_up.cancel()
                await asyncio.wait({given_up})
                assert given_up.cancelled()
                identity, _ = await client.launch(*begin)  # its answers follow those of the cancelled launch
                during = [client._launched.copy(), dict.fromkeys(client._exited, identity)]
                await client.wait_for_exit(identity)
            assert during == [{}, {identity: identity}]
            return [client._launched, client._exited]
        finally:
            await client.close()

    assert asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S)) == [{}, {}]


AGENT = textwrap.dedent("""
    import asyncio, os, sys
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from hopsml.cluster.forking import fork_client
    from hopsml.core import processes
    from tests.integration.cluster.test_fork_server import assignment

    def train():
        import subprocess, sys, time
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleep, start_new_session=True)
        subprocess.Popen(sleep, start_new_session=True, env={{}})  # nothing says whose it is
        time.sleep(600)

    async def main():
        processes.become_subreaper()  # as an agent does
        client = fork_client.ForkClient((), *fork_client.start_process(()))
        read_end, write_end = os.pipe()
        log = open({folder!r} + "/log", "ab")
        identity, pid = await client.launch(assignment(Path({folder!r}), train), {folder!r}, write_end, log.fileno())
        os.read(read_end, 10)
        while len(processes.descendants_of(pid)) < 2:
            await asyncio.sleep(0.01)
        print("running", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
""")


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("victim", ["agent", "fork server", "agent of a stopped fork server"])
def test_killing_the_agent_or_the_fork_server_leaves_no_process(tmp_path, victim):
    import subprocess

    root = str(Path(__file__).parents[3])
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT.format(root=root, folder=str(tmp_path))], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    with agent, agent.stdout:
        try:
            assert agent.stdout.readline() == "running\n"
            below = psutil.Process(agent.pid).children(recursive=True)
            assert len(below) == 4
            if victim.endswith("stopped fork server"):
                os.kill(below[0].pid, signal.SIGSTOP)
                wait_until(lambda: below[0].status() == psutil.STATUS_STOPPED)
            os.kill(below[0].pid if victim == "fork server" else agent.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(lives, below)))
        finally:
            agent.kill()
            for process in filter(lives, below):
                process.kill()


def test_pyarrow_allocator_does_not_prevent_forking():
    """pandas, which Keras imports, brings pyarrow, whose jemalloc would start a thread at its import."""

    async def ready() -> Imported:
        client = fork_client.ForkClient(("pandas",), *fork_client.start_process(("pandas",)))
        try:
            return await asyncio.wait_for(client.ready, TIMEOUT_S)
        finally:
            await client.close()

    answer = asyncio.run(ready())
    assert (answer.mode, answer.problem) == ("fork", "")


def test_worker_collects_garbage_except_objects_imported_before_the_fork(tmp_path):
    def look() -> dict[str, Any]:
        import gc
        import weakref

        class Node:
            pass

        node = Node()
        node.itself = node  # type: ignore[attr-defined]
        reference = weakref.ref(node)
        del node
        gc.collect()
        return {"enabled": gc.isenabled(), "frozen": gc.get_freeze_count(), "collected": reference() is None}

    found = cloudpickle.loads(run(tmp_path, look).events[-1].result)
    assert found["enabled"]
    assert found["collected"]
    assert found["frozen"] > 1000


def test_request_of_an_agent_that_has_ended_ends_the_server_quietly() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = fork_server.ForkServer(theirs, ())
    try:
        ours.send(fork_server.encode(fork_server.Ping()))
        ours.close()
        assert not server.handle_request()
    finally:
        theirs.close()
        os.close(server.wakeup_r)
        os.close(server.wakeup_w)


def test_refused_fork_is_reported_and_the_server_continues(monkeypatch):
    """At a process limit a checkpoint's writer may fail to start; the training continues."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = fork_server.ForkServer(theirs, ())
    null = os.open(os.devnull, os.O_RDWR)

    def refused():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    try:
        launch = fork_server.LaunchWorker(7, "", "/", fork_server.WORKER)
        socket.send_fds(ours, [fork_server.encode(launch)], [null, null, null])
        assert server.handle_request()
        reply = fork_server.decode_reply.decode(ours.recv(4096))
        assert isinstance(reply, fork_server.NotLaunched)
        assert reply.id == 7 and "Resource temporarily unavailable" in reply.problem
        ours.send(fork_server.encode(fork_server.Ping()))
        assert server.handle_request()
    finally:
        for descriptor in (null, server.wakeup_r, server.wakeup_w):
            os.close(descriptor)
        ours.close()
        theirs.close()


def test_crashed_worker_leaves_no_core_file(tmp_path: Path) -> None:
    def crash() -> None:
        os.abort()

    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))  # as a developer's shell may have it
    try:
        ended = asyncio.run(play(tmp_path, crash))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert os.WTERMSIG(ended.exited.status) == signal.SIGABRT and not os.WCOREDUMP(ended.exited.status)
    assert not list(tmp_path.rglob("core*"))
