"""Tests of what is read from /proc about any process of the host."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from hopsml.core import processes
from hopsml.storage import python_child

pytestmark = pytest.mark.fast
NAMED = r"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"


@pytest.mark.parametrize("name", [b"\xc3(x)", b"caf\xc3", b") R 1 (", b"a b"])
def test_process_with_an_undecodable_name_is_handled_like_any_other(name: bytes) -> None:
    """Any user of the host may have one; it broke the end of agents and of workers."""
    command = [sys.executable, "-c", NAMED.format(name=name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        assert process.pid in processes.children_of(os.getpid())
        assert not processes.has_ended(process.pid) and not processes.is_stopped(process.pid)
        started = processes.start_time_of(process.pid)
        assert started is not None and started >= (processes.start_time_of(os.getpid()) or 0)
        process.communicate()
    assert processes.has_ended(process.pid) and processes.start_time_of(process.pid) is None


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (34, "SIGRTMIN"), (37, "SIGRTMIN+3"), (32, "signal 32")])
def test_each_signal_that_ends_a_process_has_a_name(number: int, name: str) -> None:
    assert processes.signal_name(number) == name
    assert name in processes.describe_exit(number)  # a wait status


def test_child_and_process_by_id_write_no_core_files(monkeypatch: pytest.MonkeyPatch) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    program = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (hard, hard))
        processes.write_no_core_dumps(process.pid)
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, hard)
        process.kill()
    module = "hopsml.core.versions"  # any that ends at once, or has a process to look at until then
    started: list[int] = []
    monkeypatch.setattr(python_child, "write_no_core_dumps", started.append)
    with python_child.start(module) as child:
        assert started == [child.pid]
