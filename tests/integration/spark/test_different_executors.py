"""Tests with executors that differ from the driver: another Python, another numpy, no collective library."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import CoordinatorLost, HopsmlError
from hopsml.experiment import applications
from tests.helpers import wheels
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import check_run_dir, submit
from tests.integration.spark.conftest import ROOT
from tools.version_matrix import Unavailable, interpreter

pytestmark = pytest.mark.spark

VERSION = ".".join(map(str, sys.version_info[:2]))


class Trap:
    """Object that cannot be unpickled: a run with it fails differently if its function reaches an executor."""

    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('the function was unpickled')",)


def with_trap(trap: Trap = Trap()) -> None:  # noqa: B008 a default is serialized with the function
    del trap


@pytest.mark.parametrize("python", ["3.12", pytest.param("3.10", marks=pytest.mark.variant)])
def test_other_python_of_executors_is_named_before_the_function_is_unpickled(
    spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    try:
        monkeypatch.setattr(spark, "pythonExec", str(interpreter(python)))
    except Unavailable as reason:
        pytest.skip(str(reason))
    run = submit(with_trap)
    with pytest.raises(CoordinatorLost) as caught:
        run.result(END_S)
    assert f"the executors have Python {python}, the driver has Python {VERSION}" in str(caught.value)
    assert "set PYSPARK_PYTHON" in str(caught.value) and "unpickled" not in str(caught.value)
    check_run_dir(run, "FAILED", ranks=())


@pytest.mark.variant  # it installs numpy
def test_other_numpy_major_of_executors_is_named_before_the_function_is_unpickled(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older"
    install = [*wheels.UV, "pip", "install", "--python", sys.executable, "--no-deps", "--target", older]
    subprocess.run([*install, "numpy==1.26.4"], check=True)
    monkeypatch.setitem(spark.environment, "PYTHONPATH", f"{older}:{ROOT}")  # as spark.executorEnv.PYTHONPATH does
    run = submit(with_trap)
    with pytest.raises(CoordinatorLost) as caught:
        run.result(END_S)
    assert "the executors have numpy 1, the driver has numpy 2" in str(caught.value)
    assert "unpickled" not in str(caught.value)
    check_run_dir(run, "FAILED", ranks=())


def test_executor_without_the_collective_library_is_named_with_file_and_remedy(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "hopsml", tmp_path / "hopsml", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    monkeypatch.setitem(spark.environment, "PYTHONPATH", f"{tmp_path}:{ROOT}")

    coordinator = applications.get_or_start("local-cluster").coordinator
    monkeypatch.setattr(
        coordinator, "zygote", None
    )  # as on another machine: workers fork from the executor's own process
    monkeypatch.setattr(coordinator, "sys_path", ())

    def train() -> float:
        import numpy as np

        import hopsml

        return float(hopsml.all_reduce(np.ones(3), "sum")[0])

    with pytest.raises(HopsmlError) as caught:
        experiment.collective_all_reduce(train, num_workers=2, progress=False)
    library = tmp_path / "hopsml" / "collective" / "lib" / "libhopsml_collective.so"
    assert f"cannot be loaded on {socket.gethostname()}: {library}" in str(caught.value)
    assert "install hopsml's wheel for Linux" in str(caught.value)
