"""hopsml as a wheel installs it, in an empty folder far from the repository: profiles, the GPU script, a training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("hopsml", "conf", "setup.py", "pyproject.toml", "README.md")
TRAIN = """
import hopsml

def train(lr):
    return {"loss": 1 / lr}

if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, name="far", args={"lr": 4}, num_workers=1, progress=False)
    print(result.json(library=hopsml.__file__))
"""

pytestmark = pytest.mark.local
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it, which was built of the sdist; everything else is borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        whole = ROOT / name
        if whole.is_dir():
            shutil.copytree(whole, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(whole, source / name)
    uv = [str(Path(sys.executable).with_name("uv")), "--quiet", "--offline"]
    python = folder / "venv" / "bin" / "python"
    built = ["build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder / "dist", source]
    subprocess.run([*uv, *built], check=True)
    shutil.rmtree(source)
    venv.create(folder / "venv", with_pip=False)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*uv, "pip", "install", "--no-deps", "--python", python, wheel], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth files nobody reads
    return folder / "venv"


@pytest.fixture
def call(installation: Path, tmp_path: Path) -> Call:
    """Run a program of the installation in an empty folder; what it prints."""
    unset = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "HADOOP_CONF_DIR", "HADOOP_HOME")
    environment = {
        name: value for name, value in os.environ.items() if name not in unset and not name.startswith("HOPSML_")
    }

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(installation / "bin" / program), *arguments]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_all_profiles_are_there(call: Call) -> None:
    done = call("hopsml", "profiles")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(p.stem for p in ROOT.glob("conf/*.yaml"))


def test_a_submission_ships_the_gpu_script(call: Call, tmp_path: Path, installation: Path) -> None:
    (tmp_path / "job.py").write_text("import hopsml\n")
    done = call("hopsml", "submit", "job.py", "--profile", "yarn", "--dry-run")
    assert done.returncode == 0, done.stderr
    shipped = next(word for word in shlex.split(done.stdout) if word.startswith("spark.yarn.dist.files="))
    script = Path(shipped.partition("=")[2])
    assert installation in script.parents
    assert script.read_bytes() == (ROOT / "conf" / "discover_gpus.py").read_bytes()
    assert os.access(script, os.X_OK)  # on Spark's standalone clusters it is run where it lies


def test_a_script_trains(call: Call, tmp_path: Path, installation: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = call("python", "train.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["loss"], told["workers"]) == (0.25, 1)
    assert Path(told["library"]).is_relative_to(installation)
    assert Path(told["run_dir"].removeprefix("file://")).is_relative_to(tmp_path / ".hopsml")


def test_what_is_missing_is_installed_from_the_wheel_that_this_came_from(call: Call) -> None:
    code = "from hopsml import extras; print(extras.install('airflow'))"
    done = call("python", "-c", code)
    assert done.returncode == 0, done.stderr
    wheel = done.stdout.strip().removeprefix("pip install '").removesuffix("[airflow]'")
    assert wheel.endswith(".whl") and Path(wheel).is_file()


def test_dags_for_the_predecessor_find_its_plugin(call: Call) -> None:
    done = call("python", "-c", "import hopsworks_plugin.operators, hopsworks_plugin.sensors as s; print(s.__file__)")
    assert done.returncode == 0 and "/venv/" in done.stdout, done.stderr


def test_other_peoples_conf_beside_the_package_is_left_alone(call: Call, installation: Path) -> None:
    site = Path(sysconfig.get_path("purelib", vars={"base": str(installation)}))
    (site / "conf").mkdir()
    (site / "conf" / "theirs.yaml").write_text("database: postgres\n")
    done = call("hopsml", "profiles")
    shutil.rmtree(site / "conf")
    assert done.returncode == 0 and "theirs" not in done.stdout, done.stderr
