"""Processes of runs on this machine with tokens: newcomers, evaluators, killed drivers; and stores by WebHDFS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml import experiment
from hopsml.experiment import applications
from hopsml.storage import checkpoints
from hopsml.storage.filesystem import for_url
from tests.helpers import scenarios
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import END_S, WAIT_S, wait_until
from tests.helpers.storage.token_runs import LIFE_S, expect, finish, notes, project_url, stored, token_file
from tests.helpers.storage.token_workload import commit_steps, evaluate_until, store_until
from tests.secure.submitting import JOBS

pytestmark = pytest.mark.secure
__all__ = ["token_file"]


def after_a_life(run: Any, lives: float = 1.2) -> None:
    """Wait until tokens that were valid at the call have expired."""
    began = time.monotonic()
    wait_until(
        lambda: time.monotonic() - began > lives * LIFE_S or not run.running(),
        "a life of tokens",
        lives * LIFE_S + WAIT_S,
    )


def test_newcomer_of_an_elastic_run_has_tokens_after_the_first_ones_have_expired(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    def workers() -> dict[int, int]:
        """The newest step of each process that has stored a file."""
        notes = {path: path.read_text().split()[-2] for path in tmp_path.glob(scenarios.WRITTEN)}
        return {int(path.name.rpartition("-")[2]): int(name.rpartition("-")[2]) for path, name in notes.items()}

    def token_files() -> set[str]:
        return {(tmp_path / f"tokens-{pid}").read_text() for pid in workers()}

    with test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3):
        args = {"local": str(tmp_path), "folder": expect(secure_hdfs, tmp_path)}
        run = experiment.submit(commit_steps, args=args, min_workers=1, max_workers=2, progress=False)
        wait_until(lambda: len(token_files()) == 2, "files of both workers", END_S)
        after_a_life(run)
        first = token_files()
        agents = list(applications.get_or_start().coordinator.door.agents.values())
        assert len(agents) == 2 and run.running()
        os.kill(agents[-1].hello.pid, signal.SIGKILL)
        wait_until(lambda: token_files() - first or not run.running(), "files of the newcomer", END_S)
        (tmp_path / "last.new").write_text(f"{max(workers().values()) + 20}")
        (tmp_path / "last.new").rename(tmp_path / "last")
        run.result(END_S)
    assert len(token_files()) == 3 and "could not be obtained" not in notes(run)


def test_evaluator_uses_the_token_file_of_its_agent(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    def save(step: int) -> None:
        source = tmp_path / f"step-{step}"
        source.mkdir()
        (source / "value").write_text("0.5")
        checkpoints.commit(source, f"{training.run_dir}/checkpoints", step)

    with test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3):
        expect(secure_hdfs, tmp_path)
        with experiment.recorded("a training") as training:
            save(10)
            run = experiment.submit_evaluation(
                evaluate_until, training.run_dir, args={"local": str(tmp_path)}, metric="loss", progress=False
            )
            wait_until(lambda: (tmp_path / "evaluator").exists() or not run.running(), "the first evaluation", END_S)
            after_a_life(run)
            save(20)
        result = run.result(END_S)
        folder = f"{training.run_dir}/evaluations"
        found = {entry.url.rpartition("/")[2] for entry in for_url(folder).list_dir(folder)}
    assert result.metrics["evaluated"] == 2 and {"step-000000010.json", "step-000000020.json"} <= found
    own = (tmp_path / "evaluator").read_text()
    assert own.startswith(tempfile.gettempdir()) and own.endswith("/tokens") and own != str(token_file)


def test_killed_driver_leaves_no_token_file_to_the_next_one(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    scratch, second = tmp_path / "tmp", tmp_path / "second"
    scratch.mkdir()
    second.mkdir()
    folder = expect(secure_hdfs, tmp_path)

    def driver(local: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(JOBS / "store.py"), str(local), f"{folder}{'' if local == tmp_path else '-2'}"]
        return subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.getcwd()})

    def token_files() -> list[Path]:
        return [path for path in scratch.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"HDTS"]

    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3):
        killed = driver(tmp_path)
        wait_until(lambda: (tmp_path / "written-0").exists() or killed.poll() is not None, "the first file", END_S)
        children = psutil.Process(killed.pid).children(recursive=True)
        assert len(token_files()) == 3, "of the driver and of both agents"
        killed.kill()
        killed.wait()
        wait_until(lambda: not any(map(lives, children)), "the end of its agents", END_S)
        (second / "stop").touch()
        assert driver(second).wait(END_S) == 0
    assert token_files() == []


def lives(process: psutil.Process) -> bool:
    """Return True for a process that has not ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_project_by_webhdfs_is_written_with_tokens(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    expect(secure_hdfs, tmp_path)
    project = project_url(secure_hdfs, tmp_path).replace(secure_hdfs.namenode_url, secure_hdfs.webhdfs_url)
    with (
        test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3),
        pytest.MonkeyPatch.context() as by_web,
    ):
        by_web.setenv("HOPSML_PROJECT_URL", project)
        args = {"local": str(tmp_path), "folder": f"{project}/stored"}
        run = experiment.submit(store_until, args=args, num_workers=2, progress=False)
        assert run.run_dir.startswith(f"{secure_hdfs.webhdfs_url}/user/alice/")
        wait_until(lambda: stored(f"{project}/stored", 2) or not run.running(), "the first files", END_S)
        after_a_life(run, 2.0)
        finish(run, tmp_path, f"{project}/stored")
