"""Tests that tracebacks show the user's frames, without those of hopsml in between."""

from __future__ import annotations

import linecache
import traceback
from types import TracebackType

import pytest

from hopsml.core import tracebacks
from hopsml.errors import ArgumentError
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast


def names(found: TracebackType | None) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(found)]


def raised_in_hopsml() -> BaseException:
    def user_code() -> None:
        Searchspace(lr=("NOTHING", [1, 2]))

    with pytest.raises(ArgumentError) as caught:
        user_code()
    return caught.value


def called_back() -> BaseException:
    """The user's code, called by ours, called by the user's."""
    from hopsml.cluster.worker.returned import plain

    class Mine:
        def item(self) -> int:
            return self.broken()

        def broken(self) -> int:
            raise KeyError("mine")

        size = 1

    def user_code() -> None:
        plain(Mine())

    with pytest.raises(KeyError) as caught:
        user_code()
    return caught.value


def test_frames_of_ours_are_left_out_behind_the_users() -> None:
    error = raised_in_hopsml()
    assert len(names(error.__traceback__)) > 2
    assert names(tracebacks.of_user(error.__traceback__)) == ["raised_in_hopsml", "user_code"]


def test_what_ours_called_of_the_users_stays() -> None:
    error = called_back()
    assert names(error.__traceback__) != names(tracebacks.of_user(error.__traceback__))
    assert names(tracebacks.of_user(error.__traceback__)) == ["called_back", "user_code", "item", "broken"]


def test_a_workers_traceback_begins_in_the_users_code_and_then_holds_everything() -> None:
    from hopsml.cluster.worker import returned

    inner = called_back().__traceback__
    assert inner is not None and inner.tb_next is not None and inner.tb_next.tb_next is not None
    ours = inner.tb_next.tb_next  # as in a worker: the first frame is ours
    assert ours.tb_frame.f_code.co_filename == returned.__file__
    assert names(tracebacks.from_user(ours)) == ["item", "broken"]


def test_an_error_that_is_all_ours_keeps_its_traceback() -> None:
    error = raised_in_hopsml()
    ours = error.__traceback__
    while ours is not None and not tracebacks.is_own(ours.tb_frame.f_code.co_filename):
        ours = ours.tb_next
    assert ours is not None and tracebacks.from_user(ours) is ours and tracebacks.from_user(None) is None
    assert tracebacks.of_user(ours) is None


def test_a_line_of_a_notebooks_cell_is_added_and_what_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "/tmp/ipykernel_1/2.py"
    monkeypatch.setitem(linecache.cache, cell, (9, None, ["def train():\n", "    broken()\n"], cell))
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{cell}", line 2, in train\n'
        f'  File "{__file__}", line 1, in other\n'
        f'  File "{cell}", line 1, in known\n    def train():\n'
        f'  File "{cell}", line 99, in beyond\n'
        "KeyError: 1"
    )
    linecache.cache.pop(__file__, None)
    assert tracebacks.with_source(text) == text.replace("line 2, in train\n", "line 2, in train\n    broken()\n")
    assert tracebacks.with_source("") == ""
