"""Tests of recorded facts on process and machine against the system's values."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsml.core import processes
from hopsml.tracking import provenance

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]


def test_recorded_packages_equal_installed_distributions() -> None:
    known = {
        "-".join(filter(None, name.replace("_", "-").replace(".", "-").lower().split("-"))): version
        for name, version in ((found.metadata["Name"], found.version) for found in importlib.metadata.distributions())
    }
    found = provenance.packages()
    assert found["pytest"] == pytest.__version__
    assert found == {name: known[name] for name in sorted(known)}


def test_recording_packages_takes_milliseconds() -> None:
    provenance.packages()
    started = time.thread_time()  # others on this machine take nothing away of it
    provenance.packages()
    assert time.thread_time() - started < 0.1


def test_first_package_on_the_path_is_recorded(tmp_path: Path) -> None:
    for folder, version in (("one", "1.0"), ("two", "2.0")):
        (tmp_path / folder / f"Some_Package-{version}.dist-info").mkdir(parents=True)
    folders = [str(tmp_path / name) for name in ("nowhere", "one", "two")]
    assert provenance.packages(folders) == {"some-package": "1.0"}


@pytest.mark.parametrize(
    "entry", ["pyspark-4.3.0.egg-info", "pyspark-4.3.0-py3.11.egg-info", "pyspark-4.3.0.dist-info"]
)
def test_packages_of_source_archives_and_of_wheels_are_found(entry: str, tmp_path: Path) -> None:
    (tmp_path / entry).mkdir()
    (tmp_path / "mine.egg-info").mkdir()  # of a project under development, without a version
    assert provenance.packages([str(tmp_path)]) == {"pyspark": "4.3.0"}


def test_process_start_time_distinguishes_reused_pids() -> None:
    started = processes.start_time_of(os.getpid())
    assert started is not None and started == provenance.process_identity()["process_started"]
    child = subprocess.Popen(["sleep", "60"])
    assert (processes.start_time_of(child.pid) or 0) >= started
    child.kill()
    child.wait()
    assert processes.start_time_of(child.pid) is None


@pytest.mark.parametrize(("given", "expected"), [("0", "0"), ("7", "7"), (None, "random"), ("random", "random")])
def test_recorded_hash_seed_is_that_of_the_interpreter_start(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if given is not None:
        environment["PYTHONHASHSEED"] = given
    code = (
        "import os; os.environ['PYTHONHASHSEED'] = '99'\n"  # too late: it has no effect
        "from hopsml.tracking import provenance; print(provenance.hash_seed())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected


def test_recorded_environment_is_limited_to_relevant_variables_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    monkeypatch.setenv("HOPSML_SOME_TOKEN", "abc")
    monkeypatch.setenv("SHOPPING_LIST", "milk")
    monkeypatch.setenv("TF_CONFIG", "{}")
    found = provenance.environment()
    assert found["TF_DETERMINISTIC_OPS"] == "1"
    assert "abc" not in str(found) and "HOPSML_SOME_TOKEN" in found
    assert "SHOPPING_LIST" not in found and "TF_CONFIG" not in found


def test_recorded_hardware_matches_this_machine() -> None:
    import psutil

    found = provenance.hardware_facts()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["processor"]
