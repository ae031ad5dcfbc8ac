"""Tests of runs on hosts whose clocks differ from the driver's by a day."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopsml import experiment
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.experiment.run import Run
from hopsml.tracking import catalog, listing
from tests.helpers.clock import END_S
from tests.helpers.clock_shift import DAY_S, HINDRANCE, shifted

pytestmark = [pytest.mark.local, pytest.mark.skipif(HINDRANCE != "", reason=HINDRANCE)]

STEPS = 12
_START = LocalBackend._start


def start_agents_with(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], count: int) -> None:
    """Shift the clocks of the first ``count`` agents and of their workers."""
    left = [count]

    def start(bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
        alone = msgspec.structs.replace(bootstrap, zygote="")  # whose clock is the driver's
        if not left[0]:
            return _START(alone, index)
        left[0] -= 1
        with pytest.MonkeyPatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            return _START(alone, index)

    monkeypatch.setattr(LocalBackend, "_start", staticmethod(start))


def trains(steps: int) -> dict[str, Any]:
    """Reduce, report and commit; rank 1 is killed once."""
    import os
    import signal
    import time

    import numpy as np

    import hopsml
    from hopsml.cluster.worker.context import current

    state, context = hopsml.elastic.State(step=0, total=0.0), current()
    assert context is not None
    while state.step < steps:
        state.total = state.total + float(hopsml.all_reduce(np.ones(4), "sum")[0])
        state.step += 1
        hopsml.report(state.step, total=state.total)
        state.commit()
        time.sleep(0.1)
        if state.step == steps // 2 and context.generation == 0 and context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"step": state.step, "total": state.total, "off_s": os.environ.get("CLOCK_SHIFT_S", "0")}


def lines_of(folder: str, pattern: str) -> list[dict[str, Any]]:
    files = sorted(Path(folder.removeprefix("file://")).glob(pattern))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("shift_s", "agents"),
    [
        (DAY_S, 1),
        pytest.param(-DAY_S, 1, marks=pytest.mark.variant),
        pytest.param(DAY_S, 2, marks=pytest.mark.variant),
        (-DAY_S, 2),
    ],
    ids=["one host ahead", "one host behind", "driver behind", "driver ahead"],
)
def test_run_with_clocks_a_day_apart_recovers_and_is_recorded_by_the_drivers_clock(
    shift_s: int, agents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_LOCAL_SLOTS", "2")
    start_agents_with(monkeypatch, shifted(shift_s, tmp_path), agents)
    began_s = time.time()
    environment = {"HOPSML_SYSTEM_METRICS_S": "0.2"}
    try:
        run: Run = experiment.submit(
            trains, args={"steps": STEPS}, min_workers=2, max_workers=2, environment=environment, progress=False
        )
        result = run.result(END_S)
    finally:
        experiment.shutdown()
    ended_s = time.time()
    assert (result.value["step"], result.value["total"]) == (STEPS, 2.0 * STEPS)
    (note,) = [text for text in run.state.notes if "clock skew" in text]
    assert os.uname().nodename in note and f"{'+' if shift_s > 0 else '-'}86" in note and "NTP" in note
    folder = run.directory.url
    usages = lines_of(folder, "logs/*.system.jsonl")
    reports = lines_of(folder, "metrics.jsonl")
    assert usages and [line["step"] for line in reports][-1] == STEPS
    for line in (*reports, *usages):
        assert began_s - 60 <= line["time"] <= ended_s + 60, line
    stored = catalog.read(run.directory)
    assert stored.seconds is not None and 0 <= stored.seconds <= ended_s - began_s + 1
    assert listing.duration_text(stored.seconds).endswith(" s")
