"""Tests of MPI programs as tasks of a job: ranks are children of workers, a failed one is the cause, and none remains."""

from __future__ import annotations

import ctypes.util
import os
import shutil
from pathlib import Path

import psutil
import pytest

from hopsml.core.states import Lifecycle
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.test_job_service import WAIT_S, JobService, service

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(
        shutil.which("mpiexec.hydra") is None or ctypes.util.find_library("mpich") is None,
        reason="no MPICH: apt-get install -y --no-install-recommends mpich",
    ),
]
__all__ = ["service"]

# A program without Python bindings for MPI; the constants are those of MPICH's mpi.h.
PROGRAM = """
import ctypes, ctypes.util, os, sys, time
mpi = ctypes.CDLL(ctypes.util.find_library("mpich"))
WORLD, INT, SUM = 0x44000000, 0x4C000405, 0x58000003
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, INT, SUM, WORLD)
mode, folder = sys.argv[1:]
print(f"rank {rank.value} of {size.value}: {total.value} {os.environ['LEVEL']}", flush=True)
open(f"{folder}/rank-{rank.value}", "w").write(f"{os.getpid()} {os.getcwd()} {os.environ['RANK']}")
if mode == "fail" and rank.value == 1:
    raise ValueError("no data")
while mode == "hang":
    time.sleep(0.05)
mpi.MPI_Finalize()
"""


def submit(service: JobService, mode: str) -> Path:
    """Write the file of a job of two ranks."""
    (service.code / "ring.py").write_text(PROGRAM)
    path = service.code / f"{mode}.yaml"
    path.write_text(
        f"name: ring-{mode}\ntasks: {{main: {{command: [python, ring.py, {mode}, {service.jobs}], framework: mpi, "
        "count: 2, env: {LEVEL: '3'}}}\n"
    )
    return path


def ranks(service: JobService) -> list[list[str]]:
    """Return process id, folder and hopsml's rank of each rank."""
    files = [service.jobs / f"rank-{rank}" for rank in range(2)]
    return [path.read_text().split() for path in files if path.exists()]


def test_ranks_of_an_mpi_program_are_workers_of_the_job(service: JobService) -> None:
    client = service.start(cores=2)
    job = client.submit(submit(service, "end"))
    ended = client.wait(job.id, 2 * WAIT_S)
    assert ended.state == Lifecycle.FINISHED, (ended.cause, client.log(job.id)[0])
    found = ranks(service)
    assert [rank for _, _, rank in found] == ["0", "1"] and len({folder for _, folder, _ in found}) == 2
    for rank in range(2):
        assert list(client.rank_log(job.id, rank)) == [f"rank {rank} of 2: 1 3"], "each worker's log has its own rank"
    service.stop()


def test_failed_rank_is_the_cause_and_no_rank_remains(service: JobService) -> None:
    client = service.start(cores=2)
    job = client.submit(submit(service, "fail"))
    ended = client.wait(job.id, 2 * WAIT_S)
    assert ended.state == Lifecycle.FAILED, client.log(job.id)[0]
    assert "rank 1" in client.log(job.id)[0] and "ValueError: no data" in ended.cause
    for process, _, _ in ranks(service):
        wait_until(lambda process=process: not psutil.pid_exists(int(process)), "the end of all ranks")
    service.stop()


def test_cancelled_mpi_program_leaves_no_process(service: JobService) -> None:
    client = service.start(cores=2)
    job = client.submit(submit(service, "hang"))
    wait_until(lambda: len(ranks(service)) == 2 or client.job(job.id).state.is_final, "both ranks")
    assert not client.job(job.id).state.is_final, client.log(job.id)[0]
    of_job = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "mpiexec.hydra"]
    own = [process for process in of_job if process.uids().real == os.getuid()]
    client.cancel(job.id)
    assert client.wait(job.id, WAIT_S).state == Lifecycle.CANCELLED
    for process, _, _ in ranks(service):
        wait_until(lambda process=process: not psutil.pid_exists(int(process)), "the end of all ranks")
    wait_until(lambda: not any(process.is_running() for process in own), "the end of Hydra")
    service.stop()
