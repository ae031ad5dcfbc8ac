"""Tests that benchmarks start the measured commands correctly, and leave no process behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import environments, first_step, fits, peers, step
from benchmarks.launched import MARK, Command, Launched, environment
from benchmarks.peers import bare
from benchmarks.peers.base import SparkSubmit
from benchmarks.scripts import hopsml_evaluated, hopsml_fits
from benchmarks.turn_server import TurnServer
from hopsml.core import processes
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]


def test_every_peer_has_pinned_packages_and_a_script():
    for name in (*peers.NAMES, *peers.VARIANTS, *peers.RECOVERING, *peers.OF_TORCH):
        peer = peers.find(name)
        assert peer.name == name
        assert (ROOT / "benchmarks" / "scripts" / peer.script).is_file()
        pins = environments.requirements_of(peer.packages or name).read_text().splitlines()
        assert pins
        assert all("==" in line for line in pins)


def test_evaluator_and_training_use_separate_cores_if_there_are_two():
    assert (hopsml_evaluated.half([3, 5, 7], second=False), hopsml_evaluated.half([3, 5, 7], second=True)) == (
        {3},
        {5, 7},
    )
    assert hopsml_evaluated.half([3], second=False) == hopsml_evaluated.half([3], second=True) == {3}


def test_unknown_peer_is_refused():
    with pytest.raises(ValueError, match="peer 'horovod' is not known; there are: bare, hopsml"):
        peers.find("horovod")


def test_manually_started_workers_agree_on_the_cluster():
    commands = bare.start(Path("python"), ["job.py", "folder"], 2)
    configs = [json.loads(command.variables["TF_CONFIG"]) for command in commands]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert [config["task"]["index"] for config in configs] == [0, 1]
    assert len(set(configs[0]["cluster"]["worker"])) == 2


def test_spark_submit_command_contains_the_options_of_the_peer():
    (command,) = SparkSubmit({"spark.task.maxFailures": "1"})(Path(sys.executable), ["job.py", "folder"], 2)
    line = list(command.arguments)
    assert line[0].endswith("pyspark/bin/spark-submit")
    assert line[line.index("--master") + 1] == "local-cluster[2,1,1024]"
    assert "spark.task.maxFailures=1" in line
    assert line[-2:] == ["job.py", "folder"]
    assert command.variables["PYSPARK_PYTHON"] == sys.executable


def test_benchmark_environment_omits_variables_that_affect_candidates(monkeypatch, tmp_path):
    for name in ("SPARK_HOME", "HOPSML_PROFILE", "PYTHONDONTWRITEBYTECODE", "TF_CONFIG"):
        monkeypatch.setenv(name, "x")
    variables = environment({"TF_CONFIG": "mine"}, tmp_path)
    assert variables["TF_CONFIG"] == "mine"
    assert not {"SPARK_HOME", "HOPSML_PROFILE", "PYTHONDONTWRITEBYTECODE"} & set(variables)
    assert variables["TMPDIR"] == str(tmp_path)


DETACHED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(os.path.join(sys.argv[1], "child"), "w").write(str(child.pid))
time.sleep(600)
"""


def test_detached_processes_are_counted_and_ended(tmp_path):
    with Launched([Command([sys.executable, "-c", DETACHED, str(tmp_path)])], tmp_path) as launched:
        launched.wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), 10, "a child")
        child = int((tmp_path / "child").read_text())
        parent = launched.processes[0]
        parent.kill()
        parent.wait()
        assert launched.alive() == [child]
    wait_until(lambda: processes.has_ended(child), "the end of what has run away")


OWNER = """
import pathlib, sys, time
from benchmarks.launched import Command, Launched
folder = pathlib.Path(sys.argv[1])
launched = Launched([Command([sys.executable, "-c", "import time; time.sleep(600)"])], folder)
print(launched.processes[0].pid, flush=True)
time.sleep(600)
"""


def test_killed_benchmark_leaves_no_process(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert owner.stdout is not None
    with owner.stdout as lines:
        measured = os.pidfd_open(int(lines.readline()))
    owner.kill()
    owner.wait()
    import select

    try:
        assert select.select([measured], [], [], 10)[0], "the measured process lives on"
    finally:
        os.close(measured)


def test_failure_before_the_first_step_shows_the_output(tmp_path):
    command = Command([sys.executable, "-c", "print('no such cluster'); raise SystemExit(3)"])
    with (
        Launched([command], tmp_path) as launched,
        pytest.raises(RuntimeError, match=r"failed before the first step of 2 workers:\n.*no such cluster"),
    ):
        first_step.wait(launched, tmp_path, 2)


def test_wait_for_the_first_step_times_out(tmp_path):
    with (
        Launched([Command([sys.executable, "-c", "import time; time.sleep(600)"])], tmp_path) as launched,
        pytest.raises(RuntimeError, match=r"has not happened within 0\.1 s"),
    ):
        first_step.wait(launched, tmp_path, 1, timeout_s=0.1)


def test_first_step_time_is_that_of_the_last_worker(tmp_path):
    (tmp_path / "0.first").write_text("12.5")
    (tmp_path / "1.first").write_text("11.5")
    (tmp_path / "2.first.tmp").write_text("99")
    with Launched([], tmp_path) as launched:
        assert first_step.wait(launched, tmp_path, 2) == 12.5


TURN = """
import sys
from benchmarks.scripts import turns
turns.serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), lambda: 0.0)
"""


def test_turn_server_runs_groups_alternately(tmp_path):
    with TurnServer(tmp_path / "turns") as server:
        commands = [
            Command([sys.executable, "-c", TURN, str(server.path), way, str(rank)])
            for way in ("a", "b")
            for rank in range(2)
        ]
        with Launched(commands, tmp_path) as launched:
            launched.wait_until(lambda: server.accept() == 4, 10, "four workers")
            assert len(server.steps("a", 3)) == 3
            assert len(server.steps("b", 2)) == 2
            for way in ("a", "b"):
                server.steps(way, 0)
            assert [process.wait(END_S) for process in launched.processes] == [0] * 4


def test_step_commands_share_one_configuration(tmp_path):
    commands = step.commands(Path(sys.executable), tmp_path, tmp_path / "turns", 2)
    assert len(commands) == 2 * len(step.BY_HAND) + 1
    assert "local_slots: 6" in (tmp_path / "conf" / "local.yaml").read_text()
    assert all(MARK not in command.variables for command in commands)


def test_fit_commands_are_manual_processes_and_one_driver_per_hopsml_group(tmp_path):
    variants = ("bare", "bare-keras3", "alone", "hopsml", "hopsml-shared")
    commands = fits.commands(Path(sys.executable), tmp_path, tmp_path / "turns", 4, variants)
    assert [command.arguments[-1] for command in commands] == [*["bare"] * 4, *["bare-keras3"] * 4, *variants[2:]]
    assert commands[0].variables["TF_USE_LEGACY_KERAS"] == "1" and "TF_USE_LEGACY_KERAS" not in commands[4].variables
    assert set(variants) <= {*fits.BY_HAND, *hopsml_fits.WAYS}


def test_step_commands_include_a_variant_with_hopsml_variables_only(tmp_path):
    commands = step.commands(Path(sys.executable), tmp_path, tmp_path / "turns", 2)
    by_way = {command.arguments[-1]: command.variables for command in commands[:-1]}
    assert tuple(by_way) == step.BY_HAND
    assert set(by_way["bare"]) == set(by_way["bare-merged"]) == {"TF_CONFIG"}
    own = by_way["bare-variables"]
    assert own["OPENBLAS_NUM_THREADS"] == own["TF_GRPC_REUSE_PORT"] == "1"
    assert not {"PYTHONPATH", "HOPSML_FORK_SERVER"} & set(own)  # else it would be found and ended as one of ours


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lunch"], "invalid choice: 'lunch'"),
        (["step", "--peers", "horovod"], "--peers: horovod not known"),
        (["step", "--rounds", "0"], "--rounds 0: it must be 1 or more"),
    ],
)
def test_invalid_benchmark_arguments_are_refused(capsys, words: list[str], complaint: str):
    with pytest.raises(SystemExit):
        command_line.main(words)
    assert complaint in capsys.readouterr().err
