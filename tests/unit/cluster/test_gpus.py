"""Tests of finding and locking GPUs by real processes; the host's GPUs are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hopsml.cluster.agent import gpu_lock, network
from hopsml.cluster.agent.gpu_lock import GpuLock, acquire_gpus
from hopsml.cluster.shared import gpus
from hopsml.cluster.shared.gpus import HostGpu, environment_for, parse_address, visible_gpus
from hopsml.errors import ArgumentError, RunError
from tests.helpers import clock

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
HOST = tuple(HostGpu(i, f"GPU-{i:08x}-aaaa", f"00000000:{i + 1:02X}:00.0") for i in range(4))

# An executor's side: acquires GPUs, prints them, and holds them until its input ends.
AGENT = """
import sys
from pathlib import Path
from hopsml.cluster.agent.gpu_lock import acquire_gpus
from hopsml.cluster.shared.gpus import HostGpu
host = [HostGpu(i, f"GPU-{i:08x}-aaaa") for i in range(4)]
directory, count, *addresses = sys.argv[1:]
claim = acquire_gpus(host, addresses, int(count), bases=[Path(directory)], timeout_s=30)
print(*claim.indices, flush=True)
sys.stdin.read()
"""


class Agent:
    """A process that holds GPUs."""

    def __init__(self, directory: Path, count: int, *addresses: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(directory), str(count), *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def indices(self) -> tuple[int, ...]:
        """Waits until it has them."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return tuple(map(int, line.split()))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Agent]]:
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.end()


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A folder for everybody, as /tmp is."""
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def private(base: Path) -> Path:
    return base / f"hopsml-gpu-locks-{os.geteuid()}"


# -- addresses and variables


def test_gpu_address_is_a_whole_number_or_a_known_uuid() -> None:
    assert parse_address("0") == 0
    assert parse_address(" 12\n") == 12
    assert parse_address("GPU-00000002-aaaa", HOST) == 2


@pytest.mark.parametrize("address", ["1abc", "", "-1", "0x1", "1,2", "1.0", "GPU-unknown", "٣", "99999"])
def test_invalid_gpu_addresses_are_refused(address: str) -> None:
    with pytest.raises(ArgumentError, match="not a GPU address"):
        parse_address(address, HOST)


def test_environment_shows_exactly_the_claimed_gpus() -> None:
    assert environment_for((3, 1)) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3,1"}


def test_environment_without_gpus_hides_all_of_them() -> None:
    assert environment_for(())["CUDA_VISIBLE_DEVICES"] == "-1"
    assert visible_gpus(HOST, "-1") == ()


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0,1", (0, 1)),
        ("3, 1", (3, 1)),
        ("", ()),
        ("2,-1,0", (2,)),  # CUDA ends the list at an unknown entry
        ("1,9,0", (1,)),
        ("1,1", (1,)),
        ("GPU-00000002,GPU-00000001-aaaa", (2, 1)),
        ("GPU-0000000", ()),  # the beginning of four UUIDs
        ("MIG-GPU-00000001-aaaa/1/0", ()),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(value: str, indices: tuple[int, ...]) -> None:
    assert tuple(gpu.index for gpu in visible_gpus(HOST, value)) == indices


# -- what the host has


def path_with(tmp_path: Path, script: str) -> str:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_nvidia_smi_lists_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'echo "0, GPU-aa, 00000000:3B:00.0"\necho "1, GPU-bb, 00000000:AF:00.0"\n'
    monkeypatch.setenv("PATH", path_with(tmp_path, script))
    assert gpus._gpus_by_nvidia_smi() == (
        HostGpu(0, "GPU-aa", "00000000:3B:00.0"),
        HostGpu(1, "GPU-bb", "00000000:AF:00.0"),
    )


def test_failing_nvidia_smi_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'echo "0, GPU-aa, x"\nexit 9\n'
    monkeypatch.setenv("PATH", path_with(tmp_path, script))
    assert gpus._gpus_by_nvidia_smi() == ()


def test_missing_nvidia_smi_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus._gpus_by_nvidia_smi() == ()
    assert gpus.topology_text() == ""


def test_hanging_nvidia_smi_is_abandoned_after_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", path_with(tmp_path, "exec sleep 600\n"))
    start_s = clock.awake()
    assert gpus.topology_text(timeout_s=0.2) == ""
    assert clock.awake() - start_s < 5
    assert "did not answer within" in caplog.text


# -- taking them


def test_two_executors_with_the_same_address_get_two_gpus(
    locks: Path, agents: list[Agent], caplog: pytest.LogCaptureFixture
) -> None:
    agents.append(Agent(locks, 1, "0"))
    assert agents[0].indices() == (0,)
    with caplog.at_level(logging.WARNING), acquire_gpus(HOST, ["0"], bases=[locks]) as mine:
        assert mine.indices == (1,)
    assert "Spark granted GPU 0" in caplog.text
    assert "GPU 1 is used instead" in caplog.text


def test_four_executors_at_once_get_different_gpus(locks: Path, agents: list[Agent]) -> None:
    agents.extend(Agent(locks, 1, "0") for _ in range(4))
    taken = [agent.indices() for agent in agents]
    assert sorted(taken) == [(0,), (1,), (2,), (3,)]


def test_sigkill_of_an_agent_releases_its_gpu_at_once(locks: Path, agents: list[Agent]) -> None:
    agents.append(Agent(locks, 4))
    assert agents[0].indices() == (0, 1, 2, 3)
    with pytest.raises(RunError, match=f"GPU 0 by process {agents[0].process.pid}"):
        acquire_gpus(HOST, ["0"], bases=[locks], timeout_s=0)
    os.kill(agents[0].process.pid, signal.SIGKILL)
    agents[0].process.wait()
    with acquire_gpus(HOST, ["0"], bases=[locks], timeout_s=0) as mine:
        assert mine.indices == (0,)


def test_acquire_gpus_waits_for_a_gpu_to_be_released(locks: Path, agents: list[Agent]) -> None:
    mine = acquire_gpus(HOST, count=4, bases=[locks])
    agents.append(Agent(locks, 2, "2", "3"))
    mine.close()
    assert agents[0].indices() == (2, 3)


def test_acquire_gpus_takes_no_gpu_if_too_few_are_free(locks: Path, agents: list[Agent]) -> None:
    agents.append(Agent(locks, 2))
    assert agents[0].indices() == (0, 1)
    with pytest.raises(RunError, match=r"3 GPU\(s\) were requested.*GPU 2 by nobody"):
        acquire_gpus(HOST, count=3, bases=[locks], timeout_s=0)
    with acquire_gpus(HOST, count=2, bases=[locks], timeout_s=0) as mine:
        assert mine.indices == (2, 3)


def test_acquire_gpus_waits_while_another_process_acquires(locks: Path) -> None:
    """While one process takes its GPUs, another waits: else each could end up with half of what both need."""
    with acquire_gpus(HOST, ["0"], bases=[locks]):
        pass
    gate = os.open(private(locks) / "claiming", os.O_RDONLY)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="came free"):
            acquire_gpus(HOST, ["0"], bases=[locks], timeout_s=0)
    finally:
        os.close(gate)
    acquire_gpus(HOST, ["0"], bases=[locks], timeout_s=0).close()


def test_process_does_not_acquire_a_gpu_twice(locks: Path) -> None:
    with acquire_gpus(HOST, ["1"], bases=[locks]) as first:
        with acquire_gpus(HOST, ["1"], bases=[locks]) as second:
            assert (first.indices, second.indices) == ((1,), (0,))
        first.close()
        first.close()  # twice does no harm


def test_subprocesses_and_forks_do_not_inherit_the_lock(locks: Path) -> None:
    claim = acquire_gpus(HOST, ["0"], bases=[locks])
    sleeper = subprocess.Popen(["sleep", "600"], close_fds=False)
    end_reader, end_writer = os.pipe()
    up_reader, up_writer = os.pipe()
    forked = os.fork()
    if forked == 0:  # reports its start, and runs without the lock until the pipe closes
        os.close(end_writer)
        os.write(up_writer, b"x")
        os.read(end_reader, 1)
        os._exit(0)
    try:
        assert os.read(up_reader, 1) == b"x"
        # as the kernel does when the process dies: descriptors are closed, nothing is unlocked explicitly
        claim.close_without_unlocking()
        with acquire_gpus(HOST[:1], ["0"], bases=[locks], timeout_s=0) as again:
            assert again.indices == (0,)
    finally:
        for descriptor in (end_writer, end_reader, up_writer, up_reader):
            os.close(descriptor)
        os.waitpid(forked, 0)
        sleeper.kill()
        sleeper.wait()


def test_idle_gpus_are_preferred_without_addresses(locks: Path) -> None:
    host = [HostGpu(0, processes=2), HostGpu(1), HostGpu(2, processes=1)]
    with acquire_gpus(host, count=2, bases=[locks]) as mine:
        assert mine.indices == (1, 2)


def test_lock_directory_is_locked_against_tmp_cleaners(locks: Path) -> None:
    """They try an exclusive lock on a directory before they remove old files from it."""
    with acquire_gpus(HOST, ["0"], bases=[locks]):
        directory = os.open(private(locks), os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(directory)


def test_slot_has_no_gpus_without_a_driver(locks: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert acquire_gpus((), ["0"], bases=[locks]).indices == ()
    assert "no working NVIDIA driver" in caplog.text
    assert not list(locks.iterdir())


def test_acquire_gpus_without_a_request_creates_no_locks(locks: Path) -> None:
    assert acquire_gpus(HOST, bases=[locks]).indices == ()
    assert not list(locks.iterdir())


def test_invalid_gpu_requests_are_refused(locks: Path) -> None:
    with pytest.raises(ArgumentError, match="count=-1"):
        acquire_gpus(HOST, count=-1, bases=[locks])
    with pytest.raises(RunError, match="5 GPUs were requested, but this host has 4"):
        acquire_gpus(HOST, count=5, bases=[locks])
    with pytest.raises(ArgumentError, match="1abc"):
        acquire_gpus(HOST, ["1abc"], bases=[locks])


def test_symbolic_link_in_place_of_the_lock_directory_is_refused(locks: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    private(locks).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is not a directory"):
        acquire_gpus(HOST, ["0"], bases=[locks])


def test_lock_files_are_private_and_public_copies_are_readable_by_every_user(locks: Path) -> None:
    private(locks).mkdir(mode=0o777)
    previous = os.umask(0o077)
    try:
        claim: GpuLock = acquire_gpus(HOST, ["0"], bases=[locks])
    finally:
        os.umask(previous)
    with claim:
        assert private(locks).stat().st_mode & 0o7777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in private(locks).iterdir()} == {0o600}
        shown = locks / "hopsml-gpu-locks"
        assert shown.stat().st_mode & 0o7777 == 0o1777
        assert {path.stat().st_mode & 0o777 for path in shown.iterdir()} == {0o644}


# -- another user, who means no good

STRANGER = 65534


@contextmanager
def as_stranger(act: Callable[[], None]) -> Iterator[None]:
    """A process of another user that has done this, and stays."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    ready, ready_writer = os.pipe()
    stay, leave = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(leave)
        try:
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            act()
            os.write(ready_writer, b"x")
            os.read(stay, 1)
        finally:
            os._exit(0)
    os.close(ready_writer)
    os.close(stay)
    try:
        assert os.read(ready, 1) == b"x"
        yield
    finally:
        os.close(leave)
        os.close(ready)
        os.waitpid(child, 0)


@pytest.fixture
def open_locks(locks: Path) -> Path:
    """Return the lock folder, made accessible to another user."""
    for parent in locks.parents:
        if not parent.stat().st_mode & 0o001:  # pytest's folders are private at every level
            parent.chmod(0o755)
    return locks


def lock_everything(folder: Path, *gpus_: HostGpu) -> Callable[[], None]:
    def act() -> None:
        folder.mkdir(exist_ok=True)
        for name in ("claiming", *(gpu.key for gpu in gpus_)):
            fcntl.flock(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)

    return act


def test_locks_of_another_user_do_not_block_unused_gpus(open_locks: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = as_stranger(lock_everything(open_locks / "hopsml-gpu-locks", *HOST))
    with stranger, acquire_gpus(HOST, count=4, bases=[open_locks], timeout_s=0.2) as mine:
        assert mine.indices == (0, 1, 2, 3)
    assert "another user has locked GPU 0, but no process uses it" in caplog.text


def test_lock_of_another_user_counts_if_a_process_uses_the_gpu(open_locks: Path) -> None:
    busy = [HostGpu(0, "GPU-0"), HostGpu(1, "GPU-1", processes=1), HostGpu(2, "GPU-2")]
    stranger = as_stranger(lock_everything(open_locks / "hopsml-gpu-locks", busy[0], busy[1]))
    with stranger, acquire_gpus(busy, count=1, bases=[open_locks]) as mine:
        assert mine.indices == (2,)  # a GPU without a lock is preferred
        with pytest.raises(
            RunError, match=r"GPU 1 by process \d+"
        ):  # and a lock is believed if a process computes on the GPU
            acquire_gpus(busy, count=2, bases=[open_locks], timeout_s=0.1)


def test_lock_directory_that_belongs_to_another_user_is_skipped(open_locks: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    ours = private(open_locks)
    with as_stranger(ours.mkdir):
        with acquire_gpus(HOST, ["0"], bases=[open_locks, other]) as mine:
            assert mine.indices == (0,)
            with acquire_gpus(HOST, ["0"], bases=[other], timeout_s=0) as second:
                assert second.indices == (1,)
        with pytest.raises(RunError, match=f"belongs to user {STRANGER}"):
            acquire_gpus(HOST, ["0"], bases=[open_locks])


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_obstacles_of_another_user_in_place_of_locks_are_ignored(open_locks: Path, kind: str) -> None:
    def act() -> None:
        folder = open_locks / "hopsml-gpu-locks"
        folder.mkdir()
        for gpu in HOST:
            if kind == "pipe":
                os.mkfifo(folder / gpu.key)
            elif kind == "link":
                (folder / gpu.key).symlink_to("/dev/zero")
            else:
                (folder / gpu.key).mkdir()

    with as_stranger(act), acquire_gpus(HOST, count=4, bases=[open_locks], timeout_s=0) as mine:
        assert mine.indices == (0, 1, 2, 3)


def test_all_gpus_returns_the_unused_gpus_and_a_note_about_the_others(
    locks: Path, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = HostGpu(4, "GPU-00000004-aaaa", processes=2)
    monkeypatch.setattr(gpu_lock, "host_gpus", lambda: (*HOST, busy))
    agents.append(Agent(locks, 1, "2"))
    assert agents[0].indices() == (2,)
    with acquire_gpus(HOST, ["0"], bases=[locks]) as slot:
        wide = gpu_lock.acquire_all_gpus(slot.indices, bases=[locks])
        assert wide.indices == (0, 1, 3)
        assert re.fullmatch(
            r"it has 3 of the 5 GPUs that its executor sees; other processes use: GPU 2 by process \d+, "
            r"GPU 4 by 2 process\(es\) that use it",
            wide.note,
        )
        again = gpu_lock.acquire_all_gpus(slot.indices, bases=[locks])
        assert again.indices == (0,)
        wide.close()
        free = gpu_lock.acquire_all_gpus(slot.indices, bases=[locks])
        assert free.indices == (0, 1, 3)
        free.close()


def test_all_gpus_notes_an_executor_with_one_gpu_or_none(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "host_gpus", lambda: HOST[:1])
    one = gpu_lock.acquire_all_gpus((0,), bases=[locks])
    monkeypatch.setattr(gpu_lock, "host_gpus", tuple)
    none = gpu_lock.acquire_all_gpus((), bases=[locks])
    assert (one.indices, one.note) == ((0,), "its executor has 1 GPU, so nothing is mirrored between GPUs")
    assert (none.indices, none.note) == ((), "its executor has no GPUs, so nothing is mirrored between GPUs")


def end_of_agent(ports: network.SlotPorts | None, problem: str = "") -> list[str]:
    """Return what a closing agent with a GPU and these ports closes, in order; its fork server raises ``problem``."""
    from hopsml.cluster.agent.agent import Agent
    from hopsml.cluster.agent.gpu_lock import SlotGpus
    from hopsml.cluster.agent.network import Bootstrap

    closed: list[str] = []

    class Claim:
        def close(self) -> None:
            closed.append("claim")

    class Server:
        async def close(self) -> None:
            closed.append("server")
            if problem:
                raise OSError(problem)

    async def ended() -> None:
        agent = Agent(Bootstrap(1, (), "", "", (), 10.0, ()), 0, "", (), Path("/nowhere"))
        agent.server, agent.ports = Server(), ports  # type: ignore[assignment]
        agent.gpus = SlotGpus((0,), lock=Claim())  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            await agent._end()

    asyncio.run(ended())
    return closed


def test_ending_agent_releases_its_gpu_and_ports_while_its_process_runs() -> None:
    """Spark reuses the process, and its next agent needs the same GPU and ports."""
    of_slot = network.SlotPorts("127.0.0.1", None)
    ports = [of_slot.held.framework.port, of_slot.held.collective.port]
    assert end_of_agent(of_slot) == ["server", "claim"]
    for port in ports:
        with network.hold_port("127.0.0.1", (port, port)) as again:
            assert again.port == port


def test_agent_releases_its_gpu_if_closing_the_fork_server_fails() -> None:
    assert end_of_agent(None, problem="it cannot be reached") == ["server", "claim"]
