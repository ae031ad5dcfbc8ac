"""Ranks of an MPI program as children of hopsml's workers, over the manual launcher of MPICH's Hydra.

Rank 0 starts ``mpiexec.hydra -launcher manual``, which prints the command of a proxy for each worker and waits for them.
Each worker runs its proxy, which starts one rank in the worker's folder, with the worker's variables and output streams.
A rank ends with the exit status of its program also where Hydra would wait for other ranks.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hopsml.core.commands import CommandFailed, run_command
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.training import distributed

_LAUNCHER = "mpiexec.hydra"
_BEGIN, _END = "HYDRA_LAUNCH: ", "HYDRA_LAUNCH_END"
_FOLDER, _STATUS = "MPIRANK_FOLDER", "MPIRANK_STATUS"
# The proxy, with the worker's output streams as 7 and 8, since Hydra would send those of the rank to rank 0's worker.
_PROXY = f'"$@" 7>&1 8>&2 </dev/null; read -r status <"${_STATUS}" && exit "$status"; exit 1'
_RANK = f'cd "${_FOLDER}" || exit; "$0" "$@" >&7 2>&8 7>&- 8>&-; status=$?; echo $status >"${_STATUS}"; exit $status'


def run_ranks(line: Sequence[str], shown: str, variables: Mapping[str, str], folder: Path) -> None:
    """Run one rank of an MPI program for this worker, to its end; all workers of the group must call it.

    Args:
        line: Command of the program, the same on all workers.
        shown: The command as it is named in an error.
        variables: Environment variables of this worker's rank.
        folder: Working directory of this worker's rank.

    Raises:
        ArgumentError: MPICH is not installed where rank 0 runs, or does not start.
        CommandFailed: The rank of this worker has failed, or Hydra has.
    """
    with contextlib.ExitStack() as stack:
        proxies, problem = [], ""
        hydra: subprocess.Popen[str] | None = None
        if distributed.rank() == 0:
            try:
                hydra = stack.enter_context(_launcher(line, distributed.world_size()))
                proxies = _proxies(hydra)
            except ArgumentError as error:
                problem = str(error)
        proxies, problem = distributed.exchange((proxies, problem))[0]
        if problem:
            raise ArgumentError(problem)
        status = os.memfd_create("hopsml-mpi-status")  # a file would remain if this process is killed
        stack.callback(os.close, status)
        told = {**variables, _FOLDER: str(folder.absolute()), _STATUS: f"/proc/{os.getpid()}/fd/{status}"}
        run_command(("/bin/sh", "-c", _PROXY, "sh", *proxies[distributed.rank()]), shown, told, folder)
        if hydra is not None and hydra.wait():
            raise CommandFailed(hydra.returncode, shown, "")


@contextlib.contextmanager
def _launcher(line: Sequence[str], ranks: int) -> Iterator[subprocess.Popen[str]]:
    """Start Hydra for a number of ranks, one on each of as many hosts, and kill it in the end if it still runs.

    Names of hosts are not looked up by the manual launcher: with a name of its own each worker has its own proxy.
    """
    hosts = ",".join(f"worker-{rank}" for rank in range(ranks))
    options = ("-launcher", "manual", "-localhost", distributed.host(), "-genvnone", "-wdir", "/", "-ppn", "1")
    port_range = SETTINGS.port_range
    ports = {"MPIEXEC_PORT_RANGE": f"{port_range[0]}:{port_range[1]}"} if port_range else {}
    command = (_LAUNCHER, *options, "-n", str(ranks), "-hosts", hosts, "/bin/sh", "-c", _RANK, *line)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env={**os.environ, **ports}
        )
    except FileNotFoundError:
        raise ArgumentError(
            f"framework: mpi needs {_LAUNCHER} of MPICH on each node, and it is not in PATH of the first worker; install "
            "MPICH there (Debian: apt-get install mpich)"
        ) from None
    with process:  # closes its output
        try:
            yield process
        finally:
            process.kill()  # it ignores SIGTERM while it waits


def _proxies(hydra: subprocess.Popen[str]) -> list[list[str]]:
    """Return the command of each rank's proxy, from the output of Hydra."""
    assert hydra.stdout is not None
    found: list[list[str]] = []
    for text in hydra.stdout:
        if text.startswith(_END):
            return found
        if text.startswith(_BEGIN):
            found.append(shlex.split(text.removeprefix(_BEGIN)))
    raise ArgumentError(
        f"{_LAUNCHER} has ended with status {hydra.wait()} before it had started; see the log of rank 0"
    )
