"""Scenario: the driver is stopped while its group is about to continue without a lost member."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hopsml.storage import checkpoints
from tests.chaos import history, mending_driver
from tests.chaos.runner import Evidence, Outcome, judge, left_over, pids
from tests.chaos.scenarios import Scenario
from tests.helpers.cluster.elastic_workload import announce
from tests.helpers.cluster.workloads import wait_until

WAIT_S = 120.0
ROOT = Path(__file__).parents[2]


def play(folder: Path, frozen_s: float, store: Path, framework: str = "arrays") -> Outcome:
    """Stop the driver for ``frozen_s`` seconds during a reconfiguration; agents survive it for ten.

    ``framework``: "arrays" or "torch".
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, mending_driver.__file__, str(folder), framework]
    with open(folder / "output", "wb") as output:
        driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    problem, value, notes, disturbed, reached = "", None, list[str](), 0.0, 0
    try:
        wait_until(lambda: _step(folder) >= 7 and saved(store) >= 0, "steps, and a checkpoint", WAIT_S)
        stays = _pid(folder, 1)
        os.kill(stays, signal.SIGSTOP)  # the others search for this file
        disturbed = time.time()
        os.kill(_pid(folder, 2), signal.SIGKILL)
        wait_until((folder / "mending").exists, "the beginning of an in-place reconfiguration", WAIT_S)
        os.kill(driver.pid, signal.SIGSTOP)
        os.kill(stays, signal.SIGCONT)
        time.sleep(frozen_s)  # the harm itself, not a wait for something
        reached = _step(folder) - saved(store)
        os.kill(driver.pid, signal.SIGCONT)
        announce(folder / "disturbed", "")
        driver.wait(WAIT_S)
        found = json.loads((folder / "result").read_text())
        value, notes = found["value"], found["notes"]
    except (TimeoutError, subprocess.TimeoutExpired, OSError) as error:
        problem = f"{type(error).__name__}: {error}; {(folder / 'output').read_text(errors='replace')[-1500:]}"
    finally:
        driver.send_signal(signal.SIGCONT)
        driver.kill()
        driver.wait()
    # Agents without messages for so long end with the commits that only they hold: the checkpoints on the store remain.
    evidence = Evidence(
        history.generations(folder),
        disturbed,
        max(3, reached + 2),
        value,
        problem,
        left_over(pids(folder)),
        notes,
        mends=history.mends(folder),
    )
    return judge(
        Scenario(f"the driver is stopped for {frozen_s:g} s during an in-place reconfiguration", lambda trial: None),
        "torch" if framework == "torch" else "local",
        evidence,
    )


def saved(store: Path) -> int:
    """Return the step of the newest complete checkpoint; -1 if there is none."""
    found = [checkpoints.latest_complete(f"file://{path}") for path in store.glob("Experiments/*/checkpoints")]
    return max((step for step in found if step is not None), default=-1)


def _step(folder: Path) -> int:
    path = folder / "step-0"
    return int(path.read_text()) if path.exists() else 0


def _pid(folder: Path, rank: int) -> int:
    """Return the pid of a rank in the newest generation: on a loaded machine the group may have started without it."""
    found = wait_until(lambda: list(folder.glob(f"pid-{rank}-*")), f"rank {rank}", WAIT_S)
    return int(max(found, key=lambda path: int(path.name.rpartition("-")[2])).read_text())
