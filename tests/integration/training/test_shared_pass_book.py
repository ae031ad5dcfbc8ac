"""Tests of the pass counter in shared memory: a unique number for each process and thread."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
from itertools import pairwise
from typing import Any

import pytest

from hopsml.training.torch.input_batches import SharedPasses
from tests.helpers.clock import END_S
from tests.unit.training.test_pass_book import of

pytestmark = pytest.mark.local


def run_in_fork(function: Any) -> int:
    """Return the function's result from a forked child, passed as exit status."""
    pid = os.fork()
    if not pid:
        os._exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_process_and_its_parent_share_the_pass_counter() -> None:
    book = SharedPasses()
    assert book.begin_pass(None) == 0
    assert run_in_fork(lambda: book.begin_pass(of(7, 0))) == 1
    assert run_in_fork(lambda: book.begin_pass(of(7, 1))) == 1
    assert book.begin_pass(None) == 2


def put(book: SharedPasses, answers: Any) -> None:
    answers.put(book.begin_pass(of(7, 0)))


def test_spawned_process_shares_the_pass_counter() -> None:
    context = multiprocessing.get_context("spawn")
    book, answers = SharedPasses(4), context.Queue()
    process = context.Process(target=put, args=(book, answers))
    process.start()
    assert answers.get(timeout=END_S) == 4
    process.join(END_S)
    assert process.exitcode == 0 and book.begin_pass(of(7, 1)) == 4
    answers.close()
    answers.join_thread()


def test_copied_pass_counter_is_independent() -> None:
    book = SharedPasses()
    book.begin_pass(None)
    other = copy.deepcopy(book)
    assert [other.begin_pass(None), other.begin_pass(None), book.begin_pass(None)] == [1, 2, 1]


def test_threads_of_one_process_have_different_pass_numbers() -> None:
    book, found = SharedPasses(), list[int]()
    threads = [
        threading.Thread(target=lambda: found.extend(book.begin_pass(None) for _ in range(50))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one < other for one, other in pairwise(sorted(found))) and len(found) == 200


def test_deleted_pass_counter_releases_its_memory() -> None:
    before = set(os.listdir("/proc/self/fd"))
    book = SharedPasses()
    book.begin_pass(None)
    del book
    assert set(os.listdir("/proc/self/fd")) == before
