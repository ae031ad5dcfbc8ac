"""Runs with tokens for a Kerberized HDFS that refuses writes for a while: quota, safe mode, permission."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.storage.filesystem import for_url
from tests.helpers import scenarios
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import END_S, wait_until
from tests.helpers.storage.token_runs import LIFE_S, expect, notes, project_url, token_file
from tests.helpers.storage.token_workload import log_until

pytestmark = pytest.mark.secure
__all__ = ["token_file"]

FAULTS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any, str], Any], str]] = {
    "quota": (
        lambda cluster, path: cluster.dfsadmin("-setSpaceQuota", "1", path),
        lambda cluster, path: cluster.dfsadmin("-clrSpaceQuota", path),
        "the space quota is used up",
    ),
    "safe mode": (
        lambda cluster, path: cluster.dfsadmin("-safemode", "enter"),
        lambda cluster, path: cluster.dfsadmin("-safemode", "leave"),
        "safe mode",
    ),
    "permission": (
        lambda cluster, path: cluster.fs("-chmod", "-R", "500", path),
        lambda cluster, path: cluster.fs("-chmod", "-R", "700", path),
        "Permission denied|not permitted|permission",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refusal_of_writes_that_passes_costs_a_note_and_nothing_else(
    fault: str, secure_hdfs: Any, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end, words = FAULTS[fault]
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "120")
    path = project_url(secure_hdfs, tmp_path).removeprefix(secure_hdfs.namenode_url)
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3):
        expect(secure_hdfs, tmp_path)
        run = experiment.submit(log_until, args={"local": str(tmp_path)}, num_workers=2, progress=False)
        urls = [f"{run.run_dir}/events/events.out.tfevents.{rank}" for rank in range(2)]
        wait_until(lambda: all(map(holds_something, urls)), "the first events", END_S)
        begin(secure_hdfs, path)
        try:
            wait_until(lambda: "mirroring is behind" in notes(run), "the note", END_S)
            before = steps_of(run)
            wait_until(lambda: steps_of(run) > before + 20 or not run.running(), "the training goes on", END_S)
        finally:
            end(secure_hdfs, path)
        (tmp_path / "stop").touch()
        run.result(END_S)
        assert any(word in notes(run) for word in words.split("|")), notes(run)
        for rank, url in enumerate(urls):
            scenarios.expect_copy(tmp_path / f"events-{rank}", url)
            log = for_url(url).read_bytes(f"{run.run_dir}/logs/g0-rank{rank}.log").decode()
            count = (tmp_path / f"events-{rank}").stat().st_size // 8
            assert log.splitlines()[-1] == f"line {count}"
        assert json.loads(for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json"))["state"] == "FINISHED"


def holds_something(url: str) -> bool:
    """Return True if a file exists and is not empty."""
    try:
        return for_url(url).status(url).length > 0
    except FileNotFoundError:
        return False


def steps_of(run: Any) -> int:
    """Return the newest step of the workers."""
    return max((member["step"] or 0 for member in run.status()["members"]), default=0)
