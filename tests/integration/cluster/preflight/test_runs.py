"""Tests of runs on local agents, one of which has a slot that fails the preflight."""

from __future__ import annotations

import resource
import subprocess
import threading
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.errors import ArgumentError, NotEnoughSlots
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit

pytestmark = pytest.mark.chaos  # real agents, some of which are hobbled
LIMITS = threading.Lock()


class Lowered:
    """The first ``count`` agents that are started get a limit of the system lowered."""

    def __init__(self, which: int, value: int, count: int) -> None:
        self.which, self.value, self.left = which, value, count
        self.started = 0

    def start(self, bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
        self.started += 1
        if self.left <= 0:
            return REAL_START(bootstrap, index)
        self.left -= 1
        with LIMITS:
            before = resource.getrlimit(self.which)
            resource.setrlimit(self.which, (self.value, before[1]))
            try:
                return REAL_START(bootstrap, index)
            finally:
                resource.setrlimit(self.which, before)


REAL_START = LocalBackend._start


@pytest.fixture
def lowered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lowered:
    found = Lowered(*request.param)
    monkeypatch.setattr(LocalBackend, "_start", staticmethod(found.start))
    return found


def soft_limits() -> tuple[int, int]:
    import resource as limits

    return limits.getrlimit(limits.RLIMIT_NOFILE)[0], limits.getrlimit(limits.RLIMIT_FSIZE)[0]


FILES = (resource.RLIMIT_NOFILE, 200)
SIZE = (resource.RLIMIT_FSIZE, 1 << 20)


@pytest.mark.parametrize("lowered", [(*FILES, 1)], indirect=True)
def test_warning_preflight_notes_the_slot_and_the_run_trains(store: Path, lowered: Lowered) -> None:
    run = submit(soft_limits)
    run.result(END_S)
    (note,) = [note for note in run.state.notes if note.startswith("preflight: ") and "open-file limit: 200" in note]
    assert (
        "open-file limit: 200, at least 260 are needed in a group of 2 workers" in note
        and "it is used nevertheless" in note
    )
    assert lowered.started == 2


@pytest.mark.parametrize(
    ("lowered", "figure"),
    [
        ((*FILES, 1), "open-file limit: 200, at least 260"),
        pytest.param((*SIZE, 1), "cannot be written: File too large", marks=pytest.mark.variant),
    ],
    indirect=["lowered"],
    ids=["open files", "disk"],
)
def test_enforcing_preflight_excludes_the_slot_and_trains_on_another(
    store: Path, lowered: Lowered, figure: str
) -> None:
    run = submit(soft_limits, preflight="enforce")
    files, size = run.result(END_S).value
    (note,) = [note for note in run.state.notes if note.startswith("preflight: ")]
    assert figure in note and "it is excluded" in note
    assert lowered.started == 3
    assert files >= 260 and size == resource.RLIM_INFINITY


@pytest.mark.parametrize("lowered", [(*FILES, 99)], indirect=True)
def test_run_whose_every_slot_fails_raises_not_enough_slots(store: Path, lowered: Lowered) -> None:
    with pytest.raises(NotEnoughSlots, match=r"slots failed the preflight.*open-file limit: 200"):
        submit(soft_limits, preflight="enforce").result(END_S)
    assert lowered.started <= 6


@pytest.mark.parametrize("lowered", [(*FILES, 1)], indirect=True)
def test_strict_preflight_ends_the_run_before_its_function_is_called(
    store: Path, tmp_path: Path, lowered: Lowered
) -> None:
    called = tmp_path / "called"
    run = submit(called.touch, preflight="strict")
    with pytest.raises(NotEnoughSlots, match=r"of 2 slots failed the preflight.*open-file limit: 200, at least 260"):
        run.result(END_S)
    assert lowered.started == 2 and not called.exists()
    assert any("(the run is refused)" in note for note in run.state.notes)


@pytest.mark.parametrize("lowered", [(*FILES, 1)], indirect=True)
def test_elastic_run_uses_the_good_slots_and_preflight_can_be_disabled(store: Path, lowered: Lowered) -> None:
    run = experiment.submit(soft_limits, min_workers=1, max_workers=2, progress=False, preflight="enforce")
    run.result(END_S)
    assert any("it is excluded" in note for note in run.state.notes)
    off = submit(soft_limits, preflight="off")
    off.result(END_S)
    assert not [note for note in off.state.notes if "preflight" in note]


def test_unknown_preflight_mode_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"preflight='maybe': it must be one of 'off', 'warn', 'enforce', 'strict'"):
        submit(soft_limits, preflight="maybe")
