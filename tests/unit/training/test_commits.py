"""Tests of a commit's content, its storage, and its transfer between agents."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hopsml
from hopsml.cluster.agent.held_commits import CommitServer, FoundCommit, HeldCommits, fetch_commit
from hopsml.cluster.shared.commit_slots import Buffer, CommitSlots
from hopsml.cluster.shared.protocol import CommitSource, Formation
from hopsml.cluster.shared.spec import RunSpec
from hopsml.cluster.shared.worker_events import Committed
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import CommitPort, WorkerContext
from hopsml.errors import ArgumentError
from hopsml.storage import checkpoints
from hopsml.storage.run_dir import RunDir
from hopsml.training.elastic import commits, elastic_state
from hopsml.training.elastic.commits import Snapshot
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast
TOKEN = "t" * 43


@pytest.fixture
def slots(tmp_path: Path) -> Any:
    made = CommitSlots.create(tmp_path / "slots")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("old", "new"), [(b"<f4", b"<y8"), (b"<f4", b"<f%"), (b"<f4", b"\xff\xfe4"), (b"\x02\x03", b"\x02\x07")]
)
def test_damaged_commit_is_a_value_error(old: bytes, new: bytes) -> None:
    content = b"".join(commits.encode(Snapshot(7, {"w": np.zeros((2, 3), np.float32)})))
    assert content.count(old) == 1
    for damaged in (content.replace(old, new), content[:3], content[:60]):
        with pytest.raises(ValueError, match="not a commit"):
            commits.decode(memoryview(damaged))


def test_commit_encoding_round_trips_arrays_values_and_position() -> None:
    arrays = {
        "kernel": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "scalar": np.array(3, np.int64),
        "nothing": np.zeros((0, 5)),
        "half": np.array([1.5, -2], ml_dtypes.bfloat16),
        "flags": np.array([True, False]),
    }
    snapshot = Snapshot(7, arrays, {"x": b"abc"}, {"epoch": 1, "offset": 5})
    found = commits.decode(memoryview(b"".join(commits.encode(snapshot))))
    assert (found.step, found.values, found.position) == (7, {"x": b"abc"}, {"epoch": 1, "offset": 5})
    for key, array in arrays.items():
        assert found.arrays[key].dtype == array.dtype and found.arrays[key].shape == array.shape
        np.testing.assert_array_equal(found.arrays[key], array)


def test_arrays_of_bfloat16_without_ml_dtypes_are_refused_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match=r"arrays of bfloat2 need the package ml-dtypes.*pip install ml-dtypes"):
        commits.dtype_of("bfloat2")


@pytest.mark.parametrize("content", [b"", b"12345678", b"\x05" + bytes(7) + b"junk!"])
def test_bytes_that_are_not_a_commit_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a commit"):
        commits.decode(memoryview(content))


def test_slot_holds_a_complete_commit_or_none(slots: CommitSlots) -> None:
    with pytest.raises(LookupError):
        slots.read(0)
    slots.write(0, 5, [b"abc", memoryview(b"defg")])
    assert (slots.step(0), bytes(slots.read(0))) == (5, b"abcdefg")
    slots.mark_incomplete(0)
    slots.put(0, 0, b"half")
    assert slots.step(0) is None
    slots.mark_complete(0, 6, 4)
    assert (slots.step(0), bytes(slots.read(0))) == (6, b"half")


def test_pinned_slot_is_not_chosen_for_the_next_write(slots: CommitSlots) -> None:
    assert slots.find_free_slot(-1) == 0 and slots.find_free_slot(0) == 1
    slots.pin(1, True)
    assert slots.find_free_slot(0) == 2
    slots.pin(1, False)
    assert slots.find_free_slot(0) == 1


def test_commit_too_large_for_memory_is_on_disk_for_worker_and_agent(slots: CommitSlots, tmp_path: Path) -> None:
    worker = CommitSlots([os.dup(one) for one in slots.descriptors], tmp_path / "slots")
    try:
        worker.write(1, 3, [b"large"], in_memory=False)
        assert (tmp_path / "slots" / "slot-1").stat().st_size > 5
        assert (slots.step(1), bytes(slots.read(1))) == (3, b"large")
    finally:
        worker.close()


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "disk"])
def test_slot_grows_and_shrinks_with_the_state(in_memory: bool, slots: CommitSlots) -> None:
    for step, length in enumerate((10, 3_000_000, 5, 7_000_001, 0, 7_000_002)):
        content = os.urandom(length)
        assert slots.write(0, step, [content[:1], b"", memoryview(content)[1:]], in_memory=in_memory) == length
        assert (slots.step(0), bytes(slots.read(0))) == (step, content)


def test_slot_can_move_from_memory_to_disk(slots: CommitSlots, tmp_path: Path) -> None:
    worker = CommitSlots([os.dup(one) for one in slots.descriptors], tmp_path / "slots")
    try:
        for step, in_memory in enumerate((True, False, False)):
            content = os.urandom(100_000 + step)
            worker.write(0, step, [content], in_memory=in_memory)
            assert (slots.step(0), bytes(slots.read(0))) == (step, content)
    finally:
        worker.close()


def test_commit_that_is_being_read_survives_later_writes(slots: CommitSlots, tmp_path: Path) -> None:
    """An agent that serves a commit slowly, while its worker commits on: a file that is cut would kill it (SIGBUS)."""
    worker = CommitSlots([os.dup(one) for one in slots.descriptors], tmp_path / "slots")
    script = """
import os, sys
from pathlib import Path
from hopsml.cluster.shared.commit_slots import CommitSlots
folder = Path(sys.argv[1])
agent = CommitSlots.create(folder)
worker = CommitSlots([os.dup(one) for one in agent.descriptors], folder)
worker.write(0, 1, [os.urandom(3_000_000)])
in_memory = agent.read(0)
worker.write(0, 2, [b"x" * 3_000_000], in_memory=False)
assert bytes(in_memory) == bytes(3_000_000)
served = agent.read(0)
worker.write(0, 3, [b"y"], in_memory=False)
assert bytes(served) == b"x" * 3_000_000 and bytes(agent.read(0)) == b"y"
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "of_another")], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        worker.close()


class Watched(CommitSlots):
    """Calls ``look`` before each piece that is written."""

    look: Any = staticmethod(lambda slot: None)

    def _write_piece(self, slot: int, mapped: Any, position: int, piece: Buffer) -> int:
        self.look(slot)
        return super()._write_piece(slot, mapped, position, piece)


@pytest.fixture
def watched(tmp_path: Path) -> Any:
    made = Watched.create(tmp_path / "watched")
    yield made
    made.close()


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "disk"])
def test_arrays_are_released_as_soon_as_they_are_written_to_the_slot(in_memory: bool, watched: Watched) -> None:
    arrays = {str(number): np.full(10_000, number) for number in range(3)}
    references = [weakref.ref(array) for array in arrays.values()]
    pieces = commits.encode(Snapshot(1, arrays))
    arrays.clear()
    alive: list[int] = []
    watched.look = lambda slot: alive.append(sum(array() is not None for array in references))
    watched.write(0, 1, pieces, in_memory=in_memory)
    assert sorted(set(alive), reverse=True) == [3, 2, 1] and pieces == []
    assert not any(array() is not None for array in references)


def test_slot_allocates_its_memory_before_it_writes(watched: Watched) -> None:
    """Otherwise a full memory would raise SIGBUS in the middle of a training."""
    rooms: list[int] = []
    watched.look = lambda slot: rooms.append(512 * os.fstat(watched.descriptors[slot]).st_blocks)
    watched.write(0, 1, [bytes(3_000_000), bytes(4_000_000)])
    assert min(rooms) >= 7_000_000


FULL = """
import os, sys
from hopsml.cluster.shared.commit_slots import BOARD_BYTES, CommitSlots
opened = [os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
os.ftruncate(opened[3], BOARD_BYTES)
slots = CommitSlots(opened)
slots.write(0, 1, [b"x" * 3_000_000])
try:
    slots.write(1, 2, [b"x" * 8_000_000])
except OSError as error:
    print(error.errno, slots.step(0), slots.step(1), set(slots.read(0)) == {ord("x")})
slots.write(1, 3, [b"y" * 3_000_000])
print(slots.step(1))
"""


def test_full_memory_raises_an_error_and_leaves_no_commit(tmp_path: Path) -> None:
    """On a separate small tmpfs, as the machine's memory cannot be filled."""
    mount = f"mount -t tmpfs -o size=8m none {tmp_path} && exec {sys.executable} -c '{FULL}' {tmp_path}"
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no name space of its own on this machine: {done.stderr.strip()}")
    assert done.stdout.split("\n")[:2] == ["28 1 None True", "3"], done.stderr


def test_slot_that_cannot_be_mapped_is_still_written(slots: CommitSlots) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    content = os.urandom(9_000_000)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 4_000_000, hard))
    try:
        slots.write(0, 5, [content])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (slots.step(0), bytes(slots.read(0))) == (5, content)


KILLED = """
import sys
from tests.unit.training.test_commits import Watched

def look(slot):
    if slot == 1 and slots.step(0) == 4 and (seen.append(slot) or len(seen)) == 3:
        print("half", flush=True)
        sys.stdin.read()

seen = []
slots = Watched([int(one) for one in sys.argv[1:]])
slots.look = look
slots.write(0, 3, [b"old"])
slots.write(1, 2, [b"older", bytes(3_000_000)])
slots.write(0, 4, [b"whole"])
slots.write(1, 5, [b"torn", bytes(3_000_000), bytes(3_000_000)])
"""


def test_commit_interrupted_by_a_kill_is_not_readable(slots: CommitSlots) -> None:
    command = [sys.executable, "-c", KILLED, *map(str, slots.descriptors)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=slots.descriptors, **pipes) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"half\n"
        worker.kill()
    assert slots.step(1) is None
    assert (slots.step(0), bytes(slots.read(0))) == (4, b"whole")


def test_commit_server_serves_only_clients_with_the_token() -> None:
    content = memoryview(os.urandom(3_000_000))
    got, overwritten = bytearray(len(content)), list[bool]()

    async def take(position: int, piece: bytes) -> None:
        got[position : position + len(piece)] = piece

    async def scenario() -> None:
        held = FoundCommit(9, content, lambda: not overwritten)
        door = CommitServer(TOKEN, lambda step, or_newer: held if step == 9 or (or_newer and step < 9) else None)
        await door.open("127.0.0.1")
        address, certificate = f"127.0.0.1:{door.port}", door.identity.certificate if door.identity else ""
        try:
            assert await fetch_commit(address, certificate, TOKEN, 9, take) == (9, len(content))
            assert await fetch_commit(address, certificate, TOKEN, 7, take, or_newer=True) == (9, len(content))
            with pytest.raises(LookupError, match="step 8"):
                await fetch_commit(address, certificate, TOKEN, 8, take)
            for wrong in ("x" * 43, f"x{TOKEN[1:]}", f"{TOKEN[:-1]}x"):  # the whole token counts
                with pytest.raises(ConnectionError):
                    await fetch_commit(address, certificate, wrong, 9, take)
            overwritten.append(True)
            with pytest.raises(InterruptedError, match="a newer commit than that of step 9"):
                await fetch_commit(address, certificate, TOKEN, 9, take)
        finally:
            await door.close()
        with pytest.raises(OSError):
            await fetch_commit(address, certificate, TOKEN, 9, take)

    asyncio.run(scenario())
    assert bytes(got) == bytes(content)


@pytest.mark.parametrize("joins", [False, True])
def test_newcomer_accepts_a_newer_commit_and_other_members_require_the_exact_step(tmp_path: Path, joins: bool) -> None:
    def tell(message: Any) -> None:
        raise AssertionError(message)

    async def scenario() -> None:
        trains = HeldCommits("run", tmp_path / "trains", TOKEN, tell)
        newcomer = HeldCommits("run", tmp_path / "comes", TOKEN, tell)
        await trains.door.open("127.0.0.1")
        try:
            for step, slot in ((4, 0), (6, 1)):
                trains.slots.write(slot, step, [b"commit of step %d" % step])
                trains.record_commit(step, slot)
            identity = trains.door.identity
            assert identity is not None
            source = CommitSource(4, f"127.0.0.1:{trains.door.port}", identity.certificate)
            begins = Formation("run", 1, RunSpec(), b"", "", "", "", 2, commit=source, joins=joins)
            if joins:
                await newcomer.fetch_starting_commit(begins)
                assert (newcomer.step, bytes(newcomer.slots.read(newcomer.slot))) == (6, b"commit of step 6")
            else:
                with pytest.raises(LookupError, match="step 4"):
                    await newcomer.fetch_starting_commit(begins)
        finally:
            await trains.close()
            await newcomer.close()

    asyncio.run(scenario())


def test_fetched_commit_replaces_older_commits_on_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        trains = HeldCommits("run", tmp_path / "trains", TOKEN, lambda told: None)
        newcomer = HeldCommits("run", tmp_path / "comes", TOKEN, lambda told: None)
        await trains.door.open("127.0.0.1")
        try:
            trains.slots.write(0, 50, [b"the newest"])
            trains.record_commit(50, 0)
            for slot, step in ((0, 10), (1, 20)):  # of its worker of the generation before
                newcomer.slots.write(slot, step, [b"old"], in_memory=False)
            newcomer.forget()
            identity = trains.door.identity
            assert identity is not None
            source = CommitSource(50, f"127.0.0.1:{trains.door.port}", identity.certificate)
            await newcomer.fetch_starting_commit(Formation("run", 1, RunSpec(), b"", "", "", "", 2, commit=source))
            of_worker = CommitSlots([os.dup(one) for one in newcomer.slots.descriptors], tmp_path / "comes" / "commits")
            for reader in (newcomer.slots, of_worker):
                assert (reader.step(newcomer.slot), bytes(reader.read(newcomer.slot))) == (50, b"the newest")
            of_worker.close()
        finally:
            await trains.close()
            await newcomer.close()

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------ State


@pytest.fixture
def worker(slots: CommitSlots, tmp_path: Path) -> Any:
    """Makes this process a worker whose agent is the test; gives what was announced."""
    announced: list[Committed] = []
    told = threading.Event()

    def announce(commit: Committed) -> None:
        announced.append(commit)
        told.set()

    def join(newest: int = -1) -> list[Committed]:
        port = CommitPort(slots, newest, announce)
        folders = dict.fromkeys(("work_dir", "events_dir", "checkpoint_dir", "export_dir"), tmp_path)
        facts = {"run_id": "r", "generation": 0, "rank": 0, "world_size": 1, "local_rank": 0, "role": "chief"}
        contexts.set_current(WorkerContext(**facts, run_url="", commits=port, **folders))
        return announced

    yield join
    contexts.set_current(None)


@pytest.fixture(autouse=True)
def threads_may_stay(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker's process ends with its commit thread; here the thread is ended by its own error."""
    made: list[commits.CommitWriter] = []
    real = commits.CommitWriter.__init__

    def remember(self: Any, port: CommitPort) -> None:
        real(self, port)
        made.append(self)

    monkeypatch.setattr(commits.CommitWriter, "__init__", remember)
    yield
    for writer in made:
        writer.close()


def count(state: Any, data: Any, until: int | None = None) -> None:
    for _ in state.resume(data):
        state.total = state.total + 1
        state.commit(every=2)
        if state.batches == until:
            return


def test_state_resumes_from_the_commit_of_the_previous_worker(worker: Any, slots: CommitSlots) -> None:
    announced = worker()
    state = hopsml.elastic.State(total=0, table=np.zeros(3))
    data = hopsml.elastic.Sampler(20, 2, seed=1)
    count(state, data, until=5)
    state._writer.wait_written()
    assert [(commit.step, commit.parked) for commit in announced] == [(step, False) for step in (1, 2, 4)]
    worker(newest=announced[-1].slot)
    successor = hopsml.elastic.State(total=0, table=np.ones(3))
    again = hopsml.elastic.Sampler(20, 2, seed=1)
    first = next(iter(successor.resume(again)))
    assert (successor.total, successor.batches) == (4, 5) and not successor.table.any()
    reference = hopsml.elastic.Sampler(20, 2, seed=1)
    assert [list(reference.next_batch()) for _ in range(5)][-1] == list(first)


def in_three_loops(state: Any, until: int | None = None) -> list[list[int]]:
    """The batches of each loop; between two of them the function sets a value, as it does the first time."""
    given = list[list[int]]()
    for loop in range(3):
        state.trained, given = [], [*given, []]
        for batch in state.resume(hopsml.elastic.Sampler(6, 2, seed=loop)):
            given[-1].append(int(batch[0]))
            state.trained = [*state.trained, int(batch[0])]
            state.commit(every=1)
            if state.batches == until:
                state._writer.wait_written()
                return given
    return given


@pytest.mark.parametrize("done", [1, 2, 3, 4, 5, 8, 9])
def test_function_with_several_loops_resumes_in_the_interrupted_loop(worker: Any, done: int) -> None:
    worker()
    without_a_loss = in_three_loops(hopsml.elastic.State(trained=[]))
    announced = worker()
    before = in_three_loops(hopsml.elastic.State(trained=[]), until=done)
    worker(newest=announced[-1].slot)
    state = hopsml.elastic.State(trained=[])
    after = in_three_loops(state)
    before += [[]] * (3 - len(before))
    assert [one + other for one, other in zip(before, after, strict=True)] == without_a_loss
    assert (state.trained, state.batches) == (without_a_loss[-1], 9)


def test_second_state_is_refused_before_it_overwrites_the_first(worker: Any) -> None:
    worker()
    count(hopsml.elastic.State(total=0), hopsml.elastic.Sampler(4, 2))
    with pytest.raises(ArgumentError, match=r"another State, with the values total, .*call its resume\(\.\.\.\)"):
        next(iter(hopsml.elastic.State(other=0).resume(hopsml.elastic.Sampler(4, 2))))


@pytest.mark.parametrize("others", [1, 2, 3])
def test_newcomer_enters_the_loop_of_the_other_members(
    worker: Any, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """The newcomer starts in the second loop; the others have ended the first, or are within the second or third."""
    worker()
    theirs = hopsml.elastic.State(trained=[])
    done = {1: 3, 2: 4, 3: 8}[others]
    in_three_loops(theirs, until=done)
    given = elastic_state.ReceivedState(theirs._snapshot(), ())
    announced = worker()
    in_three_loops(hopsml.elastic.State(trained=[]), until=4)
    worker(newest=announced[-1].slot)
    newcomer = hopsml.elastic.State(trained=[])
    meetings = [given]
    monkeypatch.setattr(elastic_state.State, "_meet", lambda state: meetings.pop() if meetings else None)
    after = in_three_loops(newcomer)
    alone = after[1].pop(0)  # the batch alone
    assert newcomer.batches == 9 and alone in range(6)
    assert [len(loop) for loop in after] == [0, {1: 3, 2: 2, 3: 0}[others], {1: 3, 2: 3, 3: 1}[others]]


def test_state_is_committed_after_the_last_batch(worker: Any) -> None:
    announced = worker()
    count(hopsml.elastic.State(total=0), hopsml.elastic.Sampler(10, 2))
    assert announced[-1].step == 5 and not announced[-1].parked


@pytest.mark.parametrize("ends_itself", [True, False], ids=["exhausted", "left early"])
def test_worker_ends_only_after_its_last_commit_is_announced(
    slots: CommitSlots, worker: Any, ends_itself: bool
) -> None:
    """The writing thread is blocked between the commit and its announcement."""
    worker()
    context = contexts.current()
    assert context is not None and context.commits is not None
    history, is_there, waited_for = list[str](), threading.Event(), threading.Event()

    def announce(commit: Committed) -> None:
        if commit.step == 3:
            is_there.set()
            assert waited_for.wait(END_S)
            history.append("announced")

    port = CommitPort(slots, -1, announce)
    contexts.set_current(dataclasses.replace(context, commits=port))
    state = hopsml.elastic.State(total=0)
    wait = state._writer.wait_written

    def wait_and_say() -> None:
        waited_for.set()
        wait()

    state._writer.wait_written = wait_and_say
    for _ in state.resume(hopsml.elastic.Sampler(6 if ends_itself else 60, 2)):
        state.commit(every=3)
        if state.batches == 3:
            assert is_there.wait(END_S)
            if not ends_itself:
                break
    for complete in () if ends_itself else port.at_end:
        complete()
    history.append("ended")
    waited_for.set()
    state._writer.close()
    assert history == ["announced", "ended"]


def test_first_batch_is_committed_unless_an_agent_already_has_a_commit(worker: Any) -> None:
    def commits(newest: int = -1) -> list[int]:
        announced = worker(newest=newest)
        del announced[:]
        state = hopsml.elastic.State(total=0)
        for _ in state.resume(hopsml.elastic.Sampler(20, 2)):
            state.commit(every=1000)
            if state.batches == 3:
                break
        state._writer.wait_written()
        worker.slot = announced[-1].slot if announced else newest
        return [commit.step for commit in announced]

    assert commits() == [1]
    assert commits(worker.slot) == []


def test_state_without_a_run_is_a_plain_loop() -> None:
    state = hopsml.elastic.State(total=0)
    count(state, hopsml.elastic.Sampler(10, 3))
    assert state.total == 4 and state.commit() is False


def test_synchronous_write_is_complete_before_the_agent_is_notified(slots: CommitSlots) -> None:
    announced = threading.Event()
    array = np.arange(100_000)
    reference, content = weakref.ref(array), array.tobytes()
    writer = commits.CommitWriter(CommitPort(slots, -1, lambda *what: announced.wait()))
    writer.write(Snapshot(7, {"a": array}), at_once=True)
    del array
    assert reference() is None and slots.step(0) == 7
    assert commits.decode(slots.read(0)).arrays["a"].tobytes() == content
    assert writer.is_busy  # the agent, which may be blocked, has not been notified
    announced.set()
    writer.wait_written()


def test_error_in_a_synchronous_write_is_raised_by_that_call(slots: CommitSlots) -> None:
    writer = commits.CommitWriter(CommitPort(slots, -1, lambda *what: None))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(OSError):
            writer.write(Snapshot(7, {"a": np.zeros(1_000_000)}), at_once=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert slots.step(0) is None and not writer.is_busy
    writer.write(Snapshot(8, {"a": np.zeros(1_000)}), at_once=True)  # there is room again
    assert slots.step(0) == 8


def test_training_tries_both_commit_write_methods(worker: Any, slots: CommitSlots) -> None:
    announced = worker()
    state, methods = hopsml.elastic.State(total=0, table=np.zeros(100_000)), []
    for _ in state.resume(hopsml.elastic.Sampler(20, 2)):
        state.table[:] = state.total = state.batches
        methods.append(state._pace.is_synchronous)
        state.commit(every=1)
        at_once = state._writer.written == state.batches
        assert at_once or not methods[-1]
        state.table[:] = -1  # changes after a commit are not part of it
        state._writer.wait_written()
        found = commits.decode(slots.read(announced[-1].slot))
        assert (announced[-1].step, commits.unpickle(found.values["total"])) == (state.batches, state.batches)
        assert set(commits.unpickle(found.values["table"])) == {state.batches}
    assert methods[:8] == [False, False, True, True, True, False, False, False]


def test_value_that_cannot_be_pickled_is_named(worker: Any) -> None:
    worker()
    state = hopsml.elastic.State(lock=threading.Lock())
    with pytest.raises(ArgumentError, match=r"'lock'.*cannot be committed"):
        state.commit(every=1)


def test_state_too_large_for_memory_is_written_to_disk_with_one_message(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commits, "_ROOM", 1e-6)  # of the free memory: some kilobytes
    announced = worker()
    state = hopsml.elastic.State(total=0, ballast=bytes(3_000_000))
    count(state, hopsml.elastic.Sampler(8, 2), until=4)
    state._writer.wait_written()
    lines = [line for line in capsys.readouterr().out.splitlines() if "commit" in line]
    assert len(lines) == 1, lines  # at the first commit
    assert "a commit has 3 MB and two are stored, but only 0 MB of memory are available" in lines[0]
    assert "memoryOverhead" in lines[0]
    slot = announced[-1].slot
    assert (tmp_path / "slots" / f"slot-{slot}").stat().st_size > 3_000_000
    worker(newest=slot)
    successor = hopsml.elastic.State(total=0, ballast=b"")
    assert list(successor.resume(hopsml.elastic.Sampler(8, 2))) == []
    assert (successor.total, len(successor.ballast)) == (4, 3_000_000)


@pytest.mark.parametrize("name", ["commit", "resume", "batches", "_hidden"])
def test_state_refuses_value_names_that_are_its_methods(name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        hopsml.elastic.State(**{name: 1})


def test_state_with_other_values_than_the_commit_is_refused(worker: Any) -> None:
    announced = worker()
    count(hopsml.elastic.State(total=0), hopsml.elastic.Sampler(4, 2))
    worker(newest=announced[-1].slot)
    other = hopsml.elastic.State(total=0, more=1)
    with pytest.raises(ArgumentError, match=r"has the values \['total'\].*\['more', 'total'\]"):
        next(iter(other.resume(hopsml.elastic.Sampler(4, 2))))


def test_agent_stores_lower_steps_after_restart_from_before_a_corrupt_checkpoint(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path / "Experiments" / "app_1"))
    run.write_run({"name": "digits"})
    formation = Formation("run", 1, RunSpec(), b"", run.url, "", "", 1)

    async def stored(held: HeldCommits, step: int) -> None:
        slot = held.slots.find_free_slot(held.slot)
        held.slots.write(slot, step, [b"commit of step %d" % step])
        held.record_commit(step, slot)
        await held.persist_last(formation)

    async def scenario() -> None:
        held = HeldCommits("run", tmp_path / "agent", TOKEN, lambda told: None)
        try:
            for step in (100, 200, 300):
                await stored(held, step)
            Path(run.checkpoints, "step-000000300", "state.hopsml").write_bytes(b"COMMIT OF STEP 300")
            with pytest.raises(checkpoints.CorruptCheckpoint):
                checkpoints.fetch(run.checkpoints, 300, tmp_path / "resume")
            held.forget()
            for step in (210, 220):
                await stored(held, step)
            assert checkpoints.steps(run.checkpoints) == [200, 210, 220, 300]
            await stored(held, 300)
            assert checkpoints.latest_sound(run.checkpoints) == 300
            assert checkpoints.steps(run.checkpoints) == [210, 220, 300]
        finally:
            await held.close()

    asyncio.run(scenario())
