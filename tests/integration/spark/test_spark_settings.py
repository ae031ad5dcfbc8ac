"""Tests of Spark's settings that copy, repeat or exclude tasks: a lost process costs nothing else, and no agent is doubled.

Each application runs on a standalone cluster of three machines, as far as Spark can tell: copies of a task start on
another machine only.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.spark.test_drivers import Driver
from tests.integration.spark.test_standalone import ROOT, run_on
from tools.spark_standalone import StandaloneSpark

pytestmark = [pytest.mark.spark]

JOB = Path(__file__).parent / "jobs" / "losses.py"
LOSSES = ("launch", "lose_worker", "lose_agent", "lose_executor", "search")
AGENTS = "hopsml-agents-"  # beginning of the names of their job groups


def profile(folder: Path, settings: dict[str, str]) -> Path:
    """A folder of profiles, in which "standalone" has these settings, and an event log in ``folder``."""
    (folder / "events").mkdir()
    settings = {
        "spark.cores.max": "3",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        **settings,
    }
    lines = (ROOT / "conf" / "standalone.yaml").read_text().replace("  spark.cores.max: 2\n", "").rstrip()
    more = "".join(f"\n  {key}: {json.dumps(value)}" for key, value in settings.items())
    (folder / "standalone.yaml").write_text(f"{lines}{more}\n")
    return folder


def started_tasks(folder: Path) -> tuple[int, int, int]:
    """Count tasks in an event log: those of agents, agents that were two at once, and copies of other tasks."""
    (log,) = (folder / "events").iterdir()
    stages: set[int] = set()
    running: Counter[tuple[int, int]] = Counter()
    count = doubled = copies = 0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            group = event["Properties"].get("spark.jobGroup.id", "")
            stages |= set(event["Stage IDs"]) if group.startswith(AGENTS) else set()
        elif event["Event"] in ("SparkListenerTaskStart", "SparkListenerTaskEnd"):
            slot = event["Stage ID"], event["Task Info"]["Index"]
            begins = event["Event"].endswith("Start")
            running[slot] += 1 if begins else -1
            if slot[0] in stages:
                count += begins
                doubled += begins and running[slot] > 1
            else:
                copies += begins and event["Task Info"]["Speculative"]
    return count, doubled, copies


def play(folder: Path, settings: dict[str, str], *plays: str, master: str = "") -> tuple[int, int, int]:
    """Run these plays of ``jobs/losses.py`` in one application; what ``started_tasks`` has counted."""
    conf = profile(folder, settings)
    with contextlib.ExitStack() as cluster:
        if not master:
            master = cluster.enter_context(StandaloneSpark(workers=3, cores=1, own_addresses=True)).url
        arguments = [str(folder / "plays"), *plays]
        done = run_on(master, JOB, arguments, folder / "project", HOPSML_CONF_DIR=str(conf))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count("held: ") == len(plays), done.stdout
    return started_tasks(folder)


EAGER = {  # Spark copies a task as soon as another one of its job has ended
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.01",
    "spark.speculation.multiplier": "0.01",
}


def test_speculation_copies_slow_tasks_but_no_agent(tmp_path: Path) -> None:
    count, doubled, copies = play(tmp_path, EAGER, *LOSSES, "remain_uncopied")
    assert count >= 4 and not doubled and copies >= 1


@pytest.mark.variant
@pytest.mark.parametrize(
    "settings",
    [
        {"spark.task.maxFailures": "1"},
        {"spark.excludeOnFailure.enabled": "true"},
        {"spark.stage.maxConsecutiveAttempts": "1"},
        {"spark.python.worker.reuse": "false"},
        {"spark.shuffle.push.enabled": "true"},
        {
            "spark.shuffle.service.enabled": "false",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.maxExecutors": "3",
        },
    ],
    ids=lambda settings: next(iter(settings)).removeprefix("spark."),
)
def test_lost_process_affects_no_other_agent_and_duplicates_none(tmp_path: Path, settings: dict[str, str]) -> None:
    count, doubled, copies = play(tmp_path, settings, *LOSSES, "remain")
    assert count >= 4 and not doubled and not copies


@pytest.mark.variant
def test_lost_agent_under_a_local_master_affects_no_other(tmp_path: Path) -> None:
    """Under a local master, Spark ends a job at a task's first failure, whatever the settings."""
    count, doubled, copies = play(tmp_path, {}, "launch", "lose_worker", "lose_agent", "search", master="local[3]")
    assert count >= 3 and not doubled and not copies


@pytest.mark.variant
def test_speculation_threshold_is_refused(tmp_path: Path) -> None:
    """With a threshold Spark would start a copy of a single task, too."""
    driver = Driver(tmp_path, speculation="true", speculation_task_duration_threshold="30min")
    try:
        driver.say("quick")
        answer = driver.hear()
    finally:
        driver.end()
    assert answer["error"] == "CoordinatorLost" and "Remove spark.speculation.task.duration" in answer["message"]
