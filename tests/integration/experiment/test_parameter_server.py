"""Tests of ``experiment.parameter_server`` locally: roles, exact steps, and replacement of lost members."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import NotEnoughSlots
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.server_run import noted, process_of
from tests.helpers.cluster.workloads import WAIT_S, wait_until
from tests.helpers.local_application import warm_application
from tests.helpers.training import server_workload

pytestmark = [pytest.mark.tensorflow]
LONG_S = 3 * WAIT_S  # for a run


application = warm_application(lambda: submit(dict).result(END_S), autouse=True)


def submit(function: Any, workers: int = 2, servers: int = 1, **given: Any) -> Run:
    given = {"num_workers": workers, "num_ps": servers, "progress": False, "keep_warm": 60.0, **given}
    return experiment.parameter_server.submit(function, **given)


def steps_of(run: Run) -> int:
    return run.state.members[0].step or 0 if 0 in run.state.members else 0


def wait_for_steps(run: Run, least: int = 40) -> None:
    """Until the chief has reported so many steps more: what was lost is running again."""
    before = steps_of(run)
    wait_until(lambda: run.state.is_over or steps_of(run) >= before + least, "steps", LONG_S)
    assert not run.state.is_over, run.state.error


def step_of(folder: Path) -> dict[str, float]:
    import hopsml

    return {"step": hopsml.load_checkpoint(folder)["step"]}


@pytest.mark.variant  # of integration/experiment/test_torch.py::test_torch_run_is_evaluated_beside_its_training
def test_run_with_servers_is_evaluated_beside_its_training() -> None:
    run = submit(server_workload.train_exactly, workers=1, args={"steps": 130, "checkpoint_every": 50})
    evaluation = experiment.submit_evaluation(step_of, run, metric="step", progress=False)
    assert run.result(END_S).value["steps"] == 130
    assert evaluation.result(END_S).metrics["best_step"] == 130


@pytest.mark.variant  # of what tests/integration/training/test_legacy_keras.py shows without servers
def test_tf_keras_fit_with_parameter_servers_reports_and_saves_each_epoch() -> None:
    run = submit(server_workload.fit_of_tf_keras, workers=1)
    result = run.result(END_S)
    assert result.value["epochs"] == 2 and steps_of(run) == 10
    folder = Path(result.run_dir.removeprefix("file://"))
    assert list((folder / "checkpoints").rglob("*0010*")) and list((folder / "events").rglob("*tfevents*"))


def test_parameter_server_steps_are_exact_in_a_run_and_its_continuation() -> None:
    run = submit(server_workload.train_exactly, args={"steps": 130, "checkpoint_every": 50})
    result = run.result(END_S)
    assert result.value["counted"] == 130 == result.value["steps"] == result.value["second"]
    assert "continues from step 130, which an earlier one of this function has made" in run.logs(0)
    assert (result.value["began_at"], result.value["roles"]) == (0, ["chief", "ps", "worker"])
    assert result.value["strategy"] == "ParameterServerStrategyV2" and "ServerLoop" in result.value["refused"]
    assert result.value["loss"] < 5.0 and result.value["steps_per_second"] > 0 and result.value["staleness"] >= 0
    assert result.ring_order == ["chief:0", "worker:0", "worker:1", "ps:0"]
    folders = sorted(path.name for path in Path(run.run_dir.removeprefix("file://"), "checkpoints").glob("step-*"))
    if not any(
        "checkpoints are saved faster than they can be written" in note for note in run.state.notes
    ):  # slow disk
        assert folders == ["step-000000050", "step-000000100", "step-000000130"]
    assert folders[-1] == "step-000000130"
    assert "2 workers" in result.summary() and "WARNING" not in result.summary()
    resumed = submit(server_workload.train_exactly, args={"steps": 20, "checkpoint_every": 50}, resume=run.run_id)
    value = resumed.result(END_S).value
    assert (value["began_at"], value["counted"]) == (130, 150) and value["iterations"] == 150


@pytest.mark.variant
def test_counted_steps_are_applied_and_counting_sends_no_messages() -> None:
    value = submit(server_workload.counted_exactly).result(END_S).value
    assert (value["began_at"], value["steps"]) == (7, 40) and value["staleness"] >= 0
    assert value["added"] == 300  # by two workers at once; Keras's own additions lose each other
    assert value["more_sent"] == 0 and value["read_at_once"] == [True, True, True]
    assert "bad batch" in value["refused"]
    assert 9 <= value["counted"] <= value["whole"]  # what another worker was at is cancelled, be it counted or not


def test_killed_or_stopped_members_are_replaced_and_training_continues(tmp_path: Path) -> None:
    done_file = tmp_path / "told"
    run = submit(server_workload.train_until, args={"told": str(done_file)})
    wait_for_steps(run)
    os.kill(process_of(run, 1), signal.SIGKILL)
    noted(run, "rank 1 (worker) is running again")
    wait_for_steps(run)
    os.kill(process_of(run, 3), signal.SIGKILL)
    noted(run, "rank 3 (ps) is running again")
    wait_for_steps(run)
    os.kill(process_of(run, 2), signal.SIGSTOP)  # the others wait for it, without a message of TensorFlow
    noted(run, "rank 2 (worker) is running again")
    wait_for_steps(run)
    for rank in (3, 1):
        os.kill(process_of(run, rank), signal.SIGKILL)
    noted(run, "rank 3 (ps) is running again", 2)
    wait_for_steps(run)
    done_file.write_text("30")
    value = run.result(END_S).value
    assert value["recoveries"] == 2 and value["more"] >= 30


def test_restarted_server_counts_as_lost() -> None:
    """The coordinator reconnects to a restarted worker; variables of the lost server are then placed on another one."""
    assert submit(server_workload.classify_errors, workers=1).result(END_S).value == [
        True,
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_evaluator_is_outside_of_the_cluster_and_a_custom_loop_works(tmp_path: Path) -> None:
    config_file = tmp_path / "evaluator.json"
    run = submit(
        server_workload.record_cluster_and_evaluate, workers=1, evaluator=True, args={"told": str(config_file)}
    )
    assert run.result(END_S).value == {"roles": ["chief", "ps", "worker"], "total": 10.0}
    config = json.loads(config_file.read_text())
    assert config["task"] == {"type": "evaluator", "index": 0} and list(config["cluster"]) == ["evaluator"]


def test_partitioned_variable_is_saved_and_restored() -> None:
    first = submit(server_workload.save_parts, workers=1, servers=2, args={"value": 3.0})
    found = first.result(END_S).value
    assert (found["step"], found["parts"], found["kernel_parts"]) == (0, 2, 1)
    again = submit(server_workload.save_parts, workers=1, servers=2, args={"value": 4.0}, resume=first.run_id)
    value = again.result(END_S).value
    assert (value["step"], value["restored"]) == (1, 3.0)


def test_too_many_requested_slots_are_refused_with_their_purpose() -> None:
    with pytest.raises(
        NotEnoughSlots, match=r"num_workers=2, num_ps=3, the chief: 6 slots, but this cluster has at most 4"
    ):
        submit(server_workload.train_until, servers=3, args={"told": ""})
    with pytest.raises(NotEnoughSlots, match="num_ps=4 needs at least 6 slots: the chief, one worker, the param"):
        experiment.parameter_server(server_workload.train_until, num_ps=4, args={"told": ""}, progress=False)
