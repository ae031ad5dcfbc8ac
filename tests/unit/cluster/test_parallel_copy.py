"""Tests that several threads copy large memory completely, and all end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from hopsml.cluster.shared import commit_slots
from tests.helpers.clock import END_S


@pytest.mark.fast
@pytest.mark.parametrize("size", [1, 1_999_999, 4_000_000, 4_000_001, 9_999_937])
@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_parallel_copy_copies_each_byte(size: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 2, np.uint8)
    commit_slots.copy_in_parallel(target[1:-1], source)
    assert np.array_equal(target[1:-1], source)
    assert target[0] == target[-1] == 0
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hopsml-copy")]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("size", "cores", "threads"), [(100_000_000, 2, 2), (100_000_000, 64, 4), (100_000_000, 1, 1), (3_000_000, 64, 1)]
)
def test_parallel_copy_uses_one_thread_per_core_up_to_four(
    size: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    copyto = np.copyto
    together = threading.Barrier(threads)

    def watched(target: np.ndarray, source: np.ndarray) -> None:
        seen.add(threading.get_ident())
        together.wait(END_S)  # a thread that has ended could lend its number, or its work, to another part
        copyto(target, source)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(np, "copyto", watched)
    commit_slots.copy_in_parallel(np.empty(size, np.uint8), np.zeros(size, np.uint8))
    assert len(seen) == threads


@pytest.mark.fast
def test_error_in_a_copying_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()

    def failing(target: np.ndarray, source: np.ndarray) -> None:
        if threading.get_ident() != here:
            raise MemoryError("no memory")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(np, "copyto", failing)
    with pytest.raises(MemoryError, match="no memory"):
        commit_slots.copy_in_parallel(np.empty(8_000_000, np.uint8), np.empty(8_000_000, np.uint8))


@pytest.mark.fast
def test_one_thread_copies_all_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(threading.Thread, "start", refused)
    source, target = np.arange(9_000_000).astype(np.uint8), np.zeros(9_000_000, np.uint8)
    commit_slots.copy_in_parallel(target, source)
    assert np.array_equal(target, source)


AT_THE_END = """
import os, threading
import numpy as np
from hopsml.cluster.shared import commit_slots

os.sched_getaffinity = lambda pid: {0, 1}

def last() -> None:
    threading.main_thread().join()
    target = np.zeros(8_000_000, np.uint8)
    commit_slots.copy_in_parallel(target, np.ones(8_000_000, np.uint8))
    print("copied", target.all())

threading.Thread(target=last).start()
"""


@pytest.mark.local
def test_parallel_copy_works_while_the_interpreter_exits() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=END_S)
    assert ended.stdout == "copied True\n", ended.stderr
