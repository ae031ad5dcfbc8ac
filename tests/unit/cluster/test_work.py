"""Tests of a worker's life on its agent: reports to the run if it does not start, and if it ended unread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from hopsml.cluster.agent import work as work_module
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.local_tree import LocalTree, MissingFiles
from hopsml.cluster.agent.network import Outbox
from hopsml.cluster.agent.work import Work
from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.shared.protocol import (
    CommitSource,
    Formation,
    Launch,
    Message,
    Persisted,
    Resume,
    Welcome,
    WorkerUpdate,
)
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, RunSpec
from hopsml.cluster.shared.worker_events import (
    FailureReport,
    ReportedStep,
    WorkerClosed,
    WorkerFinished,
    WorkerReports,
    WorkerStarted,
    WorkNote,
    shifted,
)
from hopsml.core import processes
from hopsml.storage import checkpoints, filesystem
from tests.helpers import small_disk
from tests.helpers.cluster.workloads import wait_until
from tests.unit.experiment.test_attempts import directory

pytestmark = pytest.mark.fast

LAUNCH = Launch(
    run_id="run", generation=1, rank=1, local_rank=0, role="worker", task_index=0, gpu_indices=(), ring_order="",
    environment={},
)  # fmt: skip


def events_of(messages: list[Message], kind: type[Any]) -> list[Any]:
    """The events of one kind among the messages to the coordinator."""
    updates = [message for message in messages if isinstance(message, WorkerUpdate)]
    return [update.event for update in updates if isinstance(update.event, kind)]


def formation(folder: Path, resume_url: str = "") -> Formation:
    return Formation(
        run_id="run", generation=1, spec=RunSpec(group=FixedGroup(grace_s=0.0, flush_s=0.0), storage_timeout_s=1.0),
        payload=b"", cluster_json="", leader="", world_size=2, run_url=f"file://{folder}", resume=Resume(resume_url),
    )  # fmt: skip


def failure_of(folder: Path, resume_url: str = "", kill: bool = False, scratch: Path | None = None) -> FailureReport:
    """Return the report of a worker that cannot start; ``kill``: its fork server has just been killed."""
    messages: list[Message] = []

    async def scenario() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        work = Work(
            formation(folder, resume_url),
            LAUNCH,
            send=messages.append,
            room=Outbox().wait_for_room,
            folder=(scratch or folder) / "agent",
            environment={},
            sys_path=(),
        )
        if kill:
            os.kill(server._process.pid, signal.SIGKILL)
        await work.run(server)
        await server.close()

    asyncio.run(scenario())
    failed, closed = events_of(messages, object)
    assert isinstance(failed, FailureReport) and isinstance(closed, WorkerClosed)
    return failed


@pytest.mark.parametrize(("url", "passes"), [("webhdfs://127.0.0.1:1/run", True), ("nosuch://somewhere/run", False)])
def test_unreachable_store_and_unknown_storage_scheme_are_distinguished(
    tmp_path: Path, url: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "1")
    failed = failure_of(tmp_path, url)
    filesystem.close_all()
    assert failed.storage == passes and not failed.raised
    assert failed.cause.startswith("the store could not be read: ") == passes


@pytest.mark.parametrize(
    ("refusal", "passes"),
    [
        ({"exception": "SecretManager$InvalidToken", "message": "token (token for alice) is expired"}, True),
        ({"exception": "AccessControlException", "message": "Permission denied: user=bob"}, False),
    ],
)
def test_expired_token_is_waited_for_and_a_missing_permission_is_not(
    tmp_path: Path, refusal: dict[str, str], passes: bool
) -> None:
    class NameNode(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"RemoteException": refusal}).encode()
            self.send_response(403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), NameNode) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        failed = failure_of(tmp_path, f"webhdfs://127.0.0.1:{server.server_port}/run")
        server.shutdown()
        thread.join()
    filesystem.close_all()
    assert failed.storage == passes and failed.cause.startswith("the store could not be read: ")


def test_full_scratch_disk_is_named_as_the_cause(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "scratch", 100) as scratch:
        small_disk.fill(scratch)
        failed = failure_of(tmp_path, scratch=scratch)
    assert f"No space left on device (in {scratch}/agent; set TMPDIR to use another disk)" in failed.cause


def test_killed_fork_server_is_named_as_the_cause(tmp_path: Path) -> None:
    failed = failure_of(tmp_path, kill=True)
    assert failed.cause.startswith(
        "the process that starts workers on this host was killed: the fork server: killed by "
    )
    assert failed.outside


def test_agent_that_finds_a_newer_checkpoint_reports_it_and_starts_no_worker(tmp_path: Path) -> None:
    run = directory(tmp_path, "app_1", 1)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / checkpoints.STATE_FILE).write_text("content")
    checkpoints.commit(tmp_path / "state", run.checkpoints, 36)
    messages: list[Message] = []

    async def scenario() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        complete = msgspec.structs.replace(
            formation(tmp_path), run_url=run.url, commit=CommitSource(stored=26), spec=RunSpec(group=ElasticGroup())
        )
        work = Work(
            complete,
            LAUNCH,
            send=messages.append,
            room=Outbox().wait_for_room,
            folder=tmp_path / "agent",
            environment={},
            sys_path=(),
        )
        running = asyncio.create_task(work.run(server))
        while not messages:
            await asyncio.sleep(0.01)
        work.stop(0.0, 0.0, keep=True)
        await running
        await server.close()

    asyncio.run(scenario())
    assert messages == [Persisted("run", 36), WorkerUpdate("run", 1, WorkerClosed())]


def test_last_commit_and_last_files_are_stored_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers the agent's own writing only once its mirror is done: else it would wait for itself."""
    run = directory(tmp_path, "app_1", 1)
    Path(run.checkpoints).write_text("in the way")  # no directory can be made here
    spec = RunSpec(group=ElasticGroup(grace_s=0.0, flush_s=5.0, retry_s=5.0), storage_timeout_s=1.0)
    complete = msgspec.structs.replace(formation(tmp_path), run_url=run.url, run_id=run.run_id, spec=spec)

    async def close(self: LocalTree, flush_s: float, retry_s: float, cut: asyncio.Event) -> MissingFiles:
        Path(run.checkpoints).unlink()
        return MissingFiles()

    async def scenario() -> None:
        held = HeldCommits(run.run_id, tmp_path / "agent", "token", lambda messages: None)
        held.slots.write(0, 9, [b"content"])
        held.record_commit(9, 0)
        work = Work(
            complete, msgspec.structs.replace(LAUNCH, rank=0), send=lambda message: None, room=Outbox().wait_for_room,
            folder=tmp_path / "agent", environment={}, sys_path=(), commits=held,
        )  # fmt: skip
        await work.last_files.close_tree(work.formation, work.launch, held)
        await held.close()

    (tmp_path / "agent").mkdir()
    monkeypatch.setattr(LocalTree, "close", close)
    asyncio.run(scenario())
    assert checkpoints.steps(run.checkpoints) == [9]


# ------------------------------------------------------------------------------------- a worker that ends before it is read


def read_after_the_end(folder: Path, function: Callable[[], Any], kill_server: bool = False) -> list[Message]:
    """Return the messages about a worker whose agent reads nothing until an hour after the worker's end.

    ``kill_server``: the fork server is killed as well, before anything is read.
    """
    messages: list[Message] = []
    loop = asyncio.new_event_loop()
    passed_s = 0.0
    loop.time = lambda: time.monotonic() + passed_s  # type: ignore[method-assign] # the hour takes no time
    read_on = asyncio.Event()

    async def scenario() -> None:
        nonlocal passed_s
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        chief = msgspec.structs.replace(LAUNCH, rank=0, role="chief")
        complete = msgspec.structs.replace(formation(folder), payload=cloudpickle.dumps((function, {})))
        work = Work(
            complete, chief, send=messages.append, room=read_on.wait, folder=folder / "agent", environment={}, sys_path=()
        )  # fmt: skip
        running = asyncio.create_task(work.run(server))
        await asyncio.to_thread(
            wait_until, lambda: work._process.pid and processes.has_ended(work._process.pid), "the worker's end"
        )
        if kill_server:
            os.kill(server.pid, signal.SIGKILL)
        while server._exited:  # until the agent has received that end
            await asyncio.sleep(0.01)
        passed_s = 3600.0
        for _ in range(100):  # of the loop's turns
            await asyncio.sleep(0)
        read_on.set()
        await running
        await server.close()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return messages


def steps_reported(messages: list[Message]) -> list[int | None]:
    return [report.step for event in events_of(messages, WorkerReports) for report in event.reports]


def report_and(end: Callable[[], Any]) -> Callable[[], Any]:
    """A training function that reports 300 steps and then calls ``end``."""

    def train() -> Any:
        import hopsml

        for step in range(300):
            hopsml.report(step=step, loss=0.5)
        return end()

    return train


@pytest.mark.parametrize("kill_server", [False, True], ids=["", "fork server killed afterwards"])
def test_reports_and_result_of_a_worker_that_ended_before_reading_are_not_lost(
    tmp_path: Path, kill_server: bool
) -> None:
    run = directory(tmp_path, "app_1", 1)
    messages = read_after_the_end(
        Path(run.url.removeprefix("file://")), report_and(lambda: {"steps": 300}), kill_server
    )
    assert steps_reported(messages) == list(range(300))
    assert events_of(messages, FailureReport) == []
    (finished,) = events_of(messages, WorkerFinished)
    assert cloudpickle.loads(finished.result)["steps"] == 300
    assert len(Path(run.url.removeprefix("file://"), "metrics.jsonl").read_text().splitlines()) == 300


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: os._exit(0), "the process exited with status 0 before the training function returned"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    ],
    ids=["raises", "os._exit(0)", "is killed"],
)
def test_worker_that_failed_before_reading_keeps_its_cause_and_reports(
    tmp_path: Path, end: Callable[[], Any], cause: str
) -> None:
    run = directory(tmp_path, "app_1", 1)
    messages = read_after_the_end(Path(run.url.removeprefix("file://")), report_and(end))
    assert steps_reported(messages) == list(range(300))
    (failed,) = events_of(messages, FailureReport)
    assert cause in failed.cause


def messages_of(folder: Path, function: Callable[[], Any]) -> list[Message]:
    """Run a worker to its end; return what its agent sends."""
    messages: list[Message] = []

    async def scenario() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        complete = msgspec.structs.replace(formation(folder), payload=cloudpickle.dumps((function, {})))
        work = Work(
            complete, LAUNCH, send=messages.append, room=Outbox().wait_for_room, folder=folder / "agent", environment={},
            sys_path=(),
        )  # fmt: skip
        await work.run(server)
        await server.close()

    asyncio.run(scenario())
    return messages


def test_thread_that_waits_for_storage_after_the_function_returned_may_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "written"

    def train() -> str:
        import threading

        from hopsml.storage import waiting

        def store() -> None:
            with waiting.StorageWait():  # as in a call of hopsml.hdfs while a NameNode fails over
                time.sleep(3.0)
            written.touch()

        threading.Thread(target=store).start()
        return "done"

    monkeypatch.setattr(work_module, "EXIT_GRACE_S", 1.0)
    messages = messages_of(tmp_path, train)
    assert written.exists() and not events_of(messages, WorkNote)


def test_longest_wait_for_storage_after_the_function_returned_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> str:
        import threading

        from hopsml.storage import waiting

        def store() -> None:
            with waiting.StorageWait():
                time.sleep(600)

        threading.Thread(target=store).start()
        return "done"

    monkeypatch.setattr(work_module, "EXIT_GRACE_S", 0.3)
    monkeypatch.setattr(work_module, "LONGEST_GRACE_S", 1.0)
    (note,) = (event.text for event in events_of(messages_of(tmp_path, train), WorkNote))
    assert "its process was killed" in note


def test_process_killed_after_its_function_returned_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> str:
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()
        return "done"

    monkeypatch.setattr(work_module, "EXIT_GRACE_S", 0.3)
    messages = messages_of(tmp_path, train)
    (note,) = (event.text for event in events_of(messages, WorkNote))
    assert "rank 1: its process was killed 0.3 s after its function had returned: non-daemon threads" in note
    assert events_of(messages, WorkerFinished)
    assert not events_of(messages, FailureReport)


@contextmanager
def memory_limited_to(megabytes: int) -> Iterator[Path]:
    """The file that takes processes into a control group of so little memory; skips the test where none can be made."""
    group = Path(
        "/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup", f"t-{os.getpid()}"
    )
    try:
        group.mkdir()
        limit = next(group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists())
        limit.write_text(str(megabytes << 20))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "the group's processes to end")
        group.rmdir()


def report_of_killed(folder: Path, function: Callable[[], Any], procs: Path | None = None) -> FailureReport:
    """The report of a worker that gets SIGKILL; ``procs``: takes the fork server, and so the worker, into a group."""
    messages: list[Message] = []

    async def scenario() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        if procs is not None:
            procs.write_text(str(server.pid))
        complete = msgspec.structs.replace(formation(folder), payload=cloudpickle.dumps((function, {})))
        work = Work(
            complete, LAUNCH, send=messages.append, room=Outbox().wait_for_room, folder=folder / "agent", environment={},
            sys_path=(),
        )  # fmt: skip
        await work.run(server)
        await server.close()

    asyncio.run(scenario())
    (failed,) = events_of(messages, FailureReport)
    return failed


def test_lack_of_memory_is_the_cause_of_sigkill_only_if_the_kernel_reports_it(tmp_path: Path) -> None:
    def grow() -> int:
        return len(bytearray(os.urandom(1 << 20)) * 400)

    with memory_limited_to(150) as procs:
        failed = report_of_killed(tmp_path / "a", grow, procs)
    assert failed.outside
    assert "killed by signal 9 (SIGKILL); the kernel sent this signal for lack of memory: oom_kill in" in failed.cause
    assert "; its memory limit is 150 MB (its memory had peaked at " in failed.cause
    failed = report_of_killed(tmp_path / "b", lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert (
        failed.outside
        and "neither hopsml nor the kernel (for lack of memory) sent this signal, since oom_kill in" in failed.cause
    )


def test_worker_with_an_unreadable_event_pipe_is_ended_with_that_cause(tmp_path: Path) -> None:
    """A process that it has forked, or a stray write to the descriptor, has broken the stream."""

    def train() -> None:
        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        os.write(context.event_pipe, b"\xff\xff\xff\xff no frame")
        time.sleep(600)

    assert "cannot be read" in report_of_killed(tmp_path, train).cause


@pytest.mark.parametrize(
    ("ahead_s", "shift_s"), [(0.0, 0.0), (59.0, 0.0), (-86_400.0, 86_400.0), (86_400.0, -86_400.0)]
)
def test_times_of_an_agent_with_another_clock_become_the_drivers(ahead_s: float, shift_s: float) -> None:
    found = Welcome(30.0, clock=1e9).clock_shift_s(1e9 + ahead_s)
    assert found == shift_s
    report = shifted(ReportedStep(3, {"loss": 0.5}, 1e9 + ahead_s), found)
    assert isinstance(report, ReportedStep) and abs(report.time - 1e9) <= 59.0 and report.step == 3
    assert shifted(WorkerStarted(), found) == WorkerStarted()
