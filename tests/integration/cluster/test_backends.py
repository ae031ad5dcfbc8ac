"""Contract of backends for agents that are subprocesses; tests/integration/spark does the same for Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.core import processes
from hopsml.errors import CoordinatorLost, RunCancelled, WorkerFailed
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.backend_contract import GONE_S, BackendContract, check_run_dir, submit
from tests.helpers.cluster.workloads import living, traces, wait_until
from tests.helpers.local_application import SLOTS

pytestmark = pytest.mark.chaos


@pytest.fixture
def unresponsive() -> Iterator[tuple[str, int]]:
    """Yield an address that accepts connections and never answers: an agent there is still connecting when it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


class TestLocal(BackendContract):
    slots = SLOTS

    def check_loss(self, cause: str, agent: int) -> None:
        assert f"its process {agent} was killed by signal 9 (SIGKILL); hopsml did not send it" in cause

    def test_agent_that_ends_itself_reports_the_reason(self, store: Path, tmp_path: Path) -> None:
        run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)})
        agent = traces(tmp_path)[1].agent
        for _ in range(2):  # the second one: at once
            os.kill(agent, signal.SIGTERM)
            wait_until(lambda: run.state.notes or not living([agent]), "the word of the first")
        with pytest.raises(WorkerFailed, match=r"rank 1 .* it ended itself: SIGTERM, twice"):
            run.result(END_S)

    def test_worker_that_keeps_starting_processes_is_ended_with_all_of_them(self, store: Path, tmp_path: Path) -> None:
        def breed(folder: str) -> None:
            import subprocess

            for number in range(200):
                child = subprocess.Popen(["sleep", "600"], start_new_session=number % 2 == 0)
                Path(folder, f"child-{child.pid}").touch()

        run = submit(breed, args={"folder": str(tmp_path)}, environment={"HOPSML_TEST_BREED": tmp_path.name})
        wait_until(lambda: len(list(tmp_path.glob("child-*"))) > 10, "children")
        run.cancel()
        with pytest.raises(RunCancelled):
            run.result(END_S)
        assert not processes.processes_with_variable("HOPSML_TEST_BREED", tmp_path.name)

    def test_frozen_agent_is_dropped_when_its_lease_ends(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOPSML_LEASE_S", "3")
        run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)})
        found = traces(tmp_path)
        os.kill(found[1].agent, signal.SIGSTOP)
        try:
            with pytest.raises(WorkerFailed, match="no message for 3 s") as caught:
                run.result(END_S)
            assert caught.value.rank == 1
            assert not living([found[0].worker, found[0].child])
        finally:
            with contextlib.suppress(ProcessLookupError):  # its backend has ended it already
                os.kill(found[1].agent, signal.SIGCONT)
        wait_until(lambda: not living([found[1].agent, found[1].worker, found[1].child]), "the frozen agent's end")

    def test_agent_killed_before_it_has_joined_is_replaced(
        self, store: Path, monkeypatch: pytest.MonkeyPatch, unresponsive: tuple[str, int]
    ) -> None:
        start, killed = LocalBackend._start, []

        def start_and_kill_the_second(bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
            if index != 1 or killed:
                return start(bootstrap, index)
            killed.append(start(msgspec.structs.replace(bootstrap, addresses=(unresponsive,)), index))
            killed[0].kill()
            return killed[0]

        monkeypatch.setattr(LocalBackend, "_start", staticmethod(start_and_kill_the_second))
        assert submit(lambda: "works").result(END_S).value == "works"
        assert killed[0].returncode == -signal.SIGKILL  # and was waited for

    def test_agent_that_cannot_start_fails_the_run_although_another_one_can(
        self, store: Path, monkeypatch: pytest.MonkeyPatch, unresponsive: tuple[str, int]
    ) -> None:
        start = LocalBackend._start

        def start_and_break_the_second(bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
            # The other agent has not connected yet: once one of a request has, missing ones are requested again.
            others = bootstrap.addresses if index != 1 else ()
            process = start(msgspec.structs.replace(bootstrap, addresses=(unresponsive, *others)), index)
            if index == 1:
                process.send_signal(signal.SIGSEGV)
            return process

        monkeypatch.setattr(LocalBackend, "_start", staticmethod(start_and_break_the_second))
        with pytest.raises(CoordinatorLost, match="a local agent ended with status -11"):
            submit(lambda: "works").result(END_S)

    def test_modules_that_cannot_be_preloaded_do_not_stop_a_run(self, store: Path, tmp_path: Path) -> None:
        assert submit(lambda: "works", preload=["no_such_module"]).result(END_S).value == "works"

    def test_module_that_ends_the_process_on_import_is_named(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "module_that_exits.py").write_text("import os\nos._exit(4)\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(WorkerFailed, match="module_that_exits"):
            submit(lambda: None, preload=["module_that_exits"]).result(END_S)

    def test_run_cancelled_during_imports_ends_soon(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        marker = tmp_path / "importing"
        module = f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(600)\n"
        (tmp_path / "module_that_hangs.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        args = {"folder": str(tmp_path)}
        run = submit(workloads.sleep_with_trace, args=args, preload=["module_that_hangs"], keep_warm=60)
        wait_until(lambda: run.status()["phase"] == "starting workers" and marker.exists(), "the import")
        start_s = clock.awake()
        run.cancel()
        with pytest.raises(RunCancelled):
            run.result(END_S)
        assert clock.awake() - start_s < GONE_S
        check_run_dir(run, "CANCELLED")
        assert submit(lambda: "works", keep_warm=60).result(END_S).value == "works"

    @pytest.mark.variant
    def test_honour_environment_keeps_variables_of_the_user(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = '{"cluster": {"worker": ["elsewhere:1"]}, "task": {"type": "worker", "index": 0}}'
        monkeypatch.setenv("TF_CONFIG", config)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

        def look() -> list[str]:
            return [os.environ["TF_CONFIG"], os.environ["CUDA_VISIBLE_DEVICES"]]

        assert submit(look, honour_environment=True).result(END_S).value == [config, ""]
