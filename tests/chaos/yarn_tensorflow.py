"""Scenario with TensorFlow: its final weights equal those of an undisturbed training by numpy alone."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np

from hopsml import experiment
from tests.chaos.runner import OVER, Outcome, left_over, pids
from tests.helpers.cluster.workloads import wait_until
from tests.integration.spark.test_elastic_digits import EPOCHS, WAIT_S, await_step, submit, undisturbed

COMMIT_EVERY = 5
STEPS = EPOCHS * -(-1797 // 128)  # the digits of scikit-learn, in batches of 128


def play(folder: Path) -> Outcome:
    """Kill rank 1 of two, and wait for the end."""
    run = submit(str(folder), 2, 2, over=OVER or "tensorflow")
    try:
        await_step(folder, 12)
        os.kill(int((folder / "pid-1-0").read_text()), signal.SIGKILL)
        killed, done = time.time(), int((folder / "step-0").read_text())
        began = folder / "pid-0-1"
        wait_until(began.exists, "the next generation", WAIT_S)
        wait_until(lambda: (folder / "step-0").stat().st_mtime > began.stat().st_mtime, "its first step", WAIT_S)
        recovered_s = (folder / "step-0").stat().st_mtime - killed
        value = run.result(WAIT_S).value
    finally:
        experiment.shutdown()
    ended = re.search(r"generation 0 ended (?:at|.*the commit of) step (\d+)", "\n".join(run.state.notes))
    lost = done - int(ended[1]) if ended else done
    same = all(
        np.allclose(ours, theirs, rtol=1e-3, atol=1e-5)
        for ours, theirs in zip(value["weights"], undisturbed(), strict=True)
    )
    problem = "" if same else "the weights differ from those of an undisturbed run"
    if lost > COMMIT_EVERY:
        problem = f"{lost} steps were lost, at most {COMMIT_EVERY} may be"
    left = left_over(pids(folder))
    if left:
        problem = f"left over: {', '.join(left)}"
    return Outcome(
        "kill -9 of a worker of a TensorFlow strategy",
        "yarn",
        "FINISHED",
        passed=not problem and value["batches"] == STEPS,
        recovered_s=round(recovered_s, 2),
        steps_lost=lost,
        samples_repeated=max(0, value["batches"] - STEPS),
        samples_skipped=max(0, STEPS - value["batches"]),
        left_over=len(left),
        problem=problem,
    )
