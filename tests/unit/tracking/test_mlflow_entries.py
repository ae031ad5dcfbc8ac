"""Tests of the entries sent to MLflow, and when: rows, names, decisions."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment, tracking
from hopsml.cluster.shared.checks import model_name
from hopsml.core import extras, settings
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage.local import LocalFileSystem
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import entries, order, sender
from hopsml.tracking.mlflow.entries import Row
from hopsml.tracking.mlflow.models import register_model
from hopsml.tracking.mlflow.order import Order, RunGroup
from hopsml.tracking.mlflow.sender import Sender, send_recorded
from hopsml.tracking.mlflow.store import MlflowRefused, MlflowUnreachable
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast

URI = "http://127.0.0.1:1"


def test_arguments_become_mlflow_params_and_long_ones_are_truncated() -> None:
    found = entries.params({"lr": 0.1, "opt": {"name": "adam", "betas": [0.9, 0.99]}, "note": "x" * 9000, "none": None})
    assert found["lr"] == "0.1" and found["opt.name"] == "adam" and found["opt.betas"] == "[0.9, 0.99]"
    assert len(found["note"]) == entries.LONGEST_PARAM and found["none"] == "null"


TAKEN_AS_THEY_ARE = ["loss", "val/loss", "a b-c:d.e", "准确", "损失", "ü", "λ", "точность", "a/.b", "x" * 250]
CHANGED = {
    "a b(c)é": "a b_c_é",
    "F1(macro)": "F1_macro_",
    "F1[macro]": "F1_macro_",
    "../x": "_/x",
    "./x": "_/x",
    "/a//b/": "a/_/b",
    "a/b/": "a/b",
    "/a/b": "a/b",
    "": "_",
    ".": "_",
    "..": "_",
    "/": "_",
    "a\nb": "a_b",
    "a\n": "a_",
    "e\u0301": "e_",
    "p%": "p_",
    "p$": "p_",
    "x" * 251: "x" * 241,
    "x" * 252: "x" * 241,
    f"{'x' * 240}/y/{'z' * 20}": "x" * 240,
}


@pytest.mark.parametrize("given", TAKEN_AS_THEY_ARE)
def test_names_valid_for_mlflow_are_unchanged(given: str) -> None:
    assert entries.mlflow_name(given) == given


def test_invalid_mlflow_names_become_valid_and_distinct() -> None:
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    for given, accepted in CHANGED.items():
        assert re.fullmatch(rf"{re.escape(accepted)}_[0-9a-f]{{8}}", entries.mlflow_name(given)), given
    names = [entries.mlflow_name(given) for given in (*CHANGED, *TAKEN_AS_THEY_ARE)]
    assert len(set(names)) == len(names)
    for name in names:
        _validate_metric_name(name)
        _validate_param_name(name)
        assert len(name) <= entries.LONGEST_KEY
        assert entries.mlflow_name(name) == name


def test_metrics_that_differ_in_one_character_remain_distinct() -> None:
    rows = entries.report_rows([{"time": 1.0, "step": 0, "F1(macro)": 0.5, "F1[macro]": 0.25, "F1_macro_": 1.0}])
    assert [row.value for row in rows] == [0.5, 0.25, 1.0] and len({row.key for row in rows}) == 3
    judged = entries.evaluation_rows(rows)
    assert len({row.key for row in judged}) == 3 and all(row.key.startswith("evaluation/F1_macro_") for row in judged)


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": {"b": 1}, "a.b": 2},
        {"a.b": 2, "a": {"b": 1}},
        {"a": {"b.c": 1, "b": {"c": 2}}},
        {"a": {"1": 1, 1: 2}},
        {"a(b)": 1, "a[b]": 2, "a_b_": 3},
        {"x" * 249 + "yz": 1, "x" * 249 + "yw": 2},
    ],
)
def test_arguments_with_colliding_names_remain_distinct(arguments: dict[str, Any]) -> None:
    assert sorted(entries.params(arguments).values()) == sorted(map(str, range(1, len(entries.params(arguments)) + 1)))
    assert len(entries.params(arguments)) == sum(
        len(one) if isinstance(one, dict) else 1 for one in leaf_values(arguments)
    )


def leaf_values(arguments: dict[str, Any]) -> list[Any]:
    """Return the values of the arguments, with nested dicts flattened."""
    return [inner for one in arguments.values() for inner in (leaf_values(one) if isinstance(one, dict) else [one])]


def test_reported_numbers_become_identical_rows_live_and_from_the_file() -> None:
    line = {"time": 12.3456, "step": 7, "loss": 0.5, "phase": "warm-up", "done": True, "none": None, "nan": math.nan}
    live = entries.metric_rows({key: value for key, value in line.items() if key not in ("time", "step")}, 12.3456, 7)
    read_back = entries.report_rows([json.loads(json.dumps(line))])
    assert live[0] == read_back[0] == Row("loss", 0.5, 12345, 7)
    assert [row.key for row in read_back] == ["loss", "nan"] and math.isnan(read_back[1].value)
    assert entries.system_rows(1, [{"time": 1.0, "step": 0, "cpu_utilization_percentage": 50.0}]) == [
        Row("system/rank_1/cpu_utilization_percentage", 50.0, 1000, 0)
    ]


def test_evaluation_metrics_are_sent_to_the_evaluated_run_without_system_metrics() -> None:
    rows = [Row("accuracy", 0.5, 1, 10), Row(entries.system_name(0, "cpu_utilization_percentage"), 5.0, 1, 0)]
    assert entries.evaluation_rows(rows) == [Row("evaluation/accuracy", 0.5, 1, 10)]
    assert entries.evaluation_rows(rows, "test-set") == [Row("evaluation/test-set/accuracy", 0.5, 1, 10)]


@pytest.mark.parametrize(
    ("members", "status"),
    [
        (["FINISHED"], "RUNNING"),
        (["FINISHED", "FINISHED"], "FINISHED"),
        (["KILLED"], "KILLED"),
        (["KILLED", "FAILED"], "FAILED"),
        ([], "RUNNING"),
    ],
)
def test_group_status_follows_the_last_member_or_first_failure(members: list[str], status: str) -> None:
    assert entries.group_status(members, 2) == status


def test_order_is_recorded_without_its_password() -> None:
    wanted = Order("https://me:geheim@host", "digits", group=RunGroup("k", "rates", 3), register_as="digits")
    recorded = wanted.to_record()
    assert "geheim" not in json.dumps(recorded)
    read_back = order.parse(json.loads(json.dumps(recorded)))
    assert read_back.group == wanted.group and read_back.register_as == "digits"
    directory = RunDir("memory://b/none/Experiments/app_1")
    assert order.with_trusted_uri(directory, read_back, "https://me:geheim@host").tracking_uri == wanted.tracking_uri
    with pytest.raises(ArgumentError, match="set MLFLOW_TRACKING_URI"):
        order.with_trusted_uri(directory, read_back, "")


def pending_run_of_another_user(folder: Path, uri: str) -> RunDir:
    """A run that ended, and waits to be sent to an address, as another user of the project has written it."""
    directory = RunDir(f"file://{folder}/Experiments/bobs_1")
    directory.write_run({"started": 1.0})
    directory.write_status({"state": "FINISHED", "ended": 2.0})
    order.write(directory, Order(uri, "digits"))
    for path in folder.rglob("*"):
        os.chown(path, 65534, 65534)
    return directory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_credentials_are_not_sent_to_an_address_recorded_by_another_user(tmp_path: Path) -> None:
    directory = pending_run_of_another_user(tmp_path, "http://evil")
    opened_urls: list[str] = []

    def opened(uri: str) -> Any:
        opened_urls.append(uri)
        return Scripted()

    with pytest.raises(ArgumentError, match=r"belongs to .*MLFLOW_TRACKING_TOKEN\) are sent to http://evil"):
        send_recorded(directory, opened, URI)
    with pytest.raises(ArgumentError, match="belongs to"):
        register_model(directory.url, "digits")
    assert opened_urls == []
    (tmp_path / ".mlflow-pending" / "bobs_1").chmod(0o666)
    os.chown(tmp_path / ".mlflow-pending" / "bobs_1", 0, 0)
    Path(directory.mlflow_json.removeprefix("file://")).unlink()
    with pytest.raises(ArgumentError, match="can be written by users other than"):
        send_recorded(directory, opened, URI)
    assert send_recorded(directory, opened, "http://evil/")[0] == "sent" and opened_urls == ["http://evil"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_sender_skips_runs_of_other_users(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.report(1)
    scene.sender.send_pending()
    pending_run_of_another_user(tmp_path, URI)
    another = Scene(tmp_path)
    another.sender.send_pending()
    assert not another.notes and another.server.statuses == []


def test_store_without_owners_allows_only_the_configured_address() -> None:
    directory = RunDir("memory://b/mlflow/Experiments/app_1")
    order.write(directory, Order("http://other", "digits"))
    wanted = Order("http://other", "digits")
    with pytest.raises(ArgumentError, match="set MLFLOW_TRACKING_URI to it"):
        order.with_trusted_uri(directory, wanted, URI)
    assert order.with_trusted_uri(directory, wanted, "http://other") == wanted


@pytest.mark.parametrize("value", ["", " ", "a/b", "it's", "a:b", "50%"])
def test_invalid_model_name_is_refused_at_the_call(value: str) -> None:
    with pytest.raises(ArgumentError, match="register_as"):
        experiment.submit(lambda: None, register_as=value)


def test_model_name_must_be_text() -> None:
    with pytest.raises(ArgumentTypeError):
        model_name("register_as", 3)
    assert model_name("register_as", "digits") == "digits"


def test_tracking_settings_are_read_from_environment_and_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert settings.mlflow_tracking_uri({}) == ""
    assert settings.mlflow_tracking_uri({"MLFLOW_TRACKING_URI": URI}) == URI
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other")
    assert settings.mlflow_tracking_uri({"MLFLOW_TRACKING_URI": URI}) == "http://other"
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    assert settings.mlflow_tracking_uri({}) == ""
    monkeypatch.setenv("HOPSML_SYSTEM_METRICS_S", "often")
    with pytest.raises(ArgumentError, match="HOPSML_SYSTEM_METRICS_S='often'"):
        _ = SETTINGS.system_metrics_s


# ---------------------------------------------------------------------------------------------- the sender's decisions


class Scripted:
    """Server with scripted answers that records the requests."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.asked = 0
        self.rows: list[Row] = []
        self.statuses: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            self.asked += 1
            if self.problem is not None:
                raise self.problem
            self.rows += named.get("rows", ())
            if name == "finish":
                self.statuses.append(positional[1])
            return "id-1" if name in ("open_run", "experiment_id") else []

        return call


class Scene:
    """A sender with one run, a clock that the test turns, and a scripted server."""

    def __init__(self, folder: Path) -> None:
        self.now, self.server, self.told = 0.0, Scripted(), list[Mapping[str, Any]]()
        self.sender = Sender(self.told.append, lambda uri: self.server, lambda: self.now)  # type: ignore[arg-type, return-value]
        self.directory = RunDir(f"file://{folder}/Experiments/app_1")
        self.directory.write_run({"started": 1.0, "name": "digits"})
        begin = {"do": "begin", "run": self.directory.url, "order": asdict(Order(URI, "digits")), "record": {}}
        self.sender.apply_message(begin)

    def report(self, *steps: int) -> None:
        """Append lines to the metrics file and send the rows, as the chief does."""
        file = Path(self.directory.metrics.removeprefix("file://"))
        with file.open("a") as lines:
            lines.writelines(json.dumps({"time": float(step), "step": step, "loss": 1.0}) + "\n" for step in steps)
        rows = [["loss", 1.0, 1000 * step, step] for step in steps]
        self.sender.apply_message({"do": "rows", "run": self.directory.url, "rows": rows})

    def end(self) -> None:
        self.directory.write_status({"state": "FINISHED", "ended": 9.0})
        self.sender.apply_message({"do": "end", "run": self.directory.url, "lost": False})

    @property
    def notes(self) -> list[str]:
        return [event["text"] for event in self.told if event["event"] == "note"]

    @property
    def steps(self) -> list[int]:
        return [row.step for row in self.server.rows]


def test_rows_already_sent_are_not_sent_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.report(1, 2)
    scene.sender.send_pending()
    scene.end()
    scene.sender.send_pending()
    assert scene.steps == [1, 2] and scene.server.statuses == ["FINISHED"] and not scene.sender.runs
    assert not order.list_unsent_runs(order.run_project_url(scene.directory.url))


def test_rows_missed_by_the_server_are_read_from_the_run_directory(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.sender.send_pending()
    scene.server.problem = MlflowUnreachable("no answer")
    scene.report(1)
    scene.sender.send_pending()
    scene.report(2)
    scene.sender.send_pending()
    assert len(scene.notes) == 1, "one note an outage"
    scene.server.problem = None
    scene.end()
    scene.sender.send_pending()
    assert scene.server.statuses == [], "not before the pause is over"
    scene.now += sender.FIRST_PAUSE_S
    scene.sender.send_pending()
    assert set(scene.steps) == {1, 2} and scene.server.statuses == ["FINISHED"]


def test_long_outage_is_noted_at_start_and_end(tmp_path: Path) -> None:
    """Rows are rare: steps with nothing to send show nothing about the server."""
    scene = Scene(tmp_path)
    scene.sender.send_pending()
    scene.server.problem, earlier = MlflowUnreachable("no answer"), scene.server.asked
    for minute in range(60):
        scene.report(minute)
        for _ in range(60):
            scene.now += 1.0
            scene.sender.send_pending()
    (note,) = scene.notes
    assert "does not answer" in note and scene.server.asked - earlier <= 60
    scene.server.problem = None
    scene.end()
    scene.now += sender.LONGEST_PAUSE_S
    scene.sender.send_pending()
    assert len(scene.notes) == 2 and scene.notes[1].startswith("MLflow answers again")
    assert set(scene.steps) == set(range(60)) and scene.server.statuses == ["FINISHED"]
    assert [event["event"] for event in scene.told] == ["note", "note", "ended"]


def test_retry_pauses_grow_up_to_a_limit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.server.problem = MlflowUnreachable("no answer")
    pauses = []
    for _ in range(8):
        scene.sender.send_pending()
        pauses.append(scene.sender._not_before - scene.now)
        scene.now = scene.sender._not_before
    assert pauses[0] == sender.FIRST_PAUSE_S and pauses[1] == 2 * pauses[0] and pauses[-1] == sender.LONGEST_PAUSE_S


def test_unsent_rows_do_not_exceed_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MOST_ROWS", 10)
    scene = Scene(tmp_path)
    scene.report(*range(1, 12))
    (followed,) = scene.sender.runs.values()
    assert not followed.rows and followed.lost
    scene.end()
    scene.sender.send_pending()
    assert scene.steps == list(range(1, 12))


def test_refusal_ends_the_attempts_and_is_recorded(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.server.problem = MlflowRefused("the experiment 'digits' was deleted")
    scene.sender.send_pending()
    assert "was deleted; after the cause is repaired, run: hopsml runs sync app_1" in scene.notes[0]
    found = order.read(scene.directory)
    assert found is not None and found.state == "refused" and not scene.sender.runs
    assert order.list_unsent_runs(order.run_project_url(scene.directory.url)) == [scene.directory.url]


def test_closing_does_not_wait_for_an_unavailable_server(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.end()
    scene.server.problem = MlflowUnreachable("no answer")
    scene.sender.apply_message({"do": "close", "within_s": 10.0})
    assert not scene.sender.is_done
    scene.sender.send_pending()
    assert scene.sender.is_done
    assert order.list_unsent_runs(order.run_project_url(scene.directory.url)) == [scene.directory.url]


def test_removed_run_directory_does_not_block_the_sender(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.sender.send_pending()
    shutil.rmtree(tmp_path / "Experiments")
    scene.sender.apply_message({"do": "end", "run": scene.directory.url, "lost": False})
    scene.sender.send_pending()
    assert any("its directory was removed" in note for note in scene.notes) and not scene.sender.runs


class Killed(BaseException):
    """Simulates the end of the process: no code after it runs, not even an ``except``."""


@pytest.mark.parametrize("deeds", [1, 2, 3])
def test_killed_sender_leaves_its_run_pending_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deeds: int
) -> None:
    scene, left = Scene(tmp_path), iter(range(deeds))
    write_bytes = LocalFileSystem.write_bytes

    def write_and_die(self: LocalFileSystem, url: str, data: bytes) -> None:
        write_bytes(self, url, data)
        if next(left) == deeds - 1:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "write_bytes", write_and_die)
        with pytest.raises(Killed):
            scene.sender.send_pending()
    assert order.list_unsent_runs(f"file://{tmp_path}") == [scene.directory.url]
    state, _ = send_recorded(scene.directory, lambda uri: scene.server, URI)  # type: ignore[arg-type, return-value]
    assert state == "running" and order.list_unsent_runs(f"file://{tmp_path}"), "its driver lives"
    scene.directory.write_status({"state": "FINISHED", "ended": 9.0})
    state, _ = send_recorded(scene.directory, lambda uri: scene.server, URI)  # type: ignore[arg-type, return-value]
    assert (
        state == "sent" and scene.server.statuses == ["FINISHED"] and not order.list_unsent_runs(f"file://{tmp_path}")
    )


def test_deleted_run_is_removed_from_the_pending_list(tmp_path: Path) -> None:
    deleted = RunDir(f"file://{tmp_path}/Experiments/app_1")
    order.write(deleted, Order(URI, "digits"))
    shutil.rmtree(tmp_path / "Experiments")
    assert send_recorded(deleted, lambda uri: pytest.fail("asked"), URI) == ("none", [])
    assert not order.list_unsent_runs(f"file://{tmp_path}")


def test_pending_runs_are_sent_in_turn_although_one_server_is_unavailable(tmp_path: Path) -> None:
    """Neither the others of them nor the run that is under way wait for that server."""
    scene, away = Scene(tmp_path), Scripted()
    away.problem = MlflowUnreachable("no answer")
    scene.sender._open = lambda uri: away if uri == "http://away" else scene.server  # type: ignore[assignment, return-value]
    older = [RunDir(f"file://{tmp_path}/Experiments/app_0{number}") for number in range(2)]
    for directory, uri in zip(older, ("http://away", URI), strict=True):
        directory.write_run({"started": 1.0})
        directory.write_status({"state": "FINISHED", "ended": 2.0})
        order.write(directory, Order(uri, "digits"))
    scene.sender.send_pending()
    scene.report(1)
    scene.sender.send_pending()
    assert scene.steps == [1] and not scene.notes
    earlier = away.asked
    scene.now += sender.FIRST_PAUSE_S
    scene.sender.send_pending()
    assert [url.rpartition("/")[2] for url in order.list_unsent_runs(f"file://{tmp_path}")] == ["app_00", "app_1"]
    scene.now += sender.LONGEST_PAUSE_S
    scene.end()
    scene.sender.send_pending()
    assert away.asked > earlier > 0 and not scene.sender.runs
    away.problem = None
    scene.now += sender.LONGEST_PAUSE_S
    scene.sender.send_pending()
    assert away.statuses == ["FINISHED"] and not order.list_unsent_runs(f"file://{tmp_path}")


# ---------------------------------------------------------------------------------------------- real processes


def test_missing_mlflow_package_is_noted_and_the_run_continues(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "mlflow.py").write_text("raise ImportError(\"No module named 'mlflow'\")\n")
    monkeypatch.syspath_prepend(tmp_path / "missing")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    run = experiment.submit(lambda: 1, progress=False, num_workers=1)
    assert run.result(END_S).metrics["metric"] == 1
    wait_until(lambda: run.state.notes, "the note")
    assert extras.install_command("mlflow") in run.state.notes[0]
    record = store / "Experiments" / run.run_id / "mlflow.json"
    wait_until(lambda: json.loads(record.read_text())["state"] == "refused", "the recorded refusal")


def test_registering_a_model_names_what_is_missing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = experiment.submit(lambda: 1, progress=False, num_workers=1)
    run.result(END_S)
    with pytest.raises(ArgumentError, match="set MLFLOW_TRACKING_URI"):
        tracking.register_model(run, "digits")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    with pytest.raises(ArgumentError, match="exported nothing"):
        tracking.register_model(run, "digits")


@pytest.mark.parametrize("run", ["app_1", "app_1/a=1&b=x%2Fy", "app_2/trials/0123456789abcdef"])
def test_nested_run_is_listed_as_pending(tmp_path: Path, run: str) -> None:
    directory = RunDir(f"file://{tmp_path}/Experiments/{run}")
    assert order.run_project_url(directory.url) == f"file://{tmp_path}"
    order.write(directory, Order(URI, "digits"))
    assert order.list_unsent_runs(f"file://{tmp_path}") == [directory.url]
    order.remove_from_unsent(directory)
    assert order.list_unsent_runs(f"file://{tmp_path}") == []


@pytest.mark.parametrize("record", [{"group": {"unknown": 1}}, {"group": [1]}, {"state": "open"}, {}])
def test_malformed_order_is_reported(tmp_path: Path, record: dict[str, object]) -> None:
    (tmp_path / "mlflow.json").write_text(json.dumps(record))
    with pytest.raises(ArgumentError, match=r"the entries of mlflow\.json are not as hopsml writes them"):
        order.read(RunDir(str(tmp_path)))
