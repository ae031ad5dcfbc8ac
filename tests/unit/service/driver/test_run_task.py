"""Tests of a task's driver without Spark: the rendered command does what the job file states, in a copy of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import IO

import pytest

from hopsml.core import profiles
from hopsml.errors import ArgumentError, PathExists
from hopsml.service import spec
from hopsml.service.driver import run_task
from hopsml.service.engine.local import end_reason_line
from hopsml.service.render import spark_submit
from hopsml.training.discovery import ListeningWorker, TaskPorts
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_only_files_created_or_changed_by_the_task_remain_in_its_folder(tmp_path: Path) -> None:
    code, own = tmp_path / "code", tmp_path / "own"
    code.mkdir()
    own.mkdir()
    (own / "mine").write_text("mine")
    for name in ("run.sh", "data/words", "data/deep/more", "deep/only", "__pycache__/x.pyc", "changed"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "run.sh").chmod(0o700)
    before = files(code)
    with run_task.temporary_copy(code, own):
        assert (own / "run.sh").stat().st_mode & 0o100 and (own / "data/deep/more").read_text() == "data/deep/more"
        assert not (own / "__pycache__").exists()
        (own / "data" / "made").write_text("made")
        (own / "changed").write_text("CHANGED")
        (own / "data" / "words").unlink()
    assert files(own) == {"mine": "mine", "data/made": "made", "changed": "CHANGED"} and files(code) == before
    assert sorted(path.name for path in own.iterdir()) == ["changed", "data", "mine"]


def test_results_of_a_failed_command_remain(tmp_path: Path) -> None:
    for name in ("code", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "run.sh").touch()

    def fail() -> None:
        with run_task.temporary_copy(tmp_path / "code", tmp_path / "own"):
            (tmp_path / "own" / "made").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(files(tmp_path / "own")) == ["made"]


JOB = """
name: small
dataset: file:///data
tasks:
  train:
    count: 2
    function: code/train.py:main
    framework: distributed
    arguments: {out: OUT}
    env: {LEVEL: "3"}
  evaluate:
    command: [python, code/evaluate.py, OUT]
    resources: {memory: 1g}
    ports: [rpc]
  whole:
    script: code/whole.py
    arguments: {out: OUT, epochs: 2}
"""
TRAIN = """
import os
import helper

def main(out):
    import hopsml
    told = [os.environ["HOPSML_DATASET"], os.environ["LEVEL"], hopsml.job.addresses("evaluate"), helper.NAME]
    with open(out, "a") as file:
        file.write(f"{told}\\n")
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a job with one task of each kind, and its code in a folder of the workspace."""
    monkeypatch.setenv("HOPSML_PROJECT_URL", (tmp_path / "project").as_uri())
    monkeypatch.setenv("HOPSML_JOB_FOLDER", (tmp_path / "1").as_uri())
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "helper.py").write_text("NAME = 'helped'\n")
    (code / "train.py").write_text(TRAIN)
    (code / "evaluate.py").write_text("import sys\nimport helper\nopen(sys.argv[1], 'w').write(helper.NAME)\n")
    (code / "whole.py").write_text(
        "import helper, sys\nopen(sys.argv[2], 'w').write(str([sys.argv[1:], helper.NAME]))\n"
    )
    text = JOB.replace("OUT", str(tmp_path / "out"))
    (tmp_path / "job.yaml").write_text(text)
    return tmp_path / "job.yaml"


def driver(
    job_file: Path, name: str, before: tuple[str, ...] = (), stdout: int | IO[bytes] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run a task's driver to its end, with one output stream as in a log; ``before`` precedes its command."""
    planned = spark_submit.submission_plans(spec.load(job_file), job_file, profiles.load("local"))[name]
    command = [*before, *planned.command]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.STDOUT, text=True, timeout=END_S)


def run(job_file: Path, name: str) -> str:
    """Run a task and return what its workers have written."""
    done = driver(job_file, name)
    assert done.returncode == 0, done.stdout
    return (job_file.parent / "out").read_text()


@pytest.mark.local
def test_function_task_runs_on_every_worker(job_file: Path) -> None:
    elsewhere = TaskPorts("evaluate", ("rpc",), (job_file.parent / "1").as_uri(), 1)
    elsewhere.write_addresses(ListeningWorker(1, 0, 0, 1), "node2", {"rpc": 1})
    assert run(job_file, "train").splitlines() == ["['file:///data', '3', ['node2:1'], 'helped']"] * 2


@pytest.mark.local
def test_command_task_finds_the_files_it_names(job_file: Path) -> None:
    assert run(job_file, "evaluate") == "helped"


def of_two_workers(folder: Path, source: str, framework: str) -> subprocess.CompletedProcess[str]:
    """Run the driver of a task whose command runs a program on two workers to its end."""
    (folder / "code" / "group.py").write_text(source)
    (folder / "two.yaml").write_text(
        f"name: two\ntasks: {{main: {{command: [python, code/group.py, {folder}], count: 2, framework: {framework}}}}}\n"
    )
    return driver(folder / "two.yaml", "main")


WITH_TORCH = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(x)
open(f"{sys.argv[1]}/rank-{dist.get_rank()}", "w").write(str(x.item()))
dist.destroy_process_group()  # without it a thread of gloo may abort the process as it exits
"""
WITH_TENSORFLOW = """
import sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
total = strategy.reduce("sum", strategy.run(lambda: tf.constant(resolver.task_id + 1.0)), axis=None)
open(f"{sys.argv[1]}/rank-{resolver.task_id}", "w").write(str(float(total)))
"""


@pytest.mark.torch
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.variant)])
def test_command_on_two_workers_forms_a_torch_group(job_file: Path, framework: str) -> None:
    done = of_two_workers(job_file.parent, WITH_TORCH, framework)
    assert done.returncode == 0, done.stdout
    assert [(job_file.parent / f"rank-{rank}").read_text() for rank in range(2)] == ["3.0", "3.0"]


@pytest.mark.tensorflow
def test_command_on_two_workers_forms_a_tensorflow_group(job_file: Path) -> None:
    done = of_two_workers(job_file.parent, WITH_TENSORFLOW, "tensorflow")
    assert done.returncode == 0, done.stdout
    assert [(job_file.parent / f"rank-{rank}").read_text() for rank in range(2)] == ["3.0", "3.0"]


@pytest.mark.fast
def test_jax_command_on_several_workers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: two\ntasks: {main: {command: [python, train.py], count: 2, framework: jax}}\n")
    with pytest.raises(ArgumentError, match="cannot form JAX's group by itself"):
        spec.load(path)


@pytest.mark.fast
def test_script_task_gets_its_arguments_as_options(job_file: Path) -> None:
    written = run(job_file, "whole")
    assert written == str([["--out", str(job_file.parent / "out"), "--epochs", "2"], "helped"])


@pytest.mark.local
def test_last_output_line_of_a_failed_task_names_the_failed_rank(job_file: Path) -> None:
    (job_file.parent / "code" / "evaluate.py").write_text("raise SystemExit(7)\n")
    done = driver(job_file, "evaluate")
    assert done.returncode == 1 and done.stderr is None
    last_line = end_reason_line(done.stdout)
    assert re.fullmatch(
        r"run \S+: rank 0 of 1 on host \S+ failed first: .*returned non-zero exit status 7\.", last_line
    )


@pytest.mark.fast
def test_full_disk_drops_output_lines_but_does_not_end_the_driver(job_file: Path, tmp_path: Path) -> None:
    script = job_file.parent / "code" / "whole.py"
    script.write_text("import sys\nprint('to be lost', flush=True)\n" + script.read_text() + "print('this, too')\n")
    room = 1 << 20
    with open(tmp_path / "output.log", "wb") as output:
        output.write(b"." * room)
        output.flush()
        done = driver(job_file, "whole", ("prlimit", f"--fsize={room}"), stdout=output)
    assert done.returncode == 0 and (tmp_path / "out").exists()
    assert (tmp_path / "output.log").read_bytes() == b"." * room


@pytest.mark.fast
def test_driver_without_its_files_names_what_is_missing(job_file: Path) -> None:
    with pytest.raises(ArgumentError, match="job small has no task 'tarin'; there are: train, evaluate, whole"):
        run_task.run(str(job_file), "tarin")
    with pytest.raises(ArgumentError, match="it has not come with the driver"):
        run_task.run("no.yaml", "train")
    (job_file.parent / "code" / "train.py").write_text("main = 3\n")
    with pytest.raises(ArgumentError, match="has no function main"):
        run_task.run(str(job_file), "train")


@pytest.mark.fast
def test_script_with_more_workers_than_its_job_has_slots_names_the_options_of_the_job(job_file: Path) -> None:
    (job_file.parent / "code" / "whole.py").write_text(
        "from hopsml import experiment\nexperiment.collective_all_reduce(lambda: 1, num_workers=2)\n"
    )
    done = driver(job_file, "whole", ("env", "HOPSML_JOB_TAG=digits-1.main.1"))
    last_line = end_reason_line(done.stdout)
    assert "num_workers=2, but this cluster has at most 1 slot (" in last_line
    assert "`hopsml jobs run --workers 2`" in last_line and "`count: 2`" in last_line and "raise that" not in last_line


@pytest.mark.local
def test_error_of_a_command_does_not_repeat_the_whole_script(job_file: Path) -> None:
    lines = "\n".join(f"        echo line {number} of a long script" for number in range(40))
    command = f"    command:\n    - bash\n    - -c\n    - |\n{lines}\n        exit 3\n"
    job_file.write_text(f"name: a\nworkspace: code\ntasks:\n  main:\n{command}")
    last_line = end_reason_line(driver(job_file, "main").stdout)
    assert "Command 'bash -c echo line 0 of a long script" in last_line and last_line.endswith("exit status 3.")
    assert "line 3 of" not in last_line


@pytest.mark.local
def test_aborted_command_is_explained(job_file: Path) -> None:
    (job_file.parent / "aborts.yaml").write_text(
        "name: aborts\ntasks: {main: {command: [sh, -c, 'kill -ABRT $$'], framework: distributed}}\n"
    )
    done = driver(job_file.parent / "aborts.yaml", "main")
    assert done.returncode != 0 and "SIGABRT" in done.stdout and "destroy_process_group" in done.stdout, done.stdout


@pytest.mark.fast
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("raise RuntimeError('no such table: clicks')", "RuntimeError: no such table: clicks"),
        ("raise ValueError('first\\n  second\\nthird')", "ValueError: first"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_last_output_line_of_a_failed_script_is_its_error(job_file: Path, line: str, cause: str) -> None:
    (job_file.parent / "code" / "whole.py").write_text(f"import hopsml\n{line}\n")
    done = driver(job_file, "whole")
    assert done.returncode == 1 and end_reason_line(done.stdout) == cause


@pytest.mark.local
def test_cause_of_a_failed_command_is_the_error_that_it_wrote(job_file: Path) -> None:
    source = "try:\n    {}['x']\nexcept KeyError as e:\n    raise ValueError('column price is missing') from e\n"
    (job_file.parent / "code" / "bad.py").write_text(source)
    (job_file.parent / "bad.yaml").write_text("name: bad\ntasks: {main: {command: [python, code/bad.py]}}\n")
    done = driver(job_file.parent / "bad.yaml", "main")
    reason = "ValueError: column price is missing (Command 'python code/bad.py' returned non-zero exit status 1)"
    assert end_reason_line(done.stdout).endswith(f" failed first: {reason}"), done.stdout
    assert done.stdout.count("Traceback (most recent call last):") == done.stdout.count("KeyError: 'x'") + 1 == 2
    assert "run_task.py" not in done.stdout and "traceback with hopsml's own frames" not in done.stdout


@pytest.mark.local
def test_failed_command_without_a_traceback_names_its_last_line(job_file: Path) -> None:
    (job_file.parent / "sh.yaml").write_text(
        "name: sh\ntasks: {main: {command: [sh, -c, 'echo no such table >&2; sleep 1000 & exit 3']}}\n"
    )
    done = driver(job_file.parent / "sh.yaml", "main")
    assert re.search(
        r"no such table \(Command 'sh -c .*' returned non-zero exit status 3\)$", end_reason_line(done.stdout)
    )


@pytest.mark.local
def test_trials_of_a_search_form_the_group_of_the_named_framework(job_file: Path) -> None:
    (job_file.parent / "code" / "trial.py").write_text(
        "def main(lr):\n    from hopsml.cluster.worker.context import current\n"
        "    size, framework = current().world_size, current().spec.framework\n"
        "    print('trial of', size, framework, flush=True)\n    return lr * size\n"
    )
    text = (
        "name: groups\ntasks: {main: {function: code/trial.py:main, count: 2}}\n"
        "search: {space: {lr: [DISCRETE, [1.0, 0.5]]}, searcher: grid, num_trials: 2, workers_per_trial: 2"
    )
    for framework, best in (("", "2.0"), (", framework: distributed", "2.0")):
        job_file.write_text(f"{text}{framework}}}\n")
        done = driver(job_file, "main")
        assert done.returncode == 0 and best in done.stdout, done.stdout
        project = job_file.parent / "project" / "Experiments"
        (run,) = [path for path in project.iterdir() if path.is_dir()]
        logs = "".join(path.read_text() for path in run.rglob("*rank*.log"))
        assert logs.count("trial of 2") == 4 and ("trial of 2 none" in logs) == bool(framework), logs
        shutil.rmtree(project)


def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> Path:
    """Return the folder that the tasks of a job share, in a project that all users may read."""
    (tmp_path / "project").mkdir(exist_ok=True)
    (tmp_path / "project").chmod(0o755)
    monkeypatch.setenv("HOPSML_JOB_WORKSPACE", f"file://{tmp_path}/project/Workspaces/small-1")
    job = spec.loads(f"name: small\ncode: .\nworkspace: {named}\ntasks: {{train: {{script: train.py}}}}\n")
    return Path(run_task._shared_folder(job))


def test_folder_that_tasks_share_is_private_like_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_folder(tmp_path, monkeypatch, "true")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert shared_folder(tmp_path, monkeypatch, "true") == folder, "as another task or try"


def test_folder_that_another_user_made_first_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    folder = tmp_path / "project" / "Workspaces" / "small-1"
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PathExists, match="belongs to another user"):
        shared_folder(tmp_path, monkeypatch, "true")
    assert shared_folder(tmp_path, monkeypatch, str(folder)) == folder, "the job names it"
