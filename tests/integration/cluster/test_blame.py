"""Tests that the member that failed is blamed, not the first one that reported; with real workers."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import hopsml
from hopsml import experiment
from hopsml.errors import WorkerFailed
from hopsml.experiment import collective, plan
from hopsml.experiment.options import RunOptions
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.chaos


class VagueError(Exception):
    """Exception of a library that does not name the cause."""


def connected(folder: str, vague: bool = False, commit: bool = False) -> Any:
    """Rank 0 reads from rank 1, which is killed: rank 0 detects that before any other process."""
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    Path(folder, f"pid-{context.generation}-{context.rank}").write_text(str(os.getpid()))
    address = Path(folder, f"address-{context.generation}")
    if commit:
        state = hopsml.elastic.State(n=0)
        for _ in state.resume(hopsml.elastic.Sampler(2, 1)):
            state.n += 1
            state.commit(every=1)
        if context.generation:
            return {"n": state.n}
    if context.rank:
        wait_until(address.exists, "rank 0's address")
        other = socket.create_connection(("127.0.0.1", int(address.read_text())))
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its death is a reset
        Path(folder, f"connected-{context.generation}").touch()
        ballast = bytearray(os.urandom(1 << 20)) * 200  # so that its end takes the kernel a while
        time.sleep(600)
        return len(ballast)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address.with_suffix(".part").write_text(str(server.getsockname()[1]))
        address.with_suffix(".part").rename(address)
        connection, _ = server.accept()
    try:
        connection.recv(1)
    except OSError as error:
        if not vague:
            raise
        raise VagueError("the group is broken") from None if vague else error
    raise EOFError("rank 1 has hung up")


def kill_when_connected(folder: Path) -> None:
    wait_until((folder / "connected-0").exists, "the two are connected")
    os.kill(int((folder / "pid-0-1").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("vague", [pytest.param(False, marks=pytest.mark.variant), True])
def test_killed_worker_is_blamed_instead_of_its_neighbour(store: Path, tmp_path: Path, vague: bool) -> None:
    run = experiment.submit(connected, args={"folder": str(tmp_path), "vague": vague}, num_workers=2, progress=False)
    kill_when_connected(tmp_path)
    with pytest.raises(WorkerFailed, match=r"rank 1 of 2 .* failed first: killed by signal 9"):
        run.result(END_S)


def test_elastic_group_continues_and_notes_the_killed_worker(store: Path, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "vague": True, "commit": True}
    run = experiment.submit(connected, args=arguments, min_workers=2, max_workers=2, progress=False)
    kill_when_connected(tmp_path)
    assert run.result(END_S).metrics["n"] == 2
    assert any("rank 1: killed by signal 9" in note for note in run.state.notes), run.state.notes


# ---------------------------------------------------------------------------------------------- newcomers


def train_with_a_failing_newcomer(folder: str, whose_death: str) -> dict[str, int]:
    """With three members, one of them dies at once while the others wait for it in the collective."""
    place, server = Path(folder), f"server-{os.getppid()}"
    state = hopsml.elastic.State(n=0)
    data = hopsml.elastic.Sampler(4000, 1)
    for _ in state.resume(data):
        if data.world_size == 3:
            (place / "three").touch()
            if (place / server).exists() == (whose_death == "an old member's"):
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(600)
        (place / server).touch()
        time.sleep(0.01)
        state.n += 1
        state.commit(every=1)
        if Path(folder, "over").exists():
            break
    return {"n": state.n}


@pytest.mark.variant
@pytest.mark.parametrize("whose_death", ["the newcomer's", pytest.param("an old member's", marks=pytest.mark.variant)])
def test_fruitless_growth_does_not_end_a_healthy_group(store: Path, tmp_path: Path, whose_death: str) -> None:
    arguments = {"folder": str(tmp_path), "whose_death": whose_death}
    run = experiment.submit(train_with_a_failing_newcomer, args=arguments, min_workers=1, max_workers=3, progress=False)
    run.resize(2)
    wait_until(lambda: [m["step"] for m in run.status()["members"] if m["step"]], "the two are at work")
    assert not (tmp_path / "three").exists()
    run.resize(3)
    wait_until((tmp_path / "three").exists, "the third one")
    wait_until(
        lambda: any("the group continues as before" in note for note in run.state.notes), "a word of the newcomer's end"
    )
    wait_until(lambda: [m["step"] for m in run.status()["members"] if m["step"]], "the others go on")
    assert len(run.status()["members"]) == 2
    (tmp_path / "over").touch()
    assert run.result(END_S).metrics["n"] > 0


# ---------------------------------------------------------------------------------------------- stopped and departed members


def stop_rank_1(folder: str, elastic: bool) -> dict[str, int]:
    """Rank 1 is stopped before its first step, for ever."""
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    if context.rank == 1 and context.generation == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    if elastic:
        state = hopsml.elastic.State(n=0)
        for _ in state.resume(hopsml.elastic.Sampler(2, 1)):
            state.commit(every=1)
    wait_until(lambda: context.generation, "the next generation", 600)
    return {"n": context.generation}


def test_worker_stopped_before_its_first_step_is_replaced(store: Path, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "elastic": True}
    run = experiment.submit(stop_rank_1, args=arguments, min_workers=2, max_workers=2, progress=False)
    assert run.result(END_S).metrics["n"] == 1
    assert any("rank 1: its process has been stopped (SIGSTOP) for 5 s" in note for note in run.state.notes)


def exit_rank_1(folder: str) -> None:
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    if context.rank == 1:
        sys.exit(0)
    time.sleep(600)


@pytest.mark.parametrize(
    "group", [{"num_workers": 2}, pytest.param({"min_workers": 2, "max_workers": 2}, marks=pytest.mark.variant)]
)
def test_rank_that_calls_sys_exit_is_named_when_the_others_wait_for_it(
    store: Path, tmp_path: Path, group: dict[str, int]
) -> None:
    made = collective.build(RunOptions(exit_rank_1, args={"folder": str(tmp_path)}, progress=False, **group))
    sooner = replace(made.spec, group=replace(made.spec.group, exited_s=6.0))
    run = plan.start(dataclasses.replace(made, spec=sooner))
    with pytest.raises(WorkerFailed, match=r"rank 1 of 2 .*called sys.exit\(0\), and rank 0 has done nothing for 6 s"):
        run.result(END_S)
    assert any("rank 1 called sys.exit(0) while rank 0 still works" in note for note in run.state.notes)


def close_descriptors() -> None:
    os.closerange(3, 1000)


def test_worker_with_closed_descriptors_fails_with_an_unsent_result(store: Path) -> None:
    with pytest.raises(WorkerFailed, match="the training function has ended, but its result could not be sent"):
        experiment.collective_all_reduce(close_descriptors, num_workers=1, progress=False)
