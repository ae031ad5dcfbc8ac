"""Tests of ``search`` with real local agents: results, files and failures."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import Searchspace, experiment
from hopsml.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotEnoughSlots,
    ResultsNotStored,
    RunCancelled,
    RunError,
    StorageUnavailable,
)
from hopsml.experiment import repeat
from hopsml.experiment.search import learned_trials, submit_continued
from hopsml.experiment.searches import call as calls
from hopsml.experiment.searches import recorded
from hopsml.experiment.searches.handle import SearchRun
from hopsml.experiment.searches.result import study_of
from hopsml.storage.local import LocalFileSystem
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.local

SPACE = Searchspace(x=("DOUBLE", [0.0, 1.0]), y=("INTEGER", [0, 4]))


store = warm_application(lambda: search(lambda x: x, {"x": ("DISCRETE", [1, 2, 3, 4])}, searcher="grid"))


def bowl(x: float, y: int) -> dict[str, float]:
    return {"height": (x - 0.25) ** 2 + (y - 2) ** 2, "x_again": x}


def search(function: Any, space: Any = SPACE, **named: Any) -> experiment.SearchResult:
    named = {"searcher": "random", "num_trials": 8, "seed": 7, "keep_warm": 60.0, **named}
    return experiment.search(function, space, progress=False, **named)


def folder(result: Any) -> Path:
    return Path(result.run_dir.removeprefix("file://"))


def read(path: Path) -> Any:
    return json.loads(path.read_text())


# -------------------------------------------------------------------------------------------------- what it gives


def test_search_returns_the_best_trial_and_the_table(store: Path) -> None:
    result = search(bowl, metric="height", direction="MIN", num_trials=12)
    frame = result.trials
    assert len(frame) == 12 and set(frame["state"]) == {"completed"}
    best = frame.loc[frame["value"].idxmin()]
    assert result.value == best["value"] == result.metrics["height"]
    assert (
        result.config == {"x": best["params_x"], "y": best["params_y"]}
        and bowl(**result.config)["height"] == result.value
    )
    best_dir, config, outputs = result  # as the predecessor's
    assert best_dir == result.best.logdir == f"{result.run_dir}/trials/{best['trial_id']}/events"
    assert config == result.config
    assert outputs["x_again"] == result.config["x"] and outputs["log"] == result.best.log
    assert result.metrics.keys() == {"height", "x_again"} and result.name == "bowl"


def test_search_writes_its_documented_files(store: Path) -> None:
    result = search(bowl, metric="height", name="bowl")
    root = folder(result)
    assert read(root / "status.json")["state"] == "FINISHED"
    assert read(root / "best.json")["value"] == result.value
    record = read(root / "run.json")
    assert record["verb"] == "search" and record["search"]["searcher"] == "random" and record["name"] == "bowl"
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(root / "trials.parquet").to_pydict()
    assert table["number"] == list(range(8)) and table["params_x"] == list(result.trials["params_x"])
    for trial_id, x in zip(table["trial_id"], table["params_x"], strict=True):
        left = root / "trials" / trial_id
        assert read(left / ".hparams.json")["x"] == x == read(left / ".outputs.json")["x_again"]
        assert float((left / ".metric").read_text()) == read(left / "trial.json")["final_metric"]
        assert (left / "output.log").exists()


def test_store_outage_at_the_end_does_not_lose_the_search_result(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def away(self: LocalFileSystem, url: str, data: bytes, **more: Any) -> None:
        if url.endswith("/trials.parquet"):
            raise StorageUnavailable(url, "it is away")
        write_bytes(self, url, data, **more)

    write_bytes = LocalFileSystem.write_bytes
    monkeypatch.setattr(LocalFileSystem, "write_bytes", away)
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "0.1")
    with pytest.raises(ResultsNotStored, match="the result is missing: ") as raised:
        search(bowl, metric="height")
    result = raised.value.result
    assert list(result.unrecorded) == ["trials.parquet"] and len(result.rows) == 8 and result.state == "FAILED"
    assert read(folder(result) / "status.json")["state"] == "FAILED"


def test_sequential_search_with_a_seed_is_reproducible(store: Path) -> None:
    first, second = (search(bowl, metric="height", searcher="tpe", num_trials=4, max_executors=1) for _ in range(2))
    assert list(first.trials["params_x"]) == list(second.trials["params_x"])


def test_optuna_study_and_plots_contain_all_trials(store: Path) -> None:
    def train(x: float, y: int) -> float:
        for step in range(3):
            hopsml.report(step=step, metric=x * step)
        return x

    result = search(train, num_trials=6)
    study = result.study
    assert study.best_value == result.value and len(study.trials) == 6
    assert study.trials[0].intermediate_values == {
        0: 0.0,
        1: pytest.approx(study.trials[0].value),
        2: pytest.approx(2 * study.trials[0].value),
    }  # type: ignore[operator]
    for kind in ("parallel_coordinates", "optimization_history", "slice", "contour", "intermediate_values"):
        figure = result.plot(kind)
        assert figure.data, kind
        layout = figure.layout  # the page's own ground, in a light and in a dark theme
        assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)" and layout.font.color == "#727983", kind
        assert all(axis.gridcolor == "rgba(128,128,128,0.25)" for axis in figure.select_xaxes()), kind
    with pytest.raises(ArgumentError, match="there is no such plot"):
        result.plot("pie")


def test_trial_stopped_at_its_last_step_is_complete_in_the_study() -> None:
    """ASHA may end every trial that way: optuna would find nothing to plot."""
    ended = {3: "stopped", 9: "stopped"}
    rows = [
        {"number": last, "trial_id": str(last), "state": state, "value": 0.1 * last, "config": {}, "error": None}
        for last, state in ended.items()
    ]
    curves = {last: [(step, 0.1 * step) for step in range(1, last + 1)] for last in ended}
    study = study_of(rows, curves, None, "max", "asha")
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]
    assert study.best_trial.user_attrs["number"] == 9


def test_grid_search_without_num_trials_runs_the_whole_grid(store: Path) -> None:
    result = search(
        lambda a, b: a * b,
        {"a": ("DISCRETE", [1, 2]), "b": ("CATEGORICAL", [10, 30])},
        searcher="grid",
        num_trials=None,
    )
    assert result.value == 60 and result.config == {"a": 2, "b": 30} and result.counts["completed"] == 4


@pytest.mark.parametrize(
    "given",
    [
        {"searcher": "asha", "num_trials": 8},
        pytest.param(
            {"searcher": "asha", "num_trials": None, "searcher_args": {"num_trials": 8}}, marks=pytest.mark.variant
        ),
        pytest.param(
            {"searcher": "hyperband", "num_trials": 8, "searcher_args": {"max_budget": 4, "eta": 2}},
            marks=pytest.mark.variant,
        ),
    ],
)
def test_num_trials_counts_configurations_that_are_retried(store: Path, given: dict[str, Any]) -> None:
    result = search(lambda x, y, budget: x + budget / 1000, **given)
    frame = result.trials
    configurations = frame[["params_x", "params_y"]].drop_duplicates()
    assert len(configurations) == 8 and len(frame) > 8 and set(frame["state"]) == {"completed"}
    assert frame["params_budget"].max() == 4
    record = read(folder(result) / "run.json")["search"]
    assert record["num_trials"] == given["num_trials"]
    if given["num_trials"] and given["searcher"] == "asha":
        more = experiment.continue_search(result, num_trials=2, progress=False).trials
        assert len(more[["params_x", "params_y"]].drop_duplicates()) == 10


def test_shared_arguments_are_passed_to_all_trials(store: Path) -> None:
    assert search(lambda x, scale: x * scale, {"x": ("DISCRETE", [3])}, searcher="grid", args={"scale": 7}).value == 21


def test_stopper_ends_trials_early_and_the_function_can_catch_it(store: Path) -> None:
    def train(level: float, stored: str) -> float:
        for step in range(200):
            try:
                hopsml.report(step=step, metric=level)
            except hopsml.errors.TrialStopped:
                Path(stored, str(level)).touch()
                raise
            time.sleep(0.002)
        return level

    stored = store.parent / "kept"
    stored.mkdir()
    space = {"level": ("DISCRETE", [9, 8, 1, 2, 3, 4])}
    result = search(
        train, space, searcher="grid", stopper="median", num_trials=None, max_executors=1, args={"stored": str(stored)},
        stopper_args={"min_trials": 2},
    )  # fmt: skip
    states = dict(zip(result.trials["params_level"], result.trials["state"], strict=True))
    assert states[9] == states[8] == "completed" and result.value == 9
    assert (
        {float(path.name) for path in stored.iterdir()}
        == {level for level in states if states[level] == "stopped"}
        != set()
    )


def test_table_has_the_last_step_of_each_curve(store: Path) -> None:
    def train(rate: float, pause_s: float) -> dict[str, float]:
        accuracy = 0.0
        for step in range(27):
            accuracy += rate * (1 - accuracy)
            time.sleep(pause_s)
            hopsml.report(step=step, accuracy=accuracy)
        return {"accuracy": accuracy}

    space = {"rate": ("LOGUNIFORM", [0.001, 0.1])}
    for pause_s in (0.0, 0.05):  # trials that return before the stopper's request reaches them, and others
        found = experiment.submit_search(
            train, space, searcher="random", stopper="asha", num_trials=10, metric="accuracy", args={"pause_s": pause_s},
            seed=7, keep_warm=60.0, progress=False,
        )  # fmt: skip
        result = found.result(END_S)
        for row in result.rows:
            assert row["step"] == result.curves[row["number"]][-1][0], row
        assert result.best.step == result.curves[result.best.number][-1][0]
        if row := next((row for row in result.rows if row["state"] == "completed"), None):
            assert row["step"] == 26
        assert any("of 10 trials none continues past step 4" in note for note in found.status()["notes"])
    assert result.counts["completed"] == 0 and result.best.step == 4
    assert any("no trial has completed" in note for note in found.status()["notes"])


# -------------------------------------------------------------------------------------------------- while it runs


def test_search_handle_reports_progress_and_accepts_more_trials(store: Path) -> None:
    gate = store.parent / "gate"

    def train(x: float, gate: str) -> float:
        hopsml.report(step=1, metric=x)
        while x > 0.1 and not os.path.exists(gate):
            time.sleep(0.005)
        return x

    space = {"x": ("DISCRETE", [0.05, 0.06, 0.5, 0.6, 0.7])}
    run = experiment.submit_search(
        train,
        space,
        searcher="grid",
        num_trials=3,
        max_executors=1,
        progress=False,
        args={"gate": str(gate)},
        keep_warm=60.0,
    )
    wait_until(
        lambda: run.best is not None and run.best.value == 0.06 and run.status()["trials_running"], "two trials to end"
    )
    status = run.status()
    assert status["completed"] == 2 and status["planned"] == 3 and status["best_value"] == 0.06
    assert status["trials_running"][0]["config"] == {"x": 0.5} and not run.done()
    wait_until(
        lambda: (folder(run) / "best.json").exists() and read(folder(run) / "best.json")["value"] == 0.06, "best.json"
    )
    run.extend(1)
    gate.touch()
    assert run.result(END_S).counts["completed"] == 4
    with pytest.raises(ArgumentError, match="continue_search"):
        run.extend(1)


def test_search_deadline_ends_with_the_results_so_far(store: Path) -> None:
    def train(x: float) -> float:
        step = 0
        while x > 0.2:
            step += 1
            hopsml.report(step=step, metric=x)
            time.sleep(0.01)
        return x

    run = experiment.submit_search(
        train, {"x": ("DISCRETE", [0.1, 0.9])}, searcher="grid", num_trials=None, deadline="10 min", max_executors=1,
        progress=False, keep_warm=60.0,
    )  # fmt: skip
    wait_until(lambda: any(one["value"] == 0.9 for one in run.status()["trials_running"]), "the second trial's report")
    run.extend(deadline="0.1 s")  # is over: it counts from the search's begin
    result = run.result(END_S)
    assert result.reason == "deadline"
    assert result.counts["completed"] == 1 and result.counts["stopped"] == 1 and result.value == 0.9


def test_cancelled_search_can_be_continued(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gate = store.parent / "second-gate"

    def train(x: float, gate: str) -> float:
        while x > 0.5 and not os.path.exists(gate):
            time.sleep(0.005)
        return x

    run = experiment.submit_search(
        train, {"x": ("DISCRETE", [0.1, 0.2, 0.8, 0.9])}, searcher="grid", num_trials=None, progress=False,
        max_executors=1, args={"gate": str(gate)}, keep_warm=60.0, patience=1.0,
    )  # fmt: skip
    wait_until(lambda: run.status().get("completed") == 2 and run.status()["trials_running"], "two trials to end")
    with pytest.raises(ArgumentError, match="is running in process"):
        experiment.continue_search(run, progress=False)
    assert run.cancel("enough")
    with pytest.raises(RunCancelled, match=r"enough.*0\.2"):
        run.result(END_S)
    gate.touch()
    result = experiment.continue_search(run.run_id, progress=False)
    assert result.run_dir == run.run_dir and result.value == 0.9 and result.counts["completed"] == 4
    assert result.rows[2]["attempts"] == 2, "what ran when it was cancelled"
    assert read(folder(result) / "status.json")["state"] == "FINISHED"
    capfd.readouterr()
    assert experiment.continue_search(result).counts["completed"] == 4
    assert "all 4 trials have ended, so there is nothing to do" in capfd.readouterr().err
    more = submit_continued(result, num_trials=3, progress=False)
    assert more.result(END_S).counts["completed"] == 4, "the grid has no more"


def test_cancelled_search_whose_trial_does_not_end_names_the_reason(store: Path) -> None:
    space = {"x": ("DOUBLE", [0, 1])}
    run = experiment.submit_search(lambda x: time.sleep(600), space, num_trials=4, progress=False, max_executors=2)
    wait_until(lambda: run.status()["trials_running"], "a trial")
    assert run.cancel("cancelled by alice")
    with pytest.raises(RunCancelled, match="was cancelled: cancelled by alice"):
        run.result(END_S)
    status = read(Path(run.run_dir.removeprefix("file://")) / "status.json")
    assert (status["state"], status["cause"].endswith("cancelled by alice")) == ("CANCELLED", True)
    assert {worker["state"] for worker in status["workers"]} == {"STOPPED"}, status["workers"]


def test_executors_that_a_finished_search_released_are_not_lost(store: Path) -> None:
    result = search(lambda x: x, {"x": ("DOUBLE", [0, 1])}, num_trials=2)
    workers = read(folder(result) / "status.json")["workers"]
    assert workers and {worker["state"] for worker in workers} == {"STOPPED"}, workers


def test_only_one_of_several_concurrent_continuations_succeeds(store: Path) -> None:
    first = search(lambda x: x, {"x": ("DOUBLE", [0, 1])}, num_trials=1)

    def go_on(_: int) -> SearchRun | str:
        try:
            return submit_continued(first, num_trials=1, progress=False)
        except ArgumentError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(go_on, range(4)))
    (run,) = [answer for answer in answers if not isinstance(answer, str)]
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert len(refused) == 3 and all(
        "is already continued by process" in message or "is running in process" in message for message in refused
    )
    assert len(run.result(END_S).trials) == 2
    assert len(experiment.continue_search(first, num_trials=1, progress=False).trials) == 3


def test_search_can_be_continued_after_a_failed_attempt(store: Path) -> None:
    first = search(lambda x: x, {"x": ("DOUBLE", [0, 1])}, num_trials=1)
    directory, lines = RunDir(first.run_dir), recorded.read_event_log(RunDir(first.run_dir))
    with pytest.raises(NotEnoughSlots), recorded.right_to_continue(directory, lines):
        raise NotEnoughSlots("no executor came")
    with (
        recorded.right_to_continue(directory, lines),
        pytest.raises(ArgumentError, match="is already continued by process"),
    ):
        recorded.right_to_continue(directory, lines).__enter__()
    (claim,) = folder(first).glob("continued-*.json")
    exited = {**read(claim)["process"], "pid": 1 << 22, "process_started": 1}
    claim.write_text(json.dumps({"process": exited}))  # killed between its claim and its first line of the journal
    assert len(experiment.continue_search(first, num_trials=1, progress=False).trials) == 2


def test_search_with_a_malformed_record_is_not_continued(store: Path) -> None:
    directory = RunDir(search(lambda x: x, {"x": ("DOUBLE", [0, 1])}, num_trials=1).run_dir)
    record = directory.read_run()
    damaged = [{key: value for key, value in record.items() if key != name} for name in ("spec", "source", "arguments")]
    for changed in [*damaged, {**record, "spec": 3}, {**record, "own_imports": 3}, {**record, "secrets": 3}]:
        directory.write_run(changed)
        with pytest.raises(ArgumentError, match=r"records of search .* start its script again"):
            recorded.load_call(directory)
    directory.write_run(record)
    assert recorded.load_call(directory).captured is not None


def test_warm_started_search_uses_known_results(store: Path) -> None:
    known = [{"config": {"x": x / 12, "y": y}, "value": bowl(x / 12, y)["height"]} for x in range(13) for y in range(5)]
    options: dict[str, Any] = {"searcher": "tpe", "num_trials": 4, "max_executors": 1, "seed": 3}
    options |= {"metric": "height", "direction": "min"}
    cold = search(bowl, **options)
    learned = search(bowl, warm_start=[cold, *known], **options)
    # A height below 1 means the best of the five values of y: at the start, only a trained searcher can know it.
    assert max(row["value"] for row in cold.rows) > 1.0 > max(row["value"] for row in learned.rows)
    with pytest.raises(ArgumentError, match="warm_start"):
        search(lambda z: z, {"z": ("DOUBLE", [0, 1])}, warm_start=cold)


# -------------------------------------------------------------------------------------------------- what goes wrong


def fragile(x: float) -> float:
    if x > 0.5:
        raise ValueError(f"{x} is too much")
    return x


def test_failed_trials_are_recorded_and_the_search_continues(store: Path) -> None:
    result = search(fragile, {"x": ("DISCRETE", [0.1, 0.9, 0.3])}, searcher="grid", num_trials=None)
    rows = {row["config"]["x"]: row for row in result.rows}
    assert result.value == 0.3 and rows[0.9]["state"] == "failed" and rows[0.9]["attempts"] == 2  # once more elsewhere
    assert "0.9 is too much" in rows[0.9]["error"]
    assert read(folder(result) / "trials" / rows[0.9]["trial_id"] / "trial.json")["status"] == "FAILED"


@pytest.mark.parametrize("workers", [1, 2])
def test_misspelt_metric_is_refused_at_the_first_report(store: Path, workers: int) -> None:
    def train(x: float) -> dict[str, float]:
        for step in range(1000):
            hopsml.report(step=step, accuracy=x)
            time.sleep(0.05)
        return {"accuracy": x}

    with pytest.raises(
        RunError, match=r"'acuracy' is not among the reported values .'accuracy'.; did you mean 'accuracy'"
    ):
        search(train, {"x": ("DOUBLE", [0, 1])}, metric="acuracy", workers_per_trial=workers, framework="distributed")


def test_search_without_any_result_fails_with_the_cause(store: Path) -> None:
    with pytest.raises(RunError, match=r"(?s)found nothing.*ZeroDivisionError") as caught:
        search(lambda x, y: 1 / 0, retries=0)
    assert str(caught.value).count("ZeroDivisionError") == 1 and "}): this error" in str(caught.value)
    assert read(Path(caught.value.run_dir.removeprefix("file://")) / "status.json")["state"] == "FAILED"  # type: ignore[union-attr]


def test_missing_module_in_every_trial_is_reported_with_the_remedy(store: Path) -> None:
    def train(x: float) -> float:
        import xgboost_of_mine

        return float(xgboost_of_mine.train(x))

    with pytest.raises(RunError, match=r"(?s)found nothing.*Remedy: 'xgboost_of_mine' is not on .*pip install"):
        search(train, {"x": ("DOUBLE", [0.0, 1.0])}, num_trials=2, retries=0)


@pytest.mark.parametrize(
    ("returned", "metric", "message"),
    [
        (lambda: None, None, "returned nothing"),
        pytest.param(lambda: {"loss": 1.0}, "accuracy", "'accuracy'", marks=pytest.mark.variant),
        pytest.param(lambda: {"a": 1.0, "b": 2.0}, None, "'metric'", marks=pytest.mark.variant),
        pytest.param(lambda: {"accuracy": "high"}, "accuracy", "a search needs a number", marks=pytest.mark.variant),
        (lambda: float("nan"), None, "nan"),
    ],
)
def test_missing_or_invalid_metric_fails_the_search(
    store: Path, returned: Any, metric: str | None, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        search(
            lambda x: returned(),
            {"x": ("DISCRETE", [1, 2])},
            searcher="grid",
            num_trials=None,
            metric=metric,
            retries=0,
        )


def test_burst_of_reports_from_ten_threads_does_not_fail_the_trial(store: Path) -> None:
    def train(x: float) -> float:
        def shout() -> None:
            for _ in range(200):
                hopsml.report(metric=x)

        threads = [threading.Thread(target=shout) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return x

    assert search(train, {"x": ("DISCRETE", [1, 2])}, searcher="grid", num_trials=None).value == 2


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({}, {}, "empty"),
        ({"x": ("DOUBLE", [1, 0])}, {}, "not less than"),
        ({"x": ("LOGUNIFORM", [0, 1])}, {}, "greater than 0"),
        ({"x": ("DOUBLE", [0, 1]), "z": ("DOUBLE", [0, 1])}, {}, "has no parameter z"),
        ({"x": ("DOUBLE", [0, 1])}, {"args": {"x": 1}}, "remove it from one of them"),
        (SPACE, {"direction": "up"}, "'max' or 'min'"),
        (SPACE, {"searcher": "magic"}, "there are"),
        (SPACE, {"stopper": "magic"}, "there are"),
        (SPACE, {"num_trials": 0}, "at least 1"),
        (SPACE, {"num_trials": None}, "would not end"),
        (SPACE, {"deadline": "soon"}, "not a duration"),
        (SPACE, {"deadline": -1}, "greater than 0"),
        (SPACE, {"isolation": "container"}, "'reuse'"),
        (SPACE, {"workers_per_trial": (4, 2)}, "the fewest"),
        (SPACE, {"searcher_args": {"what": 1}}, "it takes"),
    ],
)
def test_invalid_search_call_is_refused(space: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        search(lambda x, y=0: x, space, **options)


def test_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match="needs depth"):
        search(lambda x, y, depth: x)


def test_search_record_of_a_newer_version_or_changed_is_refused(store: Path) -> None:
    result = search(bowl, metric="height", num_trials=1)
    path = folder(result) / "run.json"
    record = read(path)
    path.write_text(json.dumps({**record, "search": {**record["search"], "version": 99}}))
    with pytest.raises(ArgumentError, match="version 99"):
        experiment.continue_search(result, num_trials=1)
    path.write_text(json.dumps(record))
    with pytest.raises(ArgumentError, match="is a search"):
        repeat.build(result)
    pickle = folder(result) / "code" / "search.pickle"
    pickle.write_bytes(pickle.read_bytes() + b"x")
    with pytest.raises(ArgumentError, match="changed or damaged"):
        experiment.continue_search(result, num_trials=1)


# ---------------------------------------------------------------------- secrets, and other people's pickles


class Bomb:
    """Object that runs code when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return self.target.touch, ()


def test_warm_start_executes_nothing_of_the_other_searchs_files(store: Path, tmp_path: Path) -> None:
    space = {"x": ("DOUBLE", [0, 1]), "y": ("DISCRETE", [1, 2])}
    first = search(lambda x, y: x - y, space, num_trials=4)
    directory = folder(first)
    forged = pickle.dumps(Bomb(tmp_path / "was-run"))
    (directory / "code/search.pickle").write_bytes(forged)
    (directory / "code/function.pickle").write_bytes(forged)
    record = json.loads((directory / "run.json").read_text())
    record["search"]["pickle_sha256"] = record["payload_sha256"] = hashlib.sha256(forged).hexdigest()
    (directory / "run.json").write_text(json.dumps(record))
    known = learned_trials(first.run_dir, calls.searchspace(space), "max")
    assert not (tmp_path / "was-run").exists()
    assert sorted((config["x"], outcome.score) for config, outcome in known) == sorted(
        (row["config"]["x"], row["value"]) for row in first.rows
    )


def test_search_continues_with_a_secret_from_the_environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(x: float, api_key: str) -> float:
        assert api_key == "s3cr3t-31415"
        return x

    first = search(train, {"x": ("DOUBLE", [0, 1])}, num_trials=2, args={"api_key": "s3cr3t-31415"})
    for path in folder(first).rglob("*"):
        assert path.is_dir() or b"s3cr3t-31415" not in path.read_bytes(), path
    with pytest.raises(ArgumentError, match="set HOPSML_SECRET_API_KEY"):
        experiment.continue_search(first, num_trials=1, progress=False)
    monkeypatch.setenv("HOPSML_SECRET_API_KEY", "s3cr3t-31415")
    again = experiment.continue_search(first, num_trials=1, progress=False)
    assert len(again.rows) == 3 and {row["state"] for row in again.rows} == {"completed"}


def test_secret_in_a_search_space_is_refused_with_the_remedy(store: Path) -> None:
    with pytest.raises(ArgumentError, match=r"contains a secret \(api_key\).*pass the secret in args="):
        search(lambda api_key: 1.0, {"api_key": ("CATEGORICAL", ["s3cr3t-1", "s3cr3t-2"])}, num_trials=2)
