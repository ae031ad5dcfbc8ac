"""Tests of runs whose HDFS, or whose project's disk, fails until their end: no part of the system reports a success."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import ResultsNotStored
from hopsml.storage import filesystem, left_files
from hopsml.tracking import catalog
from hopsml.yarn import ResourceManager
from tests.helpers import small_disk
from tests.helpers.clock import END_S, wait_until
from tests.helpers.local_application import take_left_files
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_runs_on_hdfs import long_training, project, steps_of
from tests.integration.yarn.test_submit import Hopsml, hopsml

pytestmark = pytest.mark.hadoop
__all__ = ["hopsml", "project"]


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "5")


def started(tmp_path: Path) -> tuple[experiment.Run, Path]:
    """Return a run that has stored an event, and the file that ends its training."""
    stop = tmp_path / "stop"
    run = experiment.submit(long_training, args={"stop_file": str(stop)}, num_workers=1, progress=False)
    wait_until(lambda: filesystem.exists(f"{run.run_dir}/events/events.out.tfevents.1"))
    return run, stop


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.variant)])
def test_namenode_that_is_away_until_the_end_fails_the_run(
    hadoop: Hadoop, project: str, tmp_path: Path, number: signal.Signals
) -> None:
    run, stop = started(tmp_path)
    hadoop.kill("nn", signal_number=number)
    before = steps_of(run)
    wait_until(lambda: steps_of(run) > before + 40)
    stop.touch()
    with pytest.raises(ResultsNotStored, match="the result, the final state") as raised:
        run.result(timeout=END_S)
    assert raised.value.result.value == f"{steps_of(run):08d}"
    hadoop.revive("nn")
    found = catalog.read(run.directory)
    assert found.state == "FAILED" and "results could not be stored" in found.cause
    assert len(take_left_files()) == 2
    assert catalog.read(run.directory).state != "FINISHED"


def test_quota_that_is_used_up_until_the_end_fails_the_run(hadoop: Hadoop, project: str, tmp_path: Path) -> None:
    run, stop = started(tmp_path)
    hadoop.dfsadmin("-setSpaceQuota", "1", project[len(hadoop.namenode_url) :])
    stop.touch()
    with pytest.raises(ResultsNotStored, match="the space quota is used up"):
        run.result(timeout=END_S)
    assert len(take_left_files()) == 2 and catalog.read(run.directory).state != "FINISHED"


LOSING = """
from hopsml import experiment

def train():
    import subprocess
    print("trained")
    subprocess.run(["mount", "-o", "remount,ro", DISK], check=True)
    return {"loss": 0.5}

experiment.distributed(train, num_workers=1, progress=False)
"""


@pytest.mark.parametrize("profile", ["small", pytest.param("here", marks=pytest.mark.variant)])
def test_final_status_of_yarn_and_the_exit_status_say_that_the_run_failed(
    hopsml: Hopsml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    script = tmp_path / "losing.py"
    with small_disk.mounted(tmp_path / "disk", 20_000) as disk:
        script.write_text(LOSING.replace("DISK", repr(str(disk))))
        url = f"local://{disk}/project"
        variables = {"HOPSML_PROJECT_URL": url, "HOPSML_STORAGE_RETRY_S": "2"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        conf = [f"--conf=spark.yarn.appMasterEnv.{name}={value}" for name, value in variables.items()]
        command = hopsml("submit", str(script), "--profile", profile, "--tag", f"losing-{profile}", *conf, **variables)
        assert command.ended(END_S) == 1, command.err
        (application,) = ResourceManager.from_environment().find_by_tag(f"losing-{profile}")
        wait_until(lambda: ResourceManager.from_environment().application(application.id).is_final)
        assert ResourceManager.from_environment().application(application.id).final_status == "FAILED"

        def state(**variables: str) -> str:
            listed = hopsml("runs", "ls", "--project", url, "--json", **variables)
            assert listed.ended() == 0
            (run,) = json.loads(listed.out)
            return str(run["state"])

        if profile == "small":  # the driver has left its records among the temporary files of its node
            assert state() == "LOST", "elsewhere nobody knows them"
            assert state(TMPDIR="/tmp") == "FAILED"
        else:
            assert state() == "FAILED"
        take_left_files()
        for left in Path("/tmp").glob(f"{left_files.PREFIX}{application.id}_*"):  # of the driver, in its container
            shutil.rmtree(left)
        small_disk.accept_writes(disk)
