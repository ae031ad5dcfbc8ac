"""Tests of an evaluator next to a run: each checkpoint once despite failures; and its requests to the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import ArgumentError, RunCancelled, RunError, WorkerFailed
from hopsml.storage import checkpoints, urls
from hopsml.training.evaluation import CheckpointEvaluation, nothing_evaluated_reason
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.unit.tracking.test_event_file import events

pytestmark = pytest.mark.local


def judge(folder: Path, killed: str = "") -> dict[str, float]:
    """Return the checkpoint's value; with ``killed``, the first evaluation of step 20 kills its own process."""
    import os
    import signal
    from pathlib import Path

    value = float((folder / "value").read_text())
    if killed and folder.name.endswith("20") and not Path(killed).exists():
        Path(killed).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"accuracy": value}


def read_status(run_dir: str) -> Any:
    return json.loads(Path(run_dir.removeprefix("file://"), "status.json").read_text())


def save(run_dir: str, folder: Path, step: int, value: float) -> None:
    folder.mkdir()
    (folder / "value").write_text(str(value))
    checkpoints.commit(folder, urls.join(run_dir, "checkpoints"), step)


def files(run_dir: str) -> dict[str, Any]:
    place = Path(run_dir.removeprefix("file://"), "evaluations")
    return {path.stem: json.loads(path.read_text()) for path in place.glob("*.json")} if place.is_dir() else {}


def test_every_checkpoint_is_evaluated_once_although_the_evaluator_is_killed(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        save(training.run_dir, tmp_path / "a", 10, 0.5)
        options: dict[str, Any] = {"metric": "accuracy", "progress": False, "keep_warm": 60.0}
        run = experiment.submit_evaluation(
            judge, training.run_dir, args={"killed": str(tmp_path / "killed")}, **options
        )
        wait_until(lambda: "step-000000010" in files(training.run_dir), "the first")
        save(training.run_dir, tmp_path / "b", 20, 0.75)
        save(training.run_dir, tmp_path / "c", 30, 0.25)
        wait_until(lambda: len(files(training.run_dir)) == 5, "all three, the best, and whose they are")
    result = run.result(END_S)
    assert result.metrics["evaluated"] == 3 and result.metrics["best_step"] == 20 and result.metrics["accuracy"] == 0.75
    found = files(training.run_dir)
    assert found.pop("evaluator") == {"run": run.run_dir, "function": "judge"}
    assert found["best"]["step"] == 20 and found["step-000000030"]["metrics"] == {"accuracy": 0.25}
    assert (tmp_path / "killed").exists() and "signal 9" in "".join(run.state.notes)
    assert not any("committed" in note for note in run.state.notes), "it commits nothing, and is not to"
    again = experiment.evaluate(judge, training.run_dir, **options)  # after its end: nothing is left
    assert again.metrics["evaluated"] == 3
    now = files(training.run_dir)
    assert now.pop("evaluator")["run"] == again.run_dir and now == found, "their times among them"


def test_misspelt_metric_of_an_evaluation_is_refused_at_the_first_checkpoint(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        for step in (10, 20):
            save(training.run_dir, tmp_path / str(step), step, 0.5)
    options: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
    message = r"'acuracy' is not among the reported values .*'accuracy'.*; did you mean 'accuracy'\? Correct metric="
    with pytest.raises(RunError, match=message):
        experiment.evaluate(judge, training.run_dir, metric="acuracy", **options)
    assert "step-000000020" not in files(training.run_dir)
    again = experiment.evaluate(judge, training.run_dir, metric="accuracy", **options)
    assert again.metrics["evaluated"] == 2 and again.metrics["best_step"] == 10


def test_evaluations_are_written_for_tensorboard_and_restored_when_deleted(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        for number, value in enumerate((0.5, 0.75, 0.25), 1):
            save(training.run_dir, tmp_path / str(number), number, value)
    options: dict[str, Any] = {"metric": "accuracy", "progress": False, "keep_warm": 60.0, "order": "newest"}
    experiment.evaluate(judge, training.run_dir, **options)
    folder = Path(training.run_dir.removeprefix("file://"), "events", "evaluation")

    def shown() -> list[tuple[int, dict[str, float]]]:
        """Return the step and the values of all events, in the order in which TensorBoard reads the files."""
        read = [events(path)[1] for path in sorted(folder.iterdir())]
        return [(one.step, {value.tag: value.simple_value for value in one.summary.value}) for one in read]

    expected = [
        (1, {"best_step": 1, "accuracy": 0.5}),
        (2, {"best_step": 2, "accuracy": 0.75}),
        (3, {"best_step": 2, "accuracy": 0.25}),
    ]
    by_step = {step: values["accuracy"] for step, values in shown()}
    assert by_step == {1: 0.5, 2: 0.75, 3: 0.25} and all("tfevents" in path.name for path in folder.iterdir())
    for path in folder.iterdir():
        path.unlink()
    again = experiment.continue_evaluation(training.run_dir, progress=False)
    assert shown() == expected and again.metrics["evaluated"] == 3


def worse(folder: Path) -> float:
    return -float((folder / "value").read_text())


def test_second_evaluation_function_needs_a_separate_name(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        for step, value in ((10, 0.5), (20, 0.75)):
            save(training.run_dir, tmp_path / str(step), step, value)
    options: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
    experiment.evaluate(judge, training.run_dir, metric="accuracy", **options)
    with pytest.raises(
        ArgumentError, match=r"worse: the evaluation 'eval' of run .* uses the function .*judge; .*name='worse'"
    ):
        experiment.evaluate(worse, training.run_dir, **options)
    first = files(training.run_dir)
    unnamed = experiment.evaluate(judge, training.run_dir, name="unnamed", **options)
    assert "best_step" not in unnamed.metrics
    log = Path(unnamed.log.removeprefix("file://")).read_text()
    assert log.count("has a finite value of the metric 'metric'") == 1 and "pass metric='accuracy'" in log
    result = experiment.evaluate(worse, training.run_dir, name="worse", **options)
    assert (result.metrics["evaluated"], result.metrics["best_step"], result.metrics["metric"]) == (2, 10, -0.5)
    assert files(training.run_dir) == first, "the other evaluation's"
    folder = Path(training.run_dir.removeprefix("file://"))
    assert json.loads((folder / "evaluations/worse/best.json").read_text())["step"] == 10
    curves = [events(path)[1].step for path in sorted((folder / "events/evaluation/worse").iterdir())]
    assert curves == [10, 20]
    assert experiment.continue_evaluation(training.run_dir, name="worse", progress=False).metrics["metric"] == -0.5
    with pytest.raises(ArgumentError, match=r"never evaluated as 'third'.*name='third'.*--name third"):
        experiment.continue_evaluation(training.run_dir, name="third")


def test_continued_evaluation_uses_the_function_of_the_last_evaluation(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        save(training.run_dir, tmp_path / "a", 10, 0.5)
        with pytest.raises(ArgumentError, match="was never evaluated, so there is no recorded function"):
            experiment.continue_evaluation(training.run_dir)
    with experiment.recorded("another") as other:
        save(other.run_dir, tmp_path / "b", 10, 0.5)
    experiment.evaluate(judge, training.run_dir, metric="accuracy", progress=False)
    save(training.run_dir, tmp_path / "c", 20, 0.75)
    assert experiment.continue_evaluation(training.run_dir, progress=False).metrics["best_step"] == 20
    (path,) = (Path(other.run_dir.removeprefix("file://"), "evaluations"),)
    path.mkdir()
    (path / "evaluator.json").write_text(json.dumps({"run": training.run_dir}))
    with pytest.raises(ArgumentError, match=r"which is no evaluation|cannot be repeated"):
        experiment.continue_evaluation(other.run_dir)


def test_checkpoints_of_a_killed_driver_are_evaluated(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        save(training.run_dir, tmp_path / "a", 10, 0.5)
    folder = Path(training.run_dir.removeprefix("file://"))
    (folder / "status.json").unlink()
    record = json.loads((folder / "run.json").read_text())
    record["driver_process"]["process_started"] += 1  # of another process, which had the number earlier
    (folder / "run.json").write_text(json.dumps(record))
    run = experiment.submit_evaluation(judge, training.run_dir, metric="accuracy", progress=False, keep_warm=60.0)
    assert run.result(END_S).metrics["evaluated"] == 1
    assert "has exited without ending the run" in run.logs()


def test_evaluation_survives_a_temporary_outage_of_the_store(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        folder = Path(training.run_dir.removeprefix("file://"))
        save(training.run_dir, tmp_path / "a", 10, 0.5)
        run = experiment.submit_evaluation(judge, training.run_dir, metric="accuracy", progress=False, keep_warm=60.0)
        wait_until(lambda: "best" in files(training.run_dir), "the first")
        (folder / "run.json").rename(tmp_path / "away")  # the file that it reads each time
        wait_until(lambda: "the evaluation waits until the store" in run.logs(), "the evaluator's word")
        (tmp_path / "away").rename(folder / "run.json")
        save(training.run_dir, tmp_path / "b", 20, 0.75)
    assert run.result(END_S).metrics["evaluated"] == 2


def wait_forever() -> None:
    import threading

    threading.Event().wait()


def test_evaluator_stops_a_training_that_does_not_improve(store: Path, tmp_path: Path) -> None:
    training = experiment.submit(wait_forever, num_workers=1, progress=False)
    for number, value in enumerate((0.5, 0.4, 0.3), 1):
        save(training.run_dir, tmp_path / str(number), number, value)
    result = experiment.evaluate(judge, training, metric="accuracy", patience=2, progress=False)
    assert result.metrics["best_step"] == 1
    with pytest.raises(RunCancelled):
        training.result(END_S)
    assert "early stopping" in str(read_status(training.run_dir))


def train_with_commits() -> int:
    """Train in an own loop that expects its commits to be stored."""
    state = hopsml.elastic.State(n=0)
    for _ in state.resume(hopsml.elastic.Sampler(6, 2)):
        state.n += 1
        state.commit(every=1)
    return int(state.n)


def test_commits_of_a_fixed_group_and_an_empty_evaluation_are_noted(store: Path) -> None:
    training = experiment.submit(train_with_commits, num_workers=1, progress=False, keep_warm=60.0)
    assert training.result(END_S).value == 3
    (note,) = [one for one in training.state.notes if "State.commit() stores nothing in a run of fixed size" in one]
    assert "Remedy: start it with min_workers=" in note
    run = experiment.submit_evaluation(judge, training.run_dir, progress=False, keep_warm=60.0)
    assert run.result(END_S).metrics["evaluated"] == 0
    assert any(
        "has no complete checkpoint, so nothing was evaluated: write checkpoints" in note for note in run.state.notes
    )


def test_commits_of_an_elastic_group_are_stored_without_a_note(store: Path) -> None:
    training = experiment.submit(train_with_commits, min_workers=1, max_workers=1, progress=False, keep_warm=60.0)
    assert training.result(END_S).value == 3
    assert not any("stores nothing" in note for note in training.state.notes)
    assert checkpoints.steps(training.directory.checkpoints) == [3]


def test_evaluation_without_readable_checkpoints_names_the_first_problem() -> None:
    unread = [CheckpointEvaluation(20, problem="its file is torn"), CheckpointEvaluation(10, problem="it was deleted")]
    text = nothing_evaluated_reason(unread, "hdfs://nn/run")
    assert text == (
        "none of the 2 checkpoints of hdfs://nn/run could be read, so nothing was evaluated; that of step 10: it was deleted"
    )
    assert nothing_evaluated_reason([*unread, CheckpointEvaluation(30, {"loss": 0.1})], "hdfs://nn/run") == ""


def return_text(folder: Path) -> str:
    return "good"


def test_invalid_evaluation_arguments_are_refused(store: Path, tmp_path: Path) -> None:
    with experiment.recorded("a training") as training:
        save(training.run_dir, tmp_path / "a", 10, 0.5)
    with pytest.raises(ArgumentError, match=r"has no run with this id or name"):
        experiment.evaluate(judge, "nobody")
    with pytest.raises(
        ArgumentError, match=r"must accept the folder of a checkpoint .*unexpected keyword argument 'x'"
    ):
        experiment.evaluate(judge, training.run_dir, args={"x": 1})
    for name in ("a/b", "", "step-000000010", "..", "x" * 61):
        with pytest.raises(ArgumentError, match="an evaluation's name has letters, digits, - and _"):
            experiment.evaluate(judge, training.run_dir, name=name)
    with pytest.raises(ArgumentError, match="order='last': it must be one of 'oldest', 'newest'"):
        experiment.evaluate(judge, training.run_dir, order="last")
    with pytest.raises(WorkerFailed, match="returned 'good', a str; it must return a number"):
        experiment.evaluate(return_text, training.run_dir, progress=False)
