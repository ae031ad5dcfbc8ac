"""Tests of the installed wheel in an empty folder: profiles, the GPU script, a training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import hopsml
from tests.helpers import wheels
from tests.helpers.clock import END_S
from tools import build_native

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import hopsml

def train(lr):
    return {"loss": 1 / lr}

if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, name="far", args={"lr": 4}, num_workers=1, progress=False)
    print(result.json(library=hopsml.__file__))
"""

TRAIN_ON_SPARK = """
import hopsml

def train():
    import keras
    import numpy as np

    strategy = hopsml.tensorflow.strategy()
    x = np.arange(64, dtype="float32").reshape(64, 1) / 64
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    history = model.fit(x, 2 * x, batch_size=16, epochs=2, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    first, last = history.history["loss"]
    return {"learnt": last < first, "together": strategy.num_replicas_in_sync}

if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, name="far", num_workers=2, progress=False)
    print(result.json(library=hopsml.__file__, executors=len({worker["executor"] for worker in result.workers})))
"""
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the repository's package, including current libraries; an sdist is next to it."""
    return wheels.build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the wheel; everything else is borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    python = folder / "bin" / "python"
    venv.create(folder, with_pip=False)
    subprocess.run([*wheels.UV, "--offline", "pip", "install", "--no-deps", "--python", python, wheel], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    return folder


@pytest.fixture(scope="module")
def complete_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty environment with the wheel, two extras and their requirements in the locked versions."""
    folder = tmp_path_factory.mktemp("complete") / "venv"
    venv.create(folder, with_pip=False)
    wanted = ["--python", folder / "bin" / "python", "--constraint", ROOT / "requirements" / "dev.txt"]
    subprocess.run([*wheels.UV, "pip", "install", *wanted, f"{wheel}[spark,tensorflow-cpu]"], check=True)
    return folder


def caller(environment_folder: Path, folder: Path, timeout_s: float = 60, **variables: str) -> Call:
    """Return a function that runs a program of an environment in a folder."""
    unset = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "HADOOP_CONF_DIR", "HADOOP_HOME")
    environment = {
        name: value for name, value in os.environ.items() if name not in unset and not name.startswith("HOPSML_")
    }
    environment |= variables

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(environment_folder / "bin" / program), *arguments]
        return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)

    return run


@pytest.fixture
def call(installation: Path, tmp_path: Path) -> Call:
    """Run a program of the installation in an empty folder."""
    return caller(installation, tmp_path)


@pytest.mark.local
def test_installed_wheel_has_all_profiles(call: Call) -> None:
    done = call("hopsml", "profiles")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(p.stem for p in ROOT.glob("conf/*.yaml"))


@pytest.mark.local
def test_installed_commands_print_the_version(call: Call) -> None:
    (version,) = {call("hopsml", "--version").stdout, call("python", "-m", "hopsml", "--version").stdout}
    assert version == f"hopsml {hopsml.__version__}\n"


@pytest.mark.local
def test_wheel_contains_the_collective_library(call: Call, wheel: Path) -> None:
    done = call("python", "-c", "from hopsml.collective.library import load; print(load()._name)")
    assert "site-packages" in done.stdout, done.stderr
    assert wheel.name.startswith("hopsml_spark-") and "-py3-none-linux_" in wheel.name  # of this kind of machine


@pytest.mark.local
def test_sdist_contains_all_sources_of_a_wheel(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("native/collective", "native/server", "native/tensorflow", "conf"):
        assert {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()} <= held, folder
    assert {"tools/build_native.py", "setup.py", "pyproject.toml", "LICENSE", "README.md"} <= held


@pytest.mark.local
@pytest.mark.variant  # the packages of an extra are fetched
def test_folder_of_wheels_is_installed_without_an_index_as_the_page_says(wheel: Path, tmp_path: Path) -> None:
    section = (ROOT / "docs" / "first-steps.md").read_text().partition("### Install without a network")[2]
    gather, install = (part.partition("```")[0] for part in section.partition("###")[0].split("```sh\n")[1:])
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist")

    def run(command: str, environment: str, **variables: str) -> None:
        folder = tmp_path / environment
        venv.create(folder, with_pip=True)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PYTHONPATH")}
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=tmp_path,
            env={**kept, **variables, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    run(gather, "connected")
    shutil.rmtree(tmp_path / "dist")
    run(install, "offline", PIP_INDEX_URL="http://127.0.0.1:9/", PIP_CACHE_DIR=str(tmp_path / "empty"))
    (tmp_path / "train.py").write_text(TRAIN)
    done = caller(tmp_path / "offline", tmp_path, END_S)("python", "train.py")
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout.splitlines()[-1])["library"]).is_relative_to(tmp_path / "offline")
    assert (
        caller(tmp_path / "offline", tmp_path, END_S)("python", "-c", "import optuna").returncode == 0
    )  # of the extra


@pytest.mark.local
def test_submission_ships_the_installed_gpu_script(call: Call, tmp_path: Path, installation: Path) -> None:
    (tmp_path / "job.py").write_text("import hopsml\n")
    done = call("hopsml", "submit", "job.py", "--profile", "yarn", "--dry-run")
    assert done.returncode == 0, done.stderr
    shipped = next(word for word in shlex.split(done.stdout) if word.startswith("spark.yarn.dist.files="))
    script = Path(shipped.partition("=")[2])
    assert installation in script.parents
    assert script.read_bytes() == (ROOT / "conf" / "discover_gpus.py").read_bytes()
    assert os.access(script, os.X_OK)  # on Spark's standalone clusters it is run where it lies


@pytest.mark.local
def test_script_trains_with_the_installed_wheel(call: Call, tmp_path: Path, installation: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = call("python", "train.py")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert (output["loss"], output["workers"]) == (0.25, 1)
    assert Path(output["library"]).is_relative_to(installation)
    assert Path(output["run_dir"].removeprefix("file://")).is_relative_to(tmp_path / ".hopsml")


@pytest.mark.local
def test_install_command_names_the_wheel_of_this_installation(call: Call) -> None:
    code = "from hopsml.core import extras; print(extras.install_command('airflow'))"
    done = call("python", "-c", code)
    assert done.returncode == 0, done.stderr
    wheel = done.stdout.strip().removeprefix("pip install '").removesuffix("[airflow]'")
    assert wheel.endswith(".whl") and Path(wheel).is_file()


@pytest.mark.local
@pytest.mark.variant
def test_wheel_of_a_new_clone_has_the_platform_tag_and_its_libraries(tmp_path: Path) -> None:
    """Libraries are compiled while the wheel is built from the sdist; here without optimization, to save time."""
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    source = wheels.copy_sources(tmp_path / "source", "lib")
    built = ["build", "--no-build-isolation", "--python", sys.executable, "--out-dir", tmp_path, source]
    subprocess.run(
        [*wheels.UV, "--offline", *built], check=True, env={**os.environ, "CXX": str(compiler), "TMPDIR": str(tmp_path)}
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stem.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}")
    libraries = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
    own = {"libhopsml_collective.so", "libhopsml_server.so", "libhopsml_rows.so"}
    assert {*own, f"libhopsml_tensorflow-{build_native.minor(build_native.tensorflow_version() or '')}.so"} <= libraries


@pytest.mark.local
def test_wheel_contains_licence_and_readme(installation: Path) -> None:
    (facts,) = installation.rglob("hopsml_spark-*.dist-info")
    assert (facts / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    metadata = (facts / "METADATA").read_text()
    assert "License-Expression: Apache-2.0" in metadata
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[2] in metadata


@pytest.mark.local
def test_notebook_extension_loads_and_lists_runs(call: Call) -> None:
    code = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("%load_ext hopsml", "%runs"):
    shell.run_cell(cell).raise_error()
"""
    done = call("python", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.variant
@pytest.mark.local
def test_installed_job_service_runs_a_job(installation: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: far\ntasks: {main: {function: train.py:train, framework: distributed}}\n")
    (tmp_path / "train.py").write_text("def train():\n    print('far away')\n    return {'x': 1.0}\n")
    state = {"HOPSML_SERVER_STATE": str(tmp_path / "state")}
    program = [str(installation / "bin" / "hopsml"), "server", "--profile", "local"]
    kept = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("HOPSML_")
    }
    with subprocess.Popen(program, cwd=tmp_path, env={**kept, **state}, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and "?token=" in server.stdout.readline()
            done = caller(installation, tmp_path, **state)("hopsml", "job", "submit", "job.yaml", "--wait")
        finally:
            server.terminate()
    assert done.returncode == 0 and "far away" in done.stdout, done.stdout + done.stderr
    assert server.returncode == 0


@pytest.mark.local
def test_airflow_entry_point_lists_the_operators(call: Call) -> None:
    found = "importlib.metadata.entry_points(group='apache_airflow_provider')"
    done = call("python", "-c", f"import importlib.metadata; print([one.load()()['operators'] for one in {found}])")
    assert "hopsml.airflow.operators" in done.stdout, done.stderr


@pytest.mark.local
def test_airflow_plugin_of_the_predecessor_is_importable(call: Call) -> None:
    done = call("python", "-c", "import hopsworks_plugin.operators, hopsworks_plugin.sensors as s; print(s.__file__)")
    assert done.returncode == 0 and "/venv/" in done.stdout, done.stderr


@pytest.mark.local
def test_foreign_conf_folder_in_site_packages_is_ignored(call: Call, installation: Path) -> None:
    site = Path(sysconfig.get_path("purelib", vars={"base": str(installation)}))
    (site / "conf").mkdir()
    (site / "conf" / "theirs.yaml").write_text("database: postgres\n")
    done = call("hopsml", "profiles")
    shutil.rmtree(site / "conf")
    assert done.returncode == 0 and "theirs" not in done.stdout, done.stderr


@pytest.mark.spark
@pytest.mark.variant  # most of its minute is the installation; tests/integration/spark test the rest
def test_fresh_environment_trains_on_two_spark_executors(complete_environment: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN_ON_SPARK)
    two = {"HOPSML_PROFILE": "local-cluster", "HOPSML_SPARK_MASTER": "local-cluster[2,1,1024]"}  # a slot each
    call = caller(complete_environment, tmp_path, timeout_s=200, **two)
    done = call("python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert (output["workers"], output["together"], output["executors"]) == (2, 2, 2)
    assert output["learnt"] and Path(output["library"]).is_relative_to(complete_environment)
    listed = call("hopsml", "profiles")
    assert {line.split()[0] for line in listed.stdout.splitlines()} == {path.stem for path in ROOT.glob("conf/*.yaml")}
    dry = caller(complete_environment, tmp_path)(
        "hopsml", "submit", "train.py", "--profile", "yarn", "--num-workers", "8", "--dry-run"
    )
    command = shlex.split(dry.stdout)
    assert Path(command[0]).is_relative_to(complete_environment) and command[-1] == "train.py", dry.stderr
    assert command[1:3] == ["--master", "yarn"] and "spark.executor.instances=8" in command
    checks = json.loads(call("hopsml", "doctor", "--profile", "local-cluster", "--json").stdout)["checks"]
    status = {one["name"]: one["status"] for one in checks}
    assert {status[name] for name in ("python", "java", "spark", "frameworks", "profile")} == {"ok"}, checks
