"""Tests of the number of GPUs of a worker."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hopsml.devices as devices
from hopsml.cluster.shared import gpus
from hopsml.cluster.worker import context
from hopsml.cluster.worker.context import WorkerContext

pytestmark = pytest.mark.fast


@pytest.fixture
def in_worker() -> Iterator[None]:
    here = Path()
    context.set_current(
        WorkerContext("r", 0, 0, 1, 0, "chief", "file:///r", here, here, here, here, gpu_indices=(4, 2))
    )
    yield
    context.set_current(None)


def nvidia_smi(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


needs_no_gpu = pytest.mark.skipif(gpus._gpus_by_nvml() is not None, reason="counts the GPUs of a host without any")


@pytest.mark.usefixtures("in_worker")
def test_get_num_gpus_counts_the_gpus_of_the_worker() -> None:
    assert devices.get_num_gpus() == 2


@needs_no_gpu
def test_get_num_gpus_is_zero_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.get_num_gpus() == 0


@needs_no_gpu
def test_get_num_gpus_counts_the_visible_gpus_outside_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, 'echo "0, GPU-aa, 0:1:0.0"\necho "1, GPU-bb, 0:2:0.0"\n', monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.get_num_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices.get_num_gpus() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.get_num_gpus() == 0


@needs_no_gpu
def test_broken_gpu_driver_is_logged_and_counts_as_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An index beyond every integer represents any invalid output of a driver."""
    nvidia_smi(tmp_path, 'echo "' + "9" * 5000 + ', GPU-aa, x"\n', monkeypatch)
    assert devices.get_num_gpus() == 0
    assert "cannot be counted" in caplog.text


def test_missing_name_of_the_predecessor_is_refused_with_its_replacement() -> None:
    with pytest.raises(AttributeError, match=r"devices.get_gpu_info does not exist; use hopsml.devices.get_num_gpus"):
        devices.get_gpu_info  # noqa: B018
    with pytest.raises(ImportError, match=r"get_num_gpus\(\)"):
        importlib.import_module("hopsml.devices.get_gpu_info")
    with pytest.raises(AttributeError, match="did you mean get_num_gpus"):
        devices.get_num_gpu  # noqa: B018
