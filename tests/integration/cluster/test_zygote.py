"""Tests of the zygote, which imports once for all agents of a machine: use of its fork servers, and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hopsml.cluster.forking import fork_client, zygote
from hopsml.cluster.forking.fork_server import MARK, Imported, environment_of, new_mark
from hopsml.cluster.forking.zygote import ZygoteProcess
from hopsml.core import processes
from tests.helpers import clock
from tests.integration.cluster.test_fork_server import Ended, _play

pytestmark = pytest.mark.local
TIMEOUT_S = 20.0
MODULES = ("wave",)  # imported by no other module


@pytest.fixture(scope="module")
def shared_zygote() -> Iterator[ZygoteProcess]:
    yield from _started()


@pytest.fixture
def own_zygote() -> Iterator[ZygoteProcess]:
    """For tests that end it."""
    yield from _started()


def _started() -> Iterator[ZygoteProcess]:
    process = ZygoteProcess(MODULES, {"PYTHONHASHSEED": "0"})
    yield process
    process.close()


def client_of(shared_zygote: ZygoteProcess, modules: tuple[str, ...] = MODULES) -> fork_client.ForkClient:
    return fork_client.ForkClient(modules, *fork_client.start_process(modules, shared_zygote.name))


def with_client(
    shared_zygote: ZygoteProcess, use: Callable[[fork_client.ForkClient], object], modules: tuple[str, ...] = MODULES
) -> object:
    async def run() -> object:
        client = client_of(shared_zygote, modules)
        try:
            found = use(client)
            return await asyncio.wait_for(found, TIMEOUT_S) if asyncio.iscoroutine(found) else found
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def test_worker_of_a_zygotes_fork_server_has_the_imported_modules(shared_zygote: ZygoteProcess, tmp_path: Path):
    def function() -> dict[str, object]:
        import os
        import sys

        return {"loaded": "wave" in sys.modules, "server": os.getppid(), "mark": os.environ["HOPSML_FORK_SERVER"]}

    async def use(client: fork_client.ForkClient) -> tuple[Ended, str]:
        assert (await client.ready).mode == "fork"
        return await _play(client, tmp_path, function, None, {}), client._process.mark

    import cloudpickle

    ended, mark = with_client(shared_zygote, use)
    value = cloudpickle.loads(ended.events[-1].result)
    assert value["loaded"] and value["mark"] == mark
    assert ended.exited.status == 0


def test_killed_fork_server_leaves_no_process_of_its_worker(shared_zygote: ZygoteProcess, tmp_path: Path):
    """Including a child without environment variables in a separate session."""

    def function(pids: str) -> None:
        import subprocess
        import time
        from pathlib import Path

        child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
        Path(pids).with_suffix(".part").write_text(str(child.pid))
        Path(pids).with_suffix(".part").rename(pids)
        time.sleep(600)

    pids = tmp_path / "child"

    async def use(client: fork_client.ForkClient) -> list[int]:
        playing = asyncio.create_task(_play(client, tmp_path, function, None, {"pids": str(pids)}))
        while not pids.exists():
            await asyncio.sleep(0.01)
        below = processes.descendants_of(client.pid)
        assert int(pids.read_text()) in below
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            await playing
        return below

    below = with_client(shared_zygote, use)
    assert isinstance(below, list)
    deadline = clock.awake() + TIMEOUT_S
    while not all(map(processes.has_ended, below)) and clock.awake() < deadline:
        time.sleep(0.01)
    assert all(map(processes.has_ended, below))


def test_stopped_zygote_is_resumed_and_then_killed(own_zygote: ZygoteProcess):
    assert own_zygote.check_health() == ""
    deadline = clock.awake() + TIMEOUT_S
    texts = []
    while not processes.has_ended(own_zygote.pid):
        os.kill(own_zygote.pid, signal.SIGSTOP)
        while not processes.is_stopped(own_zygote.pid) and not processes.has_ended(own_zygote.pid):
            assert clock.awake() < deadline
        texts.append(own_zygote.check_health())
        if len(texts) == 1:
            while processes.is_stopped(own_zygote.pid):
                assert clock.awake() < deadline
    assert [text.rpartition(" ")[2] for text in texts if text] == ["resumed", "killed"]


def test_two_agents_have_separate_fork_servers_and_random_numbers(shared_zygote: ZygoteProcess, tmp_path: Path):
    def draw() -> float:
        import numpy

        return float(numpy.random.rand())

    import cloudpickle

    async def run() -> list[float]:
        clients = [client_of(shared_zygote) for _ in range(2)]
        try:
            drawn = []
            for number, client in enumerate(clients):
                folder = tmp_path / str(number)
                folder.mkdir()
                ended = await asyncio.wait_for(_play(client, folder, draw, None, {}), TIMEOUT_S)
                drawn.append(cloudpickle.loads(ended.events[-1].result))
            assert len(processes.children_of(shared_zygote.pid)) == 2
            return drawn
        finally:
            for client in clients:
                await client.close()

    first, second = asyncio.run(run())
    assert first != second


def test_mark_of_a_fork_server_is_visible_in_proc(shared_zygote: ZygoteProcess):
    async def use(client: fork_client.ForkClient) -> list[int]:
        await client.ready
        return processes.processes_with_variable(MARK, client._process.mark)

    assert len(with_client(shared_zygote, use)) == 1


def test_zygote_with_other_variables_is_not_used(shared_zygote: ZygoteProcess, monkeypatch: pytest.MonkeyPatch):
    async def ready(client: fork_client.ForkClient) -> tuple[Imported, object]:
        return await client.ready, client._process

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    answer, process = with_client(shared_zygote, ready)
    assert answer.mode == "fork" and isinstance(process, subprocess.Popen)


def test_missing_modules_are_imported_by_the_agents_own_fork_server(shared_zygote: ZygoteProcess):
    async def ready(client: fork_client.ForkClient) -> tuple[Imported, object]:
        return await client.ready, client._process

    answer, process = with_client(shared_zygote, ready, ("wave", "chunk_that_is_not_there"))
    assert "chunk_that_is_not_there" in answer.problem and isinstance(process, subprocess.Popen)


def test_agent_starts_its_own_fork_server_without_a_zygote():
    async def run() -> Imported:
        client = fork_client.ForkClient(MODULES, *fork_client.start_process(MODULES, "hopsml-zygote-of-nobody"))
        try:
            return await asyncio.wait_for(client.ready, TIMEOUT_S)
        finally:
            await client.close()

    assert asyncio.run(run()).mode == "fork"


def test_agent_starts_its_own_fork_server_if_the_zygote_is_killed_while_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "slow_import.py").write_text(
        f"import os, time\nif os.getppid() == {os.getpid()} and 'zygote' in open('/proc/self/cmdline').read():\n"
        f"    open({str(tmp_path / 'importing')!r}, 'w').close()\n    time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    shared_zygote = ZygoteProcess(("slow_import",), {"PYTHONHASHSEED": "0"})
    try:
        wait_for(lambda: (tmp_path / "importing").exists())

        async def use(client: fork_client.ForkClient) -> Imported:
            os.kill(shared_zygote.pid, signal.SIGKILL)
            return await client.ready

        assert with_client(shared_zygote, use, ("slow_import",)).problem == ""
    finally:
        shared_zygote.close()


def test_connection_of_another_user_is_refused(shared_zygote: ZygoteProcess):
    if os.getuid() != 0:
        pytest.skip("only root can become another user here")
    code = f"""
        import os, socket
        os.setuid(65534)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(10)
        connection.connect("\\0{shared_zygote.name}")
        print(repr(connection.recv(10)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=20)
    assert done.stdout == "b''\n", done.stderr


def test_invalid_request_is_refused_and_the_next_agent_is_served(shared_zygote: ZygoteProcess):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(f"\0{shared_zygote.name}")
        connection.send(b"\xc1 no request")
        assert connection.recv(10) == b""

    async def ready(client: fork_client.ForkClient) -> Imported:
        return await client.ready

    assert with_client(shared_zygote, ready).mode == "fork"


def test_death_of_a_fork_server_is_reported_to_its_agent(shared_zygote: ZygoteProcess):
    async def use(client: fork_client.ForkClient) -> str:
        await client.ready
        (pid,) = processes.processes_with_variable(MARK, client._process.mark)
        os.kill(pid, signal.SIGKILL)
        while not client.broken:
            await asyncio.sleep(0.01)
        return client._how_it_ended()

    assert "SIGKILL" in str(with_client(shared_zygote, use))


def test_fork_servers_outlive_a_closed_zygote_and_end_with_their_agent(own_zygote: ZygoteProcess, tmp_path: Path):
    async def use(client: fork_client.ForkClient) -> int:
        await client.ready
        (pid,) = processes.processes_with_variable(MARK, client._process.mark)
        own_zygote.close()
        ended = await _play(client, tmp_path, lambda: 1, None, {})
        assert ended.exited.status == 0
        return pid

    server = with_client(own_zygote, use)
    wait_for(lambda: has_ended(server))


def test_zygote_ends_with_its_driver():
    code = f"""
        import os, time
        from hopsml.cluster.forking.zygote import ZygoteProcess
        process = ZygoteProcess({MODULES!r})
        print(process.pid, flush=True)
        time.sleep(600)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    with driver:
        pid = int(driver.stdout.readline())
        driver.kill()
    wait_for(lambda: has_ended(pid))


def test_differences_between_request_and_zygote_are_named():
    environment = environment_of({"TF_X": "1", "OTHER": "1"}, new_mark())
    request = zygote.ForkRequest("python9", ("a", "b"), {**environment, "TF_X": "2", "OTHER": "2"}, (), "/")
    found = zygote.differences(request, ("a",), environment)
    assert found == ["module b", "interpreter python9", "variable TF_X"]


def has_ended(pid: int) -> bool:
    """True if the process has ended; its new parent may take a while to wait for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(met: Callable[[], bool]) -> None:
    deadline = clock.awake() + TIMEOUT_S
    while not met():
        assert clock.awake() < deadline
        time.sleep(0.02)


TAKES_OVER = """
import os, socket, sys
from hopsml.cluster.forking.fork_server import MARK
from hopsml.cluster.forking.zygote import ForkRequest, Zygote
ours, theirs = socket.socketpair()
found = Zygote(ours, theirs, ())
found.apply_environment(ForkRequest(sys.executable, (), {MARK: "-"}, ("/of the driver",), sys.argv[1]))
print(sys.path.index("/of the driver"), sys.argv[1] in sys.path, os.getcwd() == sys.argv[1])
"""


def test_fork_server_of_a_zygote_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Other users may be able to write to it, as to /tmp."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", TAKES_OVER, str(tmp_path)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False", "True"], done.stdout
