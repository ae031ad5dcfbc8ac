"""Tests of Ctrl-C in a script, of what it names, and of ``hopsml runs resume``, which continues the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S, wait_until
from tests.helpers.command_line import Cli

SCRIPT = """
from hopsml import experiment

def train(path):
    import os, time
    import numpy as np
    import hopsml
    from hopsml.elastic import Sampler, State

    state = State(step=0, w=np.zeros(1))
    first = None
    for batch in state.resume(Sampler(20, global_batch_size=1, shuffle=False)):
        first = state.step if first is None else first
        state.step += 1
        state.commit()
        hopsml.report(step=state.step, loss=1.0)
        while state.step >= 5 and not os.path.exists(path):
            time.sleep(0.05)
    return {"first": first}

if __name__ == "__main__":
    import sys
    experiment.collective_all_reduce(
        train, args={"path": sys.argv[1]}, min_workers=1, max_workers=1, checkpoint_every_s=0.05, name="interrupted"
    )
"""


def interrupted(script: Path, project: Path, *arguments: str) -> str:
    """Return the output of a script interrupted once its run has a checkpoint."""
    environment = {**os.environ, "HOPSML_PROJECT_URL": f"file://{project}", "HOPSML_PROGRESS": "lines"}
    with subprocess.Popen(
        [sys.executable, script, *arguments], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: any(project.glob("Experiments/*/checkpoints/step-*")), "a checkpoint", END_S)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            return process.communicate(timeout=END_S)[1]
        finally:
            process.kill()


@pytest.mark.local
def test_interrupted_script_names_the_resume_command_which_works(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, script, flag = tmp_path / "project", tmp_path / "train.py", tmp_path / "go-on"
    script.write_text(SCRIPT)
    text = interrupted(script, project, str(flag))
    (run,) = (path.name for path in (project / "Experiments").iterdir())
    assert text.count("Traceback (most recent call last)") == 1 and "/hopsml/experiment/" not in text
    last_line = text.splitlines()[-1]
    assert re.match(rf"KeyboardInterrupt: run {run} was cancelled at step \d+: ", last_line), text
    assert f"experiment.resume({run!r})" in last_line and f"`hopsml runs resume {run}`" in last_line
    assert re.search(r"from its checkpoint of step \d+$", last_line)
    flag.touch()
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{project}")
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # as the command sets it, for the original's
    ended = cli("resume", run)
    assert ended.status == 0 and "is now" not in ended.err, ended.err
    (later,) = (path.name for path in (project / "Experiments").iterdir() if path.name != run)
    assert later in ended.out
    assert RunDir(f"file://{project}/Experiments/{later}").read_run()["continues"].endswith(run)
    again = cli("runs", "resume", later)
    assert again.status == 1 and "has finished, so it cannot be resumed" in again.err


@pytest.mark.local
def test_search_is_resumed_in_its_own_directory(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def score(lr: float) -> float:
        return lr

    try:
        space = {"lr": ("DOUBLE", [0, 1])}
        found = experiment.search(score, space, "random", num_trials=2, progress=False, max_executors=1)
    finally:
        experiment.shutdown()
    ended = cli("runs", "resume", found.run_id, "--num-trials", "1", "--json")
    assert ended.status == 0, ended.err
    assert len((tmp_path / "Experiments" / found.run_id / "trials.parquet").read_bytes()) > 0
    assert '"run_id": "' + found.run_id in ended.out.replace('":"', '": "')


@pytest.mark.fast
def test_run_that_cannot_be_resumed_is_explained(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    assert "has no run with this id or name" in cli("resume", "app_9").err
    folder = tmp_path / "Experiments" / "app_1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"verb": "launch", "combinations": ["lr=1", "lr=2"], "workers": 1}')
    (folder / "status.json").write_text('{"state": "CANCELLED"}')
    assert "give the folder of one of them" in cli("resume", "app_1").err
    assert "is no search; omit it" in cli("resume", "app_1", "--num-trials", "3").err
