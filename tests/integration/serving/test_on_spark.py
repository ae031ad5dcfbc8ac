"""Tests of a serving as a Spark application: started, called, disturbed and stopped by a user."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hopsml import serving
from hopsml.core import processes
from hopsml.errors import AlreadyServed, ArgumentError
from hopsml.serving import ServingError, definitions, server_records, submitter
from tests.integration.serving.test_serving import Load, answered, until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def spark(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set what local executors need to import this hopsml."""
    for name, value in (
        ("PYTHONPATH", str(ROOT)),
        ("HOPSML_CONF_DIR", str(ROOT / "conf")),
        ("PYSPARK_PYTHON", sys.executable),
        ("SPARK_LOCAL_IP", "127.0.0.1"),
        ("SPARK_WORKER_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.spark
@pytest.mark.variant  # of test_places.py, which plays the same without Spark
def test_serving_on_executors_starts_replaces_a_replica_rolls_and_stops(project: Path, spark: None) -> None:
    url = os.environ["HOPSML_PROJECT_URL"]
    status = serving.start("digits", version=1, replicas=2, profile="local-cluster")
    try:
        assert (status.state, status.version, status.ready, len(status.machines)) == ("Running", 1, 2, 2)
        assert status.application and status.profile == "local-cluster"
        private = project / "Serving" / "digits.private"
        assert [oct(one.stat().st_mode & 0o777) for one in (private, private / "access.json")] == ["0o700", "0o600"]
        assert Path(status.token_file).read_text() not in Path(f"/proc/{status.supervisor}/cmdline").read_text()
        with pytest.raises(AlreadyServed, match=status.url):
            serving.start("digits", version=2)
        with Load() as load:
            os.kill(status.pids[0], signal.SIGKILL)
            until(lambda: (now := serving.status("digits")).restarts == 1 and now.ready == 2, "it was not replaced")
            load.more(20)
            assert serving.roll("digits", 2).version == 2
            load.more(20)
        assert not load.errors and answered() == 2.0
        assert serving.status("digits").url == status.url
        assert "version 2 was loaded" in serving.logs("digits")
    finally:
        serving.stop("digits")
    assert serving.status("digits").state == "Stopped" and processes.has_ended(status.supervisor)
    assert (
        server_records.read_server_record("digits", url) is None
        and not (project / "Serving" / "digits.private").exists()
    )


@pytest.mark.spark
@pytest.mark.variant
def test_serving_whose_driver_died_is_stopped_and_can_be_restarted(project: Path, spark: None) -> None:
    status = serving.start("digits", version=1, replicas=1, profile="local-cluster")
    try:
        os.kill(status.supervisor, signal.SIGKILL)
        until(lambda: serving.status("digits").state == "Stopped", "it still counts as running")
        assert "its driver" in serving.status("digits").why
        until(lambda: all(processes.has_ended(pid) for pid in status.pids), "a replica is left")
        with pytest.raises(ServingError, match="does not answer"):
            serving.predict("digits", [[0.0] * 4])
        again = serving.start("digits", version=2)  # where it was
        assert again.version == 2 and again.application and again.application != status.application
    finally:
        serving.stop("digits")


@pytest.mark.spark
@pytest.mark.variant
def test_model_that_cannot_be_loaded_is_reported_and_nothing_runs(
    project: Path, spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_TRUSTED_OWNERS", "")
    (pickled,) = (project / "Models" / "digits" / "3").rglob("*.pickle")
    original = pickled.read_bytes()
    try:
        pickled.write_bytes(b"damaged")
        with pytest.raises(
            ServingError, match="could not be started: replica 0: the files of the model cannot be fetched"
        ):
            serving.start("digits", version=3, replicas=1, profile="local-cluster")
        assert serving.status("digits").state == "Stopped"
    finally:
        pickled.write_bytes(original)


# ------------------------------------------------------------------------------------------ without a cluster


@pytest.mark.fast
def test_unsuitable_cluster_profile_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "inside.yaml").write_text("master: local[2]\n")
    (tmp_path / "alone.yaml").write_text("master: spark://127.0.0.1:1\ndeploy_mode: cluster\n")
    monkeypatch.setenv("HOPSML_CONF_DIR", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"profile 'inside' has master local\[2\]: replicas can run on executors"):
        submitter.spark_profile("inside")
    with pytest.raises(ArgumentError, match="deploy_mode cluster, which only YARN supports"):
        submitter.spark_profile("alone")
    assert submitter.spark_profile("local") is None
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    with pytest.raises(ArgumentError, match=r"host='127\.0\.0\.1' with profile 'local-cluster': .* omit host"):
        serving.start("digits", host="127.0.0.1", profile="local-cluster")


@pytest.mark.fast
def test_one_executor_is_requested_per_replica_and_the_command_has_no_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    profile = submitter.spark_profile("local-cluster")
    assert profile is not None
    planned = submitter.prepare_submission(profile, definitions.ServingFolder(tmp_path), "digits", "launch", 3)
    line = list(planned.command)
    assert line[line.index("--master") + 1] == "local-cluster[3,2,1024]" and "spark.task.cpus=2" in line
    assert (tmp_path / "serve.py").read_text().endswith("main('digits', 'launch')\n")


@pytest.mark.fast
def test_private_folder_is_readable_only_by_its_owner(project: Path) -> None:
    from hopsml.serving.definitions import ServingLimits
    from hopsml.serving.messages import ServingSettings
    from hopsml.serving.routes import Route
    from hopsml.serving.server_records import ServingAccess

    url = f"file://{project}"
    settings = ServingSettings("secret", url, "digits", "", 0, 1, False, ServingLimits(), Route(1, 1), {})
    server_records.write_access(ServingAccess("first", "yarn", "token", "control", settings))
    assert (found := server_records.read_access("secret", url)) is not None and found.control == "control"
    assert server_records.read_launch_access("secret", url, "another") is None
    server_records.write_outcome("secret", url, server_records.LaunchOutcome("first", "why"))
    assert server_records.read_outcome("secret", url, "second") is None
    assert (outcome := server_records.read_outcome("secret", url, "first")) is not None and outcome.error == "why"
    files = list((project / "Serving" / "secret.private").iterdir())
    assert len(files) == 2 and {oct(one.stat().st_mode & 0o777) for one in files} == {"0o600"}
    server_records.delete_access("secret", url)
    assert server_records.read_access("secret", url) is None
