"""Tests of the choice between display and plain lines."""

from __future__ import annotations

import io
import sys

import pytest

from hopsml.cluster.driver.run_state import RunState
from hopsml.errors import ArgumentError
from hopsml.experiment import progress
from hopsml.notebook import display

pytestmark = pytest.mark.fast

KERNEL, TERMINAL = {"ZMQInteractiveShell", "InteractiveShell"}, {"TerminalInteractiveShell", "InteractiveShell"}
TO_FRONT_END, CAPTURED = {"ZMQDisplayPublisher", "DisplayPublisher"}, {"CapturingDisplayPublisher", "DisplayPublisher"}


@pytest.mark.parametrize(
    ("shell", "publisher", "setting", "live"),
    [
        (KERNEL, TO_FRONT_END, "", True),
        (KERNEL | {"SpyderShell"}, TO_FRONT_END, "auto", True),
        (KERNEL, TO_FRONT_END, "display", True),
        (KERNEL, TO_FRONT_END, "lines", False),
        (KERNEL, CAPTURED, "", False),  # %%capture
        (TERMINAL, {"DisplayPublisher"}, "display", False),
        ({"NoneType", "object"}, {"NoneType", "object"}, "", False),  # a script, Livy
    ],
)
def test_display_is_used_only_in_a_kernel_whose_output_reaches_a_front_end(
    shell: set[str], publisher: set[str], setting: str, live: bool
) -> None:
    assert display.permits_live_display(shell, publisher, setting) is live


def test_unknown_progress_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"HOPSML_PROGRESS='html'.*auto, display, lines"):
        display.permits_live_display(KERNEL, TO_FRONT_END, "html")


def test_unknown_progress_setting_is_refused_before_the_start(store, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml import experiment

    monkeypatch.setenv("HOPSML_PROGRESS", "html")
    with pytest.raises(ArgumentError, match="HOPSML_PROGRESS"):
        experiment.submit(lambda: 1)
    assert not store.exists()


def test_process_outside_a_notebook_prints_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not display.is_live()
    assert isinstance(progress.run_observer_maker()(RunState("app_1", 2), "digits", "/runs/app_1"), progress.RunLines)
