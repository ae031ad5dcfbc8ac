"""Tests of ``hopsml submit`` on a real YARN: followed, ended by signals and from outside, waiting in a full queue."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from hopsml import submission
from hopsml.core import processes
from hopsml.errors import ApplicationNotFound, ClusterUnavailable
from hopsml.storage import filesystem
from hopsml.yarn import ResourceManager, logs
from tests.helpers import clock
from tests.helpers.clock import wait_until
from tests.integration.yarn.conftest import APPLICATION_ID, Hadoop

pytestmark = [pytest.mark.hadoop]

ROOT = Path(__file__).parents[3]
GATE = Path(__file__).parent / "jobs" / "gate.py"
ELASTIC = Path(__file__).parent / "jobs" / "elastic.py"
MARK = "HOPSML_TEST_SUBMIT"
BEFORE, BEHIND = "before the gate: äöü\n", "behind the gate, no newline"

Hopsml = Callable[..., "Running"]


class Running:
    """Running ``hopsml`` command with its output in files, so that it never waits for a reader."""

    def __init__(self, folder: Path, environment: Mapping[str, str], arguments: tuple[str, ...]) -> None:
        self._out, self._err = folder / "out", folder / "err"
        folder.mkdir()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from hopsml.cli import main; main()", *arguments],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, text: str, timeout_s: float = 90) -> None:
        """Wait until a text is in the output or the errors."""
        wait_until(lambda: text in self.out + self.err or self.process.poll() is not None)
        assert text in self.out + self.err, f"{self.out}\n{self.err}"

    def ended(self, timeout_s: float = 90) -> int:
        return self.process.wait(timeout_s)

    def application(self) -> str:
        """Return the application id that it prints."""
        wait_until(lambda: APPLICATION_ID.search(self.out + self.err) or self.process.poll() is not None)
        found = APPLICATION_ID.search(self.out + self.err)
        assert found, f"{self.out}\n{self.err}"
        return found[0]


@pytest.fixture
def hopsml(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hopsml]:
    """``hopsml("submit", ...)`` starts a command with the profiles ``small`` (cluster mode) and ``here`` (client mode)."""
    mark = f"{time.monotonic_ns()}"
    settings = hadoop.spark_conf(executors=1)
    settings |= {f"spark.yarn.appMasterEnv.{MARK}": mark, f"spark.executorEnv.{MARK}": mark}
    (tmp_path / "conf").mkdir()
    for name, mode in (("small", "cluster"), ("here", "client")):
        content = {"master": "yarn", "deploy_mode": mode, "spark": settings}
        (tmp_path / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    environment = {
        **hadoop.submit_env(), "PYTHONPATH": str(ROOT), "HOPSML_CONF_DIR": str(tmp_path / "conf"), MARK: mark
    }  # fmt: skip
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    started: list[Running] = []

    def start(*arguments: str, **variables: str) -> Running:
        started.append(Running(tmp_path / f"hopsml-{len(started)}", {**environment, **variables}, arguments))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait()
    filesystem.close_all()
    wait_until(lambda: not processes.processes_with_variable(MARK, mark))  # neither spark-submit nor a container


@pytest.mark.variant
def test_submitted_application_is_followed_to_its_end(hadoop: Hadoop, hopsml: Hopsml, tmp_path: Path) -> None:
    """The driver's output appears completely and once while it runs; afterwards it is read from HDFS."""
    gate = tmp_path / "gate"
    submit = hopsml("submit", str(GATE), str(gate), "ok", "--profile", "small", "--tag", "my-tag")
    submit.wait_for(BEFORE)
    assert submit.out == BEFORE
    yarn = ResourceManager.from_environment()
    (found,) = yarn.find_by_tag("my-tag")
    assert found.state == "RUNNING" and found.id in submit.err and len(found.tags) == 2
    gate.touch()
    assert submit.ended() == 0, submit.err
    assert submit.out == BEFORE + BEHIND
    for words in (f"{found.id}: ACCEPTED (queue root.default)", f"{found.id}: RUNNING", f"{found.id}: SUCCEEDED after"):
        assert submit.err.count(words) == 1, submit.err
    aggregated(found.id)
    assert output(found.id) == BEFORE + BEHIND
    assert output(found.id, offset=-8) == "newline"[-8:] or output(found.id, offset=-8) == " newline"
    again = hopsml("runs", "follow", found.id)
    assert (again.ended(), again.out) == (0, BEFORE + BEHIND)


@pytest.mark.variant  # of tests/chaos/test_yarn.py, with the settings of the profile and GPUs
def test_profile_with_dynamic_allocation_runs_an_elastic_training(
    hadoop: Hadoop, hopsml: Hopsml, tmp_path: Path
) -> None:
    """The profile starts without an executor; the test changes only sizes, paths and the idle timeout."""
    for path in (ROOT / "conf").iterdir():
        if path.is_file() and path.name != "README.md":
            shutil.copy(path, tmp_path / "conf")
    settings = hadoop.spark_conf()
    del settings["spark.executor.instances"], settings["spark.master"]
    settings |= {"spark.executorEnv.HOPSML_GPUS_PER_EXECUTOR": "1", "spark.dynamicAllocation.executorIdleTimeout": "4s"}
    small = yaml.safe_dump({"extends": "yarn-dynamic", "spark": settings})
    (tmp_path / "conf" / "dynamic-here.yaml").write_text(small)
    submit = hopsml("submit", str(ELASTIC), "--profile", "dynamic-here", "--num-workers", "3")
    assert submit.ended(200) == 0, f"{submit.out}\n{submit.err}"
    value = json.loads(submit.out.splitlines()[-1])
    assert len(value["worlds"]) == 40 and value["worlds"][-1] == 2, submit.err
    assert value["gpu"] in ("0", "1")


def output(application_id: str, offset: int = 0) -> str:
    part = logs.read(ResourceManager.from_environment().application(application_id), "stdout", offset)
    return part.text if part is not None else ""


def aggregated(application_id: str) -> None:
    """Wait until the log is in HDFS and no longer at the NodeManager."""
    application = ResourceManager.from_environment().application(application_id)
    page = re.match(r"(https?://[^/]+)/.*/(container_\w+)", application.am_log_url)
    assert page is not None
    wait_until(lambda: logs._from_node(page[1], page[2], "stdout", 0, 1000) is None)


@pytest.mark.variant  # of tests/unit/submission: what a final state means; of the good end above, on YARN
def test_failing_script_is_reported(hopsml: Hopsml, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    submit = hopsml("submit", str(GATE), str(tmp_path / "gate"), "raise", "--profile", "small")
    assert submit.ended() == 1
    assert "ValueError: told to fail" in submit.out
    assert "FAILED" in submit.err and "User application exited with status 1" in submit.err
    assert "stderr" not in submit.err  # the script's output has the cause


@pytest.mark.variant  # of tests/unit/submission, on YARN
def test_full_queue_times_out_and_an_external_kill_is_reported(hadoop: Hadoop, hopsml: Hopsml, tmp_path: Path) -> None:
    """One application uses most of both nodes: the next one waits, prints the reason, and times out."""
    large = [f"--conf=spark.{role}.memory=5g" for role in ("driver", "executor")]
    detached = hopsml("submit", str(GATE), str(tmp_path / "never"), "ok", "--profile", "small", "--detach", *large)
    assert detached.ended() == 0, detached.err
    first = detached.out.strip()
    assert APPLICATION_ID.fullmatch(first)
    follower = hopsml("runs", "follow", first)
    follower.wait_for(BEFORE)
    wait_until(lambda: hadoop.resource_manager.nodes() and used_mb(hadoop) > 11_000)

    arguments = ("submit", str(GATE), "x", "ok", "--profile", "small", "--conf=spark.driver.memory=3g", "--timeout=4")
    waiting = hopsml(*arguments)
    second = waiting.application()
    assert waiting.ended() == 124, waiting.err
    assert "waiting for" in waiting.err and "waiting for resources to be assigned for AM" in waiting.err
    assert f"queue root.default had no room for {second} within 4 s" in waiting.err
    yarn = ResourceManager.from_environment()
    assert yarn.application(second).state == "KILLED"
    assert follower.process.poll() is None

    yarn.kill(first)
    assert follower.ended() == 1
    assert f"{first}: KILLED" in follower.err and "ended by YARN" in follower.err
    assert "was killed by user" in follower.err


def used_mb(hadoop: Hadoop) -> int:
    return sum(int(node["usedMemoryMB"]) for node in hadoop.resource_manager.nodes().values())


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "running"),
        pytest.param(signal.SIGTERM, "listed", marks=pytest.mark.variant),
        pytest.param(signal.SIGTERM, "early", marks=pytest.mark.variant),
    ],
)
def test_signal_ends_the_application(hopsml: Hopsml, tmp_path: Path, number: signal.Signals, moment: str) -> None:
    """While the driver runs, as soon as YARN lists the application, and before the submission."""
    tag = f"ended-{time.monotonic_ns()}"
    submit = hopsml("submit", str(GATE), str(tmp_path / "never"), "ok", "--profile", "small", "--tag", tag)
    yarn = ResourceManager.from_environment()
    submit.wait_for(BEFORE if moment == "running" else "submitting")
    if moment == "listed":
        wait_until(lambda: yarn.find_by_tag(tag))
    submit.process.send_signal(number)
    assert submit.ended(60) == 128 + number, submit.err
    assert [app.state for app in yarn.find_by_tag(tag)] == ([] if moment == "early" else ["KILLED"])
    expected = {"running": "Ctrl-C: ending application_", "listed": "SIGTERM", "early": "nothing was submitted"}
    assert expected[moment] in submit.err


@pytest.mark.variant  # of cluster mode, above
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_client_mode_leaves_no_processes(hopsml: Hopsml, tmp_path: Path, number: signal.Signals) -> None:
    submit = hopsml("submit", str(GATE), str(tmp_path / "never"), "ok", "--profile", "here", "--tag", f"c{int(number)}")
    submit.wait_for(BEFORE)
    yarn = ResourceManager.from_environment()
    (found,) = yarn.find_by_tag(f"c{int(number)}")
    mark = os.environ.get(MARK)
    assert mark is None  # the processes that carry it are the command's
    submit.process.send_signal(number)
    assert submit.ended(40) == (128 + number if number == signal.SIGTERM else -number), submit.err
    wait_until(lambda: yarn.application(found.id).is_final)


@pytest.mark.variant  # of tests/unit/yarn, on YARN
def test_frozen_resource_manager_and_unknown_application_are_reported(hadoop: Hadoop, hopsml: Hopsml) -> None:
    yarn = ResourceManager.from_environment(timeout_s=1.0)
    with pytest.raises(ApplicationNotFound, match="has no record of application_1_0001"):
        yarn.application("application_1_0001")
    with pytest.raises(ApplicationNotFound):
        submission.end_application("application_1_0001", yarn=yarn)
    printed: list[str] = []
    outcome = submission.follow("application_1_0001", yarn=yarn, notify=printed.append)
    assert outcome.status == 1 and "its final state is unknown" in printed[0]
    hadoop.kill("rm", signal.SIGSTOP)
    started_s = clock.awake()
    with pytest.raises(ClusterUnavailable, match=rf"{yarn.addresses[0]}.*timed out"):
        yarn.find_by_tag("x")
    assert clock.awake() - started_s < 4
