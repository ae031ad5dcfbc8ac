"""Tests of the messages for clients of Spark Connect: before contact with a server, by verbs and submissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, ClusterError
from hopsml.maggy import config as maggy_config
from hopsml.maggy import experiment as maggy
from hopsml.submission import spark_connect
from hopsml.submission.spark_command import build_command
from hopsml.submission.spark_connect import ConnectFacts, connect_setting, why_no_classic_session

pytestmark = pytest.mark.fast

NEEDED = "but hopsml needs a classic session, whose driver is in this process. Remedy: "
VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "SPARK_CONNECT_MODE")


@pytest.fixture(autouse=True)
def no_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "has_package", "expected"),
    [
        ({}, False, ""),
        ({"SPARK_REMOTE": "sc://gateway:15002/;token=abc"}, False, "SPARK_REMOTE"),
        ({"SPARK_REMOTE": ""}, False, "SPARK_REMOTE"),  # pyspark looks for the name
        ({"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_API_MODE": "classic"}, False, "SPARK_CONNECT_MODE_ENABLED"),
        ({"SPARK_API_MODE": "Connect"}, False, "SPARK_API_MODE"),
        ({"SPARK_API_MODE": "classic", "SPARK_CONNECT_MODE": "1"}, True, ""),
        ({"SPARK_API_MODE": "other", "SPARK_CONNECT_MODE": "1"}, False, "SPARK_CONNECT_MODE"),
        ({"SPARK_CONNECT_MODE": "0"}, True, ""),
        ({}, True, "pyspark-connect"),
    ],
)
def test_setting_that_creates_a_connect_session_is_found_as_pyspark_does(
    variables: dict[str, str], has_package: bool, expected: str
) -> None:
    assert connect_setting(variables, has_package) == expected


def test_message_names_the_cause_and_the_remedies() -> None:
    found = why_no_classic_session(ConnectFacts(has_session=True, setting="SPARK_REMOTE"), has_context=True)
    assert found.startswith(
        f"the active Spark session is one of Spark Connect, {NEEDED}start Python without SPARK_REMOTE"
    )
    assert ".master(...)" in found and "profile='local'" in found and "hopsml jobs run" in found
    found = why_no_classic_session(ConnectFacts(setting="pyspark-connect"))
    assert found.startswith("pyspark-connect is installed, so SparkSession.builder.getOrCreate() creates")
    assert "with SPARK_API_MODE=classic" in found
    found = why_no_classic_session(ConnectFacts(is_client_only=True))
    assert found.startswith(f"only pyspark-client is installed, which has sessions of Spark Connect alone, {NEEDED}pip")


def test_process_that_has_or_can_create_a_classic_session_has_no_message() -> None:
    assert not why_no_classic_session(ConnectFacts())
    assert not why_no_classic_session(ConnectFacts(setting="SPARK_REMOTE"), has_context=True)
    assert not why_no_classic_session(ConnectFacts(is_client_only=True), needs_spark=False)


@pytest.mark.parametrize(
    ("files", "expected"), [(("core/context.py",), False), (("context.py",), False), (("sql/connect/x.py",), True)]
)
def test_client_of_spark_connect_is_recognised_by_its_files(
    tmp_path: Path, files: tuple[str, ...], expected: bool
) -> None:
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert spark_connect._is_client_only(tmp_path) is expected
    assert spark_connect._is_client_only(None) is False


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_verbs_refuse_variables_of_spark_connect_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOPSML_PROFILE", raising=False)
    monkeypatch.setenv(variable, "sc://127.0.0.1:1/;token=secret")

    def train() -> float:
        return 1.0

    space = experiment.Searchspace(x=("DOUBLE", [0.0, 1.0]))
    calls = [
        lambda: experiment.launch(train),
        lambda: experiment.collective_all_reduce.submit(train),
        lambda: experiment.collective_all_reduce(train, num_workers=2),
        lambda: experiment.parameter_server(train, num_ps=1, num_workers=3),
        lambda: experiment.torch(train, num_workers=2),
        lambda: experiment.grid_search(train, {"x": [1.0]}),
        lambda: experiment.search(train, space, num_trials=1),
        lambda: maggy.lagom(
            lambda x: x, maggy_config.HyperparameterOptConfig(num_trials=1, optimizer="randomsearch", searchspace=space)
        ),
        lambda: experiment.continue_search("app_1"),
        lambda: experiment.evaluate(lambda checkpoint: 1.0, "app_1"),
        lambda: experiment.rerun("app_1"),
        lambda: experiment.spark("local-cluster"),
        lambda: experiment.launch(train, profile="local-cluster"),
    ]
    for call in calls:
        with pytest.raises(ClusterError, match=rf"^{variable} is set, so .* {NEEDED[:20]}") as caught:
            call()
        assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_submission_refuses_variables_of_spark_connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    monkeypatch.setenv("SPARK_REMOTE", "sc://gateway")
    with pytest.raises(ClusterError, match=r"^SPARK_REMOTE is set, so spark-submit .* Remedy: unset SPARK_REMOTE"):
        build_command(Profile(name="cluster", master="local-cluster[1,1,1024]"), str(script))
    assert build_command(Profile(name="here", master="none"), str(script))[-1] == str(script)


def test_frame_of_spark_connect_is_refused_without_access_to_it() -> None:
    class DataFrame:
        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"{name} would contact the server")

    DataFrame.__module__ = "pyspark.sql.connect.dataframe"
    from hopsml import model
    from hopsml.experiment.frame_feed import datasets

    with pytest.raises(ArgumentError, match=r"^data=\{'rows': ...\} is a DataFrame of Spark Connect, but hopsml needs"):
        datasets({"rows": DataFrame()}, "launch")
    with pytest.raises(ArgumentError, match=r"^df is a DataFrame of Spark Connect, but hopsml needs"):
        model.predict(DataFrame(), "absent")


def test_pyspark_within_the_zip_of_spark_submit_is_no_client_alone(tmp_path: Path) -> None:
    """As spark-submit imports it in drivers and containers: the package's place is no folder."""
    archive = tmp_path / "pyspark.zip"
    archive.write_bytes(b"PK")
    assert spark_connect._is_client_only(archive / "pyspark") is False
