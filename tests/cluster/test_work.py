"""A worker's life on its agent, where it does not even begin: what the run is told."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from hopsml.cluster.agent.held_commits import STATE_FILE, HeldCommits
from hopsml.cluster.agent.local_tree import LocalTree
from hopsml.cluster.agent.outbox import Outbox
from hopsml.cluster.agent.work import Work
from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.shared.protocol import (
    CommitSource,
    FailureReport,
    Formation,
    Launch,
    Message,
    Persisted,
    Resume,
    WorkerClosed,
)
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, RunSpec
from hopsml.storage import checkpoints, filesystem
from tests import small_disk
from tests.experiment.test_attempts import directory

pytestmark = pytest.mark.fast

LAUNCH = Launch(
    run_id="run", generation=1, rank=1, local_rank=0, role="worker", task_index=0, gpu_indices=(), ring_order="",
    environment={},
)  # fmt: skip


def formation(folder: Path, resume_url: str = "") -> Formation:
    return Formation(
        run_id="run", generation=1, spec=RunSpec(group=FixedGroup(grace_s=0.0, flush_s=0.0), storage_timeout_s=1.0),
        payload=b"", cluster_json="", leader="", world_size=2, run_url=f"file://{folder}", resume=Resume(resume_url),
    )  # fmt: skip


def failure_of(folder: Path, resume_url: str = "", kill: bool = False, scratch: Path | None = None) -> FailureReport:
    """What is told of a worker that cannot begin; ``kill``: because its fork server has just died."""
    told: list[Message] = []

    async def life() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        work = Work(
            formation(folder, resume_url),
            LAUNCH,
            send=told.append,
            room=Outbox().room,
            folder=(scratch or folder) / "agent",
            environment={},
            sys_path=(),
        )
        if kill:
            os.kill(server._process.pid, signal.SIGKILL)
        await work.run(server)
        await server.close()

    asyncio.run(life())
    failed, closed = told
    assert isinstance(failed, FailureReport) and isinstance(closed, WorkerClosed)
    return failed


@pytest.mark.parametrize(("url", "passes"), [("webhdfs://127.0.0.1:1/run", True), ("nosuch://somewhere/run", False)])
def test_a_store_that_does_not_answer_is_told_apart_from_one_that_never_will(
    tmp_path: Path, url: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "1")
    failed = failure_of(tmp_path, url)
    filesystem.close_all()
    assert failed.storage == passes and not failed.raised
    assert failed.cause.startswith("the store could not be read: ") == passes


def test_a_full_scratch_disk_is_named(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "scratch", 100) as scratch:
        small_disk.fill(scratch)
        failed = failure_of(tmp_path, scratch=scratch)
    assert f"No space left on device (in {scratch}/agent; TMPDIR chooses another disk)" in failed.cause


def test_a_fork_server_that_has_just_been_killed_is_named(tmp_path: Path) -> None:
    failed = failure_of(tmp_path, kill=True)
    assert failed.cause.startswith(
        "the process that starts workers on this host was killed: the fork server: killed by "
    )
    assert failed.outside


def test_an_agent_that_finds_a_newer_checkpoint_tells_the_driver_and_begins_nothing(tmp_path: Path) -> None:
    run = directory(tmp_path, "app_1", 1)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / STATE_FILE).write_text("content")
    checkpoints.commit(tmp_path / "state", run.checkpoints, 36)
    told: list[Message] = []

    async def life() -> None:
        server = ForkClient((), *fork_client.start_process(()))
        await server.ready
        whole = msgspec.structs.replace(
            formation(tmp_path), run_url=run.url, commit=CommitSource(stored=26), spec=RunSpec(group=ElasticGroup())
        )
        work = Work(
            whole, LAUNCH, send=told.append, room=Outbox().room, folder=tmp_path / "agent", environment={}, sys_path=()
        )
        running = asyncio.create_task(work.run(server))
        while not told:
            await asyncio.sleep(0.01)
        work.stop(0.0, 0.0, keep=True)
        await running
        await server.close()

    asyncio.run(life())
    assert told == [Persisted("run", 36), WorkerClosed("run", 1)]


def test_the_last_commit_and_the_last_files_go_to_the_store_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers the agent's own writing only once its mirror is done: else it would wait for itself."""
    run = directory(tmp_path, "app_1", 1)
    Path(run.checkpoints).write_text("in the way")  # no directory can be made here
    spec = RunSpec(group=ElasticGroup(grace_s=0.0, flush_s=1.0), storage_timeout_s=1.0)
    whole = msgspec.structs.replace(formation(tmp_path), run_url=run.url, run_id=run.run_id, spec=spec)

    async def close(self: LocalTree, flush_s: float) -> list[str]:
        Path(run.checkpoints).unlink()
        return []

    async def life() -> None:
        held = HeldCommits(run.run_id, tmp_path / "agent", "token", lambda told: None)
        held.slots.write(0, 9, [b"content"])
        held.committed(9, 0)
        work = Work(
            whole, msgspec.structs.replace(LAUNCH, rank=0), send=lambda message: None, room=Outbox().room,
            folder=tmp_path / "agent", environment={}, sys_path=(), commits=held,
        )  # fmt: skip
        await work._close_tree()
        await held.close()

    (tmp_path / "agent").mkdir()
    monkeypatch.setattr(LocalTree, "close", close)
    asyncio.run(life())
    assert checkpoints.steps(run.checkpoints) == [9]
