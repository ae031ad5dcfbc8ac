"""Tests of a client on macOS: modules, commands, notebook and submission without what only Linux has.

tests/helpers/macos simulates the platform in processes of their own; the server, Spark and the run are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "tests" / "helpers" / "macos"
PUBLIC = sorted(
    path.stem for path in (ROOT / "hopsml").iterdir() if path.suffix == ".py" and not path.stem.startswith("_")
)
FRAMEWORKS = """
import importlib, sys
assert sys.platform == "darwin"
for name in sys.argv[1:]:
    importlib.import_module(f"hopsml.{name}")
    print(name)
import hopsml
for name in dir(hopsml):
    getattr(hopsml, name)
"""
TRAIN = """
import hopsml

def train():
    return {"loss": 0.25}

if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, name="small", num_workers=1, progress=False)
    print(result.json())
"""
NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("%load_ext hopsml", "%runs"):
    shell.run_cell(cell).raise_error()
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def call(folder: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder with the modules of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOPSML_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=END_S
    )


@pytest.fixture
def on_macos(tmp_path: Path) -> Run:
    """Return a function that runs Python in an empty folder, on a machine that simulates macOS."""
    path = os.pathsep.join([str(SIMULATED), str(ROOT)])

    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return call(tmp_path, *arguments, **{"PYTHONPATH": path, **variables})

    return run


def test_simulated_platform_lacks_what_macos_lacks(on_macos: Run) -> None:
    """Guards the other tests: they show nothing if the simulation has no effect."""
    code = """
import ctypes, os, socket, sys
print(sys.platform, os.uname().machine, os.path.exists("/proc"), hasattr(os, "pidfd_open"))
abstract = lambda: socket.socket(socket.AF_UNIX).bind("\\0x")
for attempt in (os.fork, lambda: ctypes.CDLL(None).prctl, lambda: open("/proc/self/stat"), abstract):
    try:
        attempt()
    except (OSError, AttributeError) as error:
        print(type(error).__name__)
"""
    done = on_macos("-c", code)
    assert done.stdout.split() == [
        "darwin", "arm64", "False", "False", "OSError", "AttributeError", "FileNotFoundError", "FileNotFoundError",
    ], done.stderr  # fmt: skip


def test_public_modules_are_importable(on_macos: Run) -> None:
    assert {"client", "data", "distributed", "job", "service_records"} <= set(PUBLIC)
    packages = ["experiment", "hdfs", "maggy", "model", "notebook", "serving", "submission", "doctor", "service"]
    names = [name for name in PUBLIC if name not in ("tensorflow", "torch")]
    done = on_macos("-c", FRAMEWORKS, *names, *packages)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*names, *packages]


def test_commands_list_runs(on_macos: Run, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TRAIN)
    trained = call(tmp_path, "small.py")  # on Linux; the folder may be on a shared disk
    assert trained.returncode == 0, trained.stderr
    run_id = json.loads(trained.stdout.splitlines()[-1])["run_id"]
    helped = on_macos("-m", "hopsml", "--help")
    assert helped.returncode == 0 and "runs" in helped.stdout, helped.stderr
    for command in (["ls"], ["show", "small"], ["logs", run_id], ["metrics", run_id]):
        done = on_macos("-m", "hopsml", "runs", *command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "small" in on_macos("-m", "hopsml", "runs", "ls").stdout
    noted = on_macos("-c", NOTEBOOK)
    assert noted.returncode == 0 and "small" in noted.stdout, noted.stderr


def test_commands_and_client_use_a_job_service(on_macos: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: far\ntasks: {main: {command: [echo, from far]}}\n")
    state = {"HOPSML_SERVER_STATE": str(tmp_path / "state")}
    program = [sys.executable, "-m", "hopsml", "server", "--profile", "local"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOPSML_")}
    with subprocess.Popen(
        program, cwd=tmp_path, env={**kept, **state, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None and "?token=" in server.stdout.readline()
            submitted = on_macos("-m", "hopsml", "jobs", "submit", "job.yaml", "--wait", **state)
            listed = on_macos("-m", "hopsml", "jobs", "ls", "--all", **state)
            code = "from hopsml.client import Client; print(*(one.name for one in Client.of_environment().jobs()))"
            connected = on_macos("-c", code, **state)
        finally:
            server.terminate()
    assert submitted.returncode == 0 and "from far" in submitted.stdout, submitted.stdout + submitted.stderr
    assert listed.returncode == 0 and "far" in listed.stdout, listed.stdout + listed.stderr
    assert connected.returncode == 0 and "far" in connected.stdout, connected.stdout + connected.stderr


def test_workers_of_this_machine_are_refused_in_one_sentence(on_macos: Run, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TRAIN)
    done = on_macos("small.py")
    assert done.returncode == 1
    sentence = "workers need Linux, and this is macOS: submit to a cluster (hopsml submit"
    assert [sentence in line for line in done.stderr.splitlines() if "Linux" in line] == [True], done.stderr
    agent = on_macos("-c", "from hopsml.cluster.agent.agent import run_agent; print(run_agent(None, 0))")
    assert agent.stdout.startswith(f"could not join: {sentence}"), agent.stderr  # a Spark task of such a machine
    for command in (["server"], ["ui"]):
        refused = on_macos("-m", "hopsml", *command)
        assert refused.returncode == 1 and "needs Linux, and this is macOS" in refused.stderr, refused.stderr


@pytest.mark.spark
def test_job_is_submitted_by_spark_submit(on_macos: Run, tmp_path: Path) -> None:
    """The setting is hidden: on Linux it is passed in memory, here in a private file that is deleted."""
    settings = {"spark.ui.enabled": "false", "spark.hadoop.test.password": "secret-of-the-job"}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"master": "local[1]", "spark": settings}))
    (tmp_path / "job.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('password', spark.conf.get('spark.hadoop.test.password'), spark.range(3).count())\n"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    done = on_macos(
        "-m", "hopsml", "submit", "job.py", "--profile", "one", HOPSML_CONF_DIR=str(tmp_path), TMPDIR=str(folder)
    )
    assert done.returncode == 0 and "password secret-of-the-job 3" in done.stdout, done.stdout + done.stderr
    assert not list(folder.glob("hopsml-*"))
