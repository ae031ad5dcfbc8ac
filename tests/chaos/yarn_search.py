"""Scenario: an executor of a search on YARN is killed; its trial continues from the checkpoint on HDFS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from hopsml import experiment
from hopsml.storage import checkpoints, filesystem, urls
from hopsml.storage.run_dir import RunDir
from tests.helpers.cluster.workloads import wait_until

STEPS, STEP_S = 10, 0.3
WAIT_S = 90.0
PATIENCE_S = 10.0  # of a step that is well on, until the harm is done


def train(x: int, folder: str, steps: int, step_s: float) -> float:
    """Make steps with a checkpoint each; a file has the first step. The second trial waits for its executor's end."""
    import os
    import time

    import hopsml

    trial = hopsml.trial()
    assert trial is not None
    saved = trial.resume_checkpoint
    done = int((saved / "state").read_text()) if saved is not None else 0
    Path(folder, f"began-{x}-{done}-{os.getpid()}").touch()
    for step in range(done + 1, steps + 1):
        time.sleep(step_s)
        patience = time.monotonic() + PATIENCE_S
        while x == 2 and step > steps // 2 and not Path(folder, "killed").exists() and time.monotonic() < patience:
            time.sleep(0.05)
        with trial.checkpoint(step) as place:
            (place / "state").write_text(str(step))
        hopsml.report(step=step, value=float(x * step))
    return float(x * steps)


def play(folder: Path) -> tuple[Any, RunDir, int]:
    """Return the result, its directory, and the step of the trial's newest checkpoint on HDFS when it was hit."""
    run = experiment.submit_search(
        train, {"x": ("DISCRETE", [1, 2, 3, 4])}, searcher="grid", num_trials=None, metric="value", max_executors=2,
        args={"folder": str(folder), "steps": STEPS, "step_s": STEP_S}, progress=False, retries=0, keep_warm=30,
    )  # fmt: skip
    mark = wait_until(lambda: next(folder.glob("began-2-0-*"), None), "the second trial to begin", WAIT_S)
    directory = RunDir(run.run_dir)

    def saved() -> int | None:
        trials = urls.join(directory.url, "trials")
        for entry in filesystem.walk(trials) if filesystem.exists(trials) else ():
            if entry.is_dir and urls.name(entry.url) == "checkpoints" and parameters(entry.url).get("x") == 2:
                return checkpoints.latest_complete(entry.url)
        return None

    step = wait_until(saved, "a checkpoint of the second trial on HDFS", WAIT_S)
    runner = psutil.Process(int(mark.name.rpartition("-")[2]))
    next(above for above in runner.parents() if "java" in above.name()).kill()
    (folder / "killed").touch()
    return run.result(WAIT_S), directory, step


def parameters(checkpoints_url: str) -> dict[str, Any]:
    """Return the configuration of the trial with these checkpoints; {} if it does not exist yet."""
    url = urls.join(urls.parent(checkpoints_url), ".hparams.json")
    return json.loads(read(url)) if filesystem.exists(url) else {}


def read(url: str) -> bytes:
    """Return the content of a file on any store."""
    return filesystem.for_url(url).read_bytes(url)


def check(result: Any, directory: RunDir, folder: Path, step: int) -> None:
    """Check that only steps after the checkpoint were lost, and that all files of the search are on HDFS."""
    assert result.counts["completed"] == 4 and result.config == {"x": 4} and result.value == 4.0 * STEPS
    begun = sorted(int(path.name.split("-")[2]) for path in folder.glob("began-2-*"))
    assert begun[0] == 0 and begun[-1] >= step, begun
    for row in result.rows:
        place = urls.join(directory.url, "trials", row["trial_id"])
        record = json.loads(read(urls.join(place, "trial.json")))
        assert record["status"] == "FINALIZED" and record["params"] == row["config"]
        assert checkpoints.latest_complete(urls.join(place, "checkpoints")) == STEPS
    assert json.loads(read(urls.join(directory.url, "best.json")))["config"] == {"x": 4}
    assert filesystem.exists(urls.join(directory.url, "trials.parquet"))
    assert (directory.read_status() or {})["state"] == "FINISHED"
