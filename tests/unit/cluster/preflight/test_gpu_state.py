"""Tests of the GPU measurements, through the real bindings of NVML and a library with given values in place of a driver."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hopsml.cluster.agent import gpu_state
from hopsml.cluster.shared.protocol import GpuFacts
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast
SOURCE = Path(__file__).resolve().parents[3] / "helpers" / "nvml_library.c"
GOOD = {
    "driver": "550.54.15", "cuda": 12040, "ecc": 0, "temperature": 41, "throttle": 0x1, "persistence": 1, "rows_pending": 0,
    "rows_failed": 0, "bus": "00000000:18:00.0", "processes": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiled library."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler on this host")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, timeout=END_S)
    return folder


def facts(library: Path, folder: Path, index: int = 0, log: str = "", **values: object) -> tuple[GpuFacts, ...]:
    """Return what ``gpu_facts`` finds with these values of NVML; None leaves a value out."""
    given = {**GOOD, **values}
    (folder / "values").write_text("".join(f"{name} {value}\n" for name, value in given.items() if value is not None))
    (folder / "kmsg").write_text(log)
    code = (
        "import msgspec; from hopsml.cluster.agent.gpu_state import gpu_facts;"
        f"print([msgspec.structs.asdict(one) for one in gpu_facts([{index}], {str(folder / 'kmsg')!r})])"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_VALUES": str(folder / "values")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=END_S, check=True
    )
    return tuple(GpuFacts(**one) for one in ast.literal_eval(done.stdout))


def test_state_of_a_gpu_is_read_from_nvml(library: Path, tmp_path: Path) -> None:
    (gpu,) = facts(library, tmp_path)
    assert gpu == GpuFacts(0, 0, 41, 0, "550.54.15", 12040, (), False, False, True, ())
    changed = {"ecc": 2, "throttle": 0x48, "persistence": 0, "rows_pending": 1, "rows_failed": 1, "processes": 3}
    (gpu,) = facts(library, tmp_path, **changed)
    assert (gpu.ecc_errors, gpu.processes, gpu.rows_pending, gpu.rows_failed, gpu.persistent) == (
        2,
        3,
        True,
        True,
        False,
    )
    assert gpu.throttling == ("hardware slowdown", "hardware thermal slowdown")


def test_values_that_a_gpu_does_not_have_are_left_out(library: Path, tmp_path: Path) -> None:
    (gpu,) = facts(library, tmp_path, **dict.fromkeys(GOOD))
    assert gpu == GpuFacts(0, 0, 0, 0)
    assert facts(library, tmp_path, index=7) == ()  # no GPU of the host has this index


def test_xid_errors_of_broken_hardware_are_attributed_to_their_gpu(library: Path, tmp_path: Path) -> None:
    log = (
        "6,1,10,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
        "3,2,11,-;NVRM: Xid (PCI:0000:18:00): 13, pid=7, name=python, Graphics SM Warp Exception\n"
        "3,3,12,-;NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "3,4,13,-;NVRM: Xid (PCI:0000:18:00): 79, pid=9, GPU has fallen off the bus.\n"
        "3,5,14,-;NVRM: Xid (PCI:0000:3B:00): 48, pid=9, DBE (double bit error)\n"
        "3,6,15,-;NVRM: Xid (PCI:0000:18:00.0): 94, pid=9, Contained memory error\n"
        "6,7,16,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/NVRM: Xid (PCI:0000:18:00): 48, x\n"
        " SUBSYSTEM=;NVRM: Xid (PCI:0000:18:00): 48, x\n"
    )
    (gpu,) = facts(library, tmp_path, log=log)
    assert gpu.xids == (79, 94)  # not 13, which a program causes, those of another GPU, and names


def test_kernel_log_that_may_not_be_read_has_no_records(tmp_path: Path) -> None:
    assert list(gpu_state.kernel_records(str(tmp_path / "absent"))) == []
    assert list(gpu_state.kernel_records(str(tmp_path))) == []  # a folder
    for record in gpu_state.kernel_records("/dev/kmsg"):  # ends at the newest record
        assert isinstance(record, str)


@pytest.mark.parametrize(
    ("installed", "major"),
    [
        ({}, 0),
        ({"nvidia-cuda-runtime-cu12": "12.8.90"}, 12),
        ({"nvidia-cuda-runtime-cu11": "11.8.89", "nvidia-cuda-runtime": "13.0.48"}, 13),
    ],
)
def test_needed_cuda_follows_from_the_installed_runtime(
    installed: dict[str, str], major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(gpu_state.metadata, "version", version)
    assert gpu_state.needed_cuda() == major
