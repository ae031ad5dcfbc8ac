"""Tests of the measurement of a process's unshared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import unique_memory
from benchmarks.unique_memory import MIB, Unique

pytestmark = pytest.mark.fast

SMAPS = """55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Private_Clean:         0 kB
Private_Dirty:       128 kB
7f1200000000-7f1200400000 r-xp 00001000 fe:00 1234                       /lib/a b.so
Private_Clean:      1024 kB
Private_Dirty:         4 kB
7f1200400000-7f1200500000 r--p 00401000 fe:00 1234                       /lib/a b.so
Private_Clean:       512 kB
Private_Dirty:         0 kB
"""


def test_unique_pages_are_summed_by_file():
    found = unique_memory.parse(SMAPS)
    assert found.dirty == 132 * 1024
    assert found.clean["/lib/a b.so"] == 1536 * 1024


def test_unique_memory_equals_that_of_psutil():
    own = psutil.Process().memory_full_info().uss / MIB
    assert unique_memory.of_process(os.getpid()).total_mb == pytest.approx(own, abs=3)


def test_library_mapped_by_another_process_does_not_count_as_released():
    before = Unique(10 * MIB, {"/lib/numpy.so": 30 * MIB})
    after = Unique(14 * MIB, {"/lib/numpy.so": 0, "/lib/new.so": 2 * MIB})
    assert after.total_mb - before.total_mb == -24
    assert after.added_mb(before) == 6


WRITING = """
import mmap, os
from benchmarks import unique_memory
before = unique_memory.of_process(os.getpid())
with mmap.mmap(-1, 16 * unique_memory.MIB) as memory:
    memory.write(b"x" * (16 * unique_memory.MIB))
    print(unique_memory.of_process(os.getpid()).added_mb(before))
"""


def test_written_memory_is_measured():
    assert output_of_new_process(WRITING) == pytest.approx(16, abs=2)


SHARING = """
import gc, mmap, os
from benchmarks import unique_memory
MIB = unique_memory.MIB
with mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE) as memory:
    memory.write(b"x" * (16 * MIB))
    gc.collect()
    gc.disable()  # it writes to every object, in either process, and what is written is no longer shared
    alone = unique_memory.of_family([os.getpid()])
    held, child = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(child)
        os.read(held, 1)
        os._exit(0)
    os.close(held)
    try:
        print(unique_memory.of_family([os.getpid(), pid]) - alone)
    finally:
        os.close(child)
        os.waitpid(pid, 0)
"""


def test_page_shared_with_a_child_counts_once():
    assert output_of_new_process(SHARING) == pytest.approx(0, abs=4 * MIB)


def output_of_new_process(program: str) -> float:
    """Return the number printed by a new process: a large one, such as pytest's, would disturb the measurement."""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, text=True, capture_output=True, check=True)
    return float(done.stdout)
