"""Tests of commits' checkpoints on a real HDFS whose NameNode is frozen or killed for a while."""

from __future__ import annotations

import asyncio
import math
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.shared.protocol import Persisted
from hopsml.storage import checkpoints, filesystem, urls
from hopsml.storage.run_dir import RunDir
from tests.unit.experiment.test_attempts import formation

pytestmark = [pytest.mark.hadoop]

AWAY_S = 6.0
TIMEOUT_S = 4.0  # of one call: longer than the call of a process that waits for a processor


@pytest.fixture
def folder(hadoop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new directory on HDFS, deleted afterwards."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    url = f"{hadoop.namenode_url}/tests/{secrets.token_hex(8)}"
    filesystem.for_url(url).make_dirs(url)
    yield url
    filesystem.for_url(url).delete(url, recursive=True)
    filesystem.close_all()


async def training(run: RunDir, folder: Path, hadoop: Any, how: signal.Signals) -> tuple[list[Persisted], int]:
    """Commit 200 times a second until a checkpoint succeeds after the outage; return the reports and the commit count."""
    reports: list[Persisted] = []
    commits, back = 0, asyncio.Event()

    async def outage() -> None:
        while not reports:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(hadoop.kill, "nn", signal_number=how)
        try:
            ends = time.monotonic() + AWAY_S
            while time.monotonic() < ends or not reports[-1].problem:
                await asyncio.sleep(0.05)
        finally:
            if how is signal.SIGSTOP:
                hadoop.kill("nn", signal_number=signal.SIGCONT)
            else:
                await asyncio.to_thread(hadoop.revive, "nn")
            back.set()

    held = HeldCommits(run.run_id, folder, "token", reports.append)
    harm = asyncio.create_task(outage())
    try:
        while not back.is_set() or reports[-1].problem:
            commits += 1
            slot = held.slots.find_free_slot(held.slot)
            held.slots.write(slot, commits, [b"content"])
            held.record_commit(commits, slot)
            held.persist_if_due(formation(run, checkpoint_every_s=0.2, storage_timeout_s=TIMEOUT_S))
            await asyncio.sleep(0.005)
        await harm
    finally:
        await held.close()
    return reports, commits


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGSTOP, id="frozen"),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.variant),
    ],
)
def test_checkpoint_attempts_during_a_namenode_outage_are_few(
    hadoop: Any, folder: str, tmp_path: Path, how: signal.Signals
) -> None:
    run = RunDir(urls.join(folder, "Experiments", "app_1"))
    run.write_run({"run_id": "app_1"})
    place = tmp_path / "agent"
    place.mkdir()
    began = time.monotonic()
    reports, commits = asyncio.run(training(run, place, hadoop, how))
    # Pauses double, so the number of attempts grows with the logarithm of the time, which a busy machine prolongs.
    most = 4 + 2 * math.log2(1 + time.monotonic() - began)
    failed = [one for one in reports if one.problem]
    behind = reports[reports.index(failed[-1]) + 1]
    assert 1 <= len(failed) <= most, f"{len(failed)} attempts while {commits} commits were made"
    assert behind.missed >= len(failed) and checkpoints.latest_complete(run.checkpoints) == reports[-1].step
    assert [one for one in filesystem.walk(run.checkpoints) if urls.is_temporary(one.url)] == []
