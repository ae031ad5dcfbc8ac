"""Tests that conf/discover_gpus.py never assigns one GPU to two live executors of a host."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.clock import END_S
from tools.hadoop.spark import DISCOVERY_SCRIPT

pytestmark = pytest.mark.local


def load_script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("discover_gpus", DISCOVERY_SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()

# Simulates an executor's JVM: runs the discovery script once per line, as a child process.
EXECUTOR = f"""
import subprocess, sys
for line in sys.stdin:
    done = subprocess.run([{str(DISCOVERY_SCRIPT)!r}], capture_output=True, text=True)
    print(done.returncode, (done.stdout + done.stderr).strip(), flush=True)
"""


class Executor:
    """A process that asks for GPUs."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", EXECUTOR],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start_script(self) -> None:
        """Start the script; ``answer`` returns its result."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        """Return the addresses, or raise AssertionError with the script's message if it failed."""
        assert self.process.stdout is not None
        status, _, message = self.process.stdout.readline().strip().partition(" ")
        assert status == "0", message
        found = json.loads(message)
        assert found["name"] == "gpu"
        return list(found["addresses"])

    def acquire_addresses(self) -> list[str]:
        """Start the script and return its addresses."""
        self.start_script()
        return self.answer()

    def kill(self) -> None:
        """kill -9, and leave the dead process unwaited for, as a busy parent would."""
        os.kill(self.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Callable[..., Executor]]:
    """Makes executors of one host with two GPUs."""
    made: list[Executor] = []

    def make(**environment: str) -> Executor:
        host = {
            # so that the script finds this python3
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOPSML_GPU_CLAIMS": str(tmp_path / "claims"),
            "HOPSML_EMULATED_GPUS": "2",
            "HOPSML_GPU_WAIT_S": "0",
        }
        made.append(Executor({**os.environ, **host, **environment}))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_each_executor_is_assigned_its_own_gpu(executor: Callable[..., Executor]) -> None:
    assert executor().acquire_addresses() == ["0"]
    assert executor().acquire_addresses() == ["1"]


def test_refused_executor_is_shown_who_holds_the_gpus(executor: Callable[..., Executor]) -> None:
    first, second = executor(), executor()
    first.acquire_addresses()
    second.acquire_addresses()
    holders = f"0 by pid {first.process.pid}, 1 by pid {second.process.pid}"
    with pytest.raises(AssertionError, match=rf"1 GPU\(s\) wanted, 0 of 2 free \(taken: {holders}\)"):
        executor().acquire_addresses()


def test_gpu_of_a_killed_executor_is_released_at_once(executor: Callable[..., Executor]) -> None:
    first = executor()
    first.acquire_addresses()
    executor().acquire_addresses()
    first.kill()
    assert executor().acquire_addresses() == ["0"]


def test_executor_waits_for_a_gpu_that_is_released(executor: Callable[..., Executor]) -> None:
    first = executor(HOPSML_GPUS_PER_EXECUTOR="2")
    assert first.acquire_addresses() == ["0", "1"]
    early = executor(HOPSML_GPU_WAIT_S="30")
    early.start_script()
    first.kill()
    assert early.answer() == ["0"]


def test_concurrent_executors_never_share_a_gpu(executor: Callable[..., Executor]) -> None:
    crowd = [executor(HOPSML_EMULATED_GPUS="4") for _ in range(4)]
    for each in crowd:
        each.start_script()
    assert sorted(address for each in crowd for address in each.answer()) == list("0123")


def test_standalone_worker_lists_all_gpus_without_locking_them(executor: Callable[..., Executor]) -> None:
    worker = executor(HOPSML_GPUS_PER_EXECUTOR="all", HOPSML_EMULATED_GPUS="12")
    assert worker.acquire_addresses() == [str(index) for index in range(12)], "in numeric order"
    assert executor().acquire_addresses() == ["0"]


def test_more_gpus_than_the_node_has_are_refused_without_waiting(executor: Callable[..., Executor]) -> None:
    with pytest.raises(AssertionError, match=r"3 GPU\(s\) wanted, 2 of 2 free"):
        executor(HOPSML_GPUS_PER_EXECUTOR="3", HOPSML_GPU_WAIT_S="600").acquire_addresses()


def test_emulated_nodes_of_one_machine_have_separate_gpus(executor: Callable[..., Executor]) -> None:
    assert executor(NM_HOST="127.0.0.11").acquire_addresses() == ["0"]
    assert executor(NM_HOST="127.0.0.12").acquire_addresses() == ["0"]


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Callable[[str, int], dict[str, str]]:
    """Return a function that puts an nvidia-smi with this output and exit status on the PATH."""

    def make(text: str, status: int) -> dict[str, str]:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return make


def run_script(tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The script by itself, without emulation."""
    own = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    own |= {"HOPSML_GPU_CLAIMS": str(tmp_path / "claims"), "HOPSML_GPU_WAIT_S": "0", **environment}
    return subprocess.run([DISCOVERY_SCRIPT], env=own, capture_output=True, text=True, timeout=END_S)


REAL = "0, GPU-aaaa-1\n1, GPU-bbbb-2\n10, GPU-cccc-3"


@pytest.mark.parametrize(
    ("allowed", "addresses"),
    [
        (None, ["0", "1", "10"]),
        ("1,10", ["1", "10"]),
        ("GPU-cccc", ["10"]),
        ("", []),
    ],
)
def test_real_gpus_are_limited_to_visible_devices(
    tmp_path: Path,
    nvidia_smi: Callable[[str, int], dict[str, str]],
    allowed: str | None,
    addresses: list[str],
) -> None:
    environment = nvidia_smi(REAL, 0) | {"HOPSML_GPUS_PER_EXECUTOR": "all"}
    if allowed is not None:
        environment["CUDA_VISIBLE_DEVICES"] = allowed
    assert json.loads(run_script(tmp_path, environment).stdout) == {"name": "gpu", "addresses": addresses}


def test_broken_driver_is_not_replaced_by_emulation(
    tmp_path: Path, nvidia_smi: Callable[[str, int], dict[str, str]]
) -> None:
    done = run_script(tmp_path, nvidia_smi("Driver/library version mismatch", 18))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "nvidia-smi failed with exit status 18: Driver/library version mismatch" in done.stderr


def test_gpu_claims_can_be_shared_by_two_users(tmp_path: Path) -> None:
    assert run_script(tmp_path, {"HOPSML_EMULATED_GPUS": "1"}).returncode == 0
    assert (tmp_path / "claims").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "claims" / "claims.json").stat().st_mode & 0o777 == 0o666


def test_symbolic_link_in_place_of_the_claims_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    precious = tmp_path / "precious"
    precious.write_text("{}")
    (tmp_path / "claims" / "claims.json").symlink_to(precious)
    assert run_script(tmp_path, {"HOPSML_EMULATED_GPUS": "1"}).returncode == 1
    assert precious.read_text() == "{}"


def test_later_process_with_the_same_pid_is_another_holder() -> None:
    holder = script.holder_of(os.getpid())
    assert script.is_alive(holder)
    earlier = holder.replace("started ", "started 1")
    assert not script.is_alive(earlier)
    other_boot = holder.replace("boot ", "boot x")
    assert not script.is_alive(other_boot)


def test_holder_in_another_pid_namespace_is_alive_until_a_reboot() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert script.is_alive(f"1 started 1 boot {boot} in pid:[1]")
    assert not script.is_alive("1 started 1 boot x in pid:[1]")


@given(st.integers(0, 12), st.sets(st.integers(0, 11)), st.integers(0, 12))
def test_chosen_gpus_are_free_lowest_and_enough(total: int, taken: set[int], count: int) -> None:
    gpus = script.emulated(total, "node")
    claims = {gpus[str(index)]: "1 started 2" for index in taken if index < total}
    free = [index for index in range(total) if index not in taken]
    if count > len(free):
        with pytest.raises(script.NoGpu):
            script.choose(gpus, claims, count, "me")
        return
    chosen, after = script.choose(gpus, claims, count, "me")
    assert chosen == [str(index) for index in free[:count]]
    assert {name for name, holder in after.items() if holder == "me"} == {gpus[address] for address in chosen}
    assert claims.items() <= after.items()
