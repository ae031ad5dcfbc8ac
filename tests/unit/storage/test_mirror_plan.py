"""Tests of the mirror's decisions, without disk, clock or store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.storage import mirror_plan
from hopsml.storage.mirror_plan import (
    Behind,
    CommitCheckpoint,
    CopyFile,
    Listing,
    LocalFile,
    MirrorState,
    behind,
    failed,
    forget_gone,
    plan,
    succeeded,
)

pytestmark = pytest.mark.fast

SECOND = 10**9
LOG = LocalFile("logs/g0-rank0.log", 100, 50 * SECOND, 1)
MODEL = LocalFile("export/model.keras", 100, 50 * SECOND, 2)


def at(file: LocalFile, length: int, modified_s: float) -> LocalFile:
    return LocalFile(file.path, length, int(modified_s * SECOND), file.inode)


def paths(
    listing: Listing,
    state: MirrorState,
    now_s: float = 100.0,
    wall_s: float = 1000.0,
    busy: tuple[str, ...] = (),
    urgent: bool = False,
) -> list[str]:
    return [action.path for action in plan(listing, state, busy, now_s, int(wall_s * SECOND), urgent)]


def done(state: MirrorState, file: LocalFile, now_s: float = 100.0, took_s: float = 0.01) -> None:
    succeeded(state, CopyFile(file), now_s, took_s)


@pytest.mark.parametrize(
    ("path", "grows"),
    [
        ("events/events.out.tfevents.17.host", True),
        ("logs/g0-rank0.log", True),
        ("metrics.jsonl", True),
        ("history.csv", True),
        ("stdout.out", True),
        ("stderr.err", True),
        ("export/model.keras", False),
        ("checkpoints/checkpoint", False),
        ("tfevents.dir/model.h5", False),
    ],
)
def test_which_files_grow(path: str, grows: bool) -> None:
    assert LocalFile(path, 1, 1, 1).grows is grows


def test_what_is_new_is_copied_once_and_again_when_it_changed() -> None:
    state = MirrorState()
    assert paths(Listing((LOG,)), state) == [LOG.path]
    assert paths(Listing((LOG,)), state, busy=(LOG.path,)) == []
    done(state, LOG)
    assert paths(Listing((LOG,)), state, now_s=200) == []
    longer = at(LOG, 120, 60)
    assert paths(Listing((longer,)), state, now_s=200) == [LOG.path]
    replaced = LocalFile(LOG.path, 100, LOG.modified_ns, 99)
    assert paths(Listing((replaced,)), state, now_s=200) == [LOG.path]


def test_a_growing_file_is_not_copied_all_the_time() -> None:
    state, longer = MirrorState(), at(LOG, 120, 60)
    done(state, LOG, now_s=100.0)
    assert paths(Listing((longer,)), state, now_s=100.0 + mirror_plan.GROWING_PAUSE_S - 0.1) == []
    assert paths(Listing((longer,)), state, now_s=100.0 + mirror_plan.GROWING_PAUSE_S) == [LOG.path]
    assert paths(Listing((longer,)), state, now_s=100.1, urgent=True) == [LOG.path]
    long, grown = at(LOG, 10**9, 50), at(LOG, 10**9 + 1, 60)
    done(state, long, now_s=100.0, took_s=3.0)
    assert paths(Listing((grown,)), state, now_s=159) == []  # 3 s of copying: at most a twentieth of the time
    assert paths(Listing((grown,)), state, now_s=160) == [LOG.path]


def test_only_a_long_file_is_copied_the_less_often_the_longer_it_takes() -> None:
    for length, due_s in ((mirror_plan.LONG_BYTES, mirror_plan.GROWING_PAUSE_S), (mirror_plan.LONG_BYTES + 1, 60.0)):
        state, grown = MirrorState(), at(LOG, length + 1, 60)
        done(state, at(LOG, length, 50), now_s=100.0, took_s=3.0)
        assert paths(Listing((grown,)), state, now_s=100.0 + due_s - 0.1) == []
        assert paths(Listing((grown,)), state, now_s=100.0 + due_s) == [LOG.path]


def test_other_files_wait_until_they_rest() -> None:
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=50.5) == []
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=51.0) == [MODEL.path]
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=50.5, urgent=True) == [MODEL.path]


def test_a_checkpoint_is_committed_once() -> None:
    state, listing = MirrorState(), Listing((), ("checkpoints/step-000000001",))
    assert plan(listing, state, (), 0, 0, False) == [CommitCheckpoint("checkpoints/step-000000001")]
    succeeded(state, CommitCheckpoint("checkpoints/step-000000001"), 1, 1)
    assert plan(listing, state, (), 0, 0, True) == []


def test_a_checkpoint_that_failed_is_tried_again_later_and_says_why() -> None:
    step = "checkpoints/step-000000001"
    state, listing = MirrorState(), Listing((), (step,))
    assert behind(listing, state) == [Behind(step, "not copied yet")]
    for _ in range(2):
        failed(state, CommitCheckpoint(step), 100.0, "quota", transient=False)
    assert behind(listing, state) == [Behind(step, "quota")]
    assert paths(listing, state, now_s=101.9) == [] and paths(listing, state, now_s=102.0) == [step]
    assert paths(listing, state, now_s=100.9, urgent=True) == [] and paths(listing, state, now_s=101.0, urgent=True)
    forget_gone(state, listing)
    assert step in state.failures
    succeeded(state, CommitCheckpoint(step), 103.0, 1.0)
    assert behind(listing, state) == [] == paths(listing, state) and not state.failures
    failed(state, CommitCheckpoint(step), 104.0, "quota", transient=False)
    assert state.failures[step].count == 1  # the first in a row


def test_short_files_go_first_and_checkpoints_last() -> None:
    big = LocalFile("logs/big.log", 10**9, 0, 3)
    listing = Listing((big, LOG), ("checkpoints/step-000000001",))
    assert paths(listing, MirrorState()) == [LOG.path, big.path, "checkpoints/step-000000001"]


def test_a_lasting_failure_is_tried_again_ever_later_and_hinders_no_other() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    now_s = 100.0
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        failed(state, CopyFile(MODEL), now_s, "quota", transient=False)
        assert paths(listing, state, now_s=now_s + delay_s - 0.01) == [LOG.path]
        assert paths(listing, state, now_s=now_s + 1, urgent=True) == [LOG.path, MODEL.path]
        now_s += delay_s
        assert MODEL.path in paths(listing, state, now_s=now_s)
    assert behind(listing, state) == [Behind(LOG.path, "not copied yet"), Behind(MODEL.path, "quota")]
    done(state, MODEL)
    assert behind(listing, state) == [Behind(LOG.path, "not copied yet")]


def test_an_outage_stops_everything_but_one_probe() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    failed(state, CopyFile(LOG), 100.0, "refused", transient=True)
    failed(state, CopyFile(MODEL), 100.1, "refused", transient=True)  # was under way at the same time
    assert paths(listing, state, now_s=100.9) == []
    assert paths(listing, state, now_s=101.2) == [LOG.path]
    assert paths(listing, state, now_s=101.2, busy=(LOG.path,)) == []
    failed(state, CopyFile(LOG), 102.0, "refused", transient=True)
    assert paths(listing, state, now_s=103.9) == []
    assert paths(listing, state, now_s=103.0, urgent=True) == [LOG.path]
    assert {late.reason for late in behind(listing, state)} == {"refused"}
    other = LocalFile("logs/new.log", 1, 0, 9)  # which was never tried
    assert behind(Listing((other,)), state) == [Behind(other.path, "refused")]
    done(state, LOG, now_s=104)
    assert paths(listing, state, now_s=104) == [MODEL.path]


def test_what_failed_in_an_outage_is_copied_as_soon_as_the_store_is_back() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    for now_s in (100.0, 110.0, 120.0, 130.0):
        failed(state, CopyFile(MODEL), now_s, "refused", transient=True)
    done(state, LOG, now_s=131.0)
    assert paths(listing, state, now_s=131.0) == [MODEL.path]  # at once: time has mended it


def test_an_outage_is_probed_later_and_later_and_copies_under_way_at_once_count_as_one() -> None:
    state, listing, now_s = MirrorState(), Listing((LOG,)), 100.0
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        failed(state, CopyFile(LOG), now_s, "refused", transient=True)
        failed(state, CopyFile(MODEL), now_s + mirror_plan.TOGETHER_S - 0.1, "refused", transient=True)
        assert paths(listing, state, now_s=now_s + mirror_plan.TOGETHER_S + delay_s - 0.2) == []
        now_s += mirror_plan.TOGETHER_S - 0.1 + delay_s
        assert paths(listing, state, now_s=now_s) == [LOG.path]
    failed(state, CopyFile(LOG), now_s, "refused", transient=True)
    before = state.outage
    failed(state, CopyFile(LOG), now_s + mirror_plan.TOGETHER_S, "refused", transient=True)
    assert before is not None and state.outage is not None and state.outage.transient
    assert state.outage.count == before.count + 1


def test_a_lasting_failure_is_no_outage() -> None:
    state = MirrorState()
    failed(state, CopyFile(MODEL), 100.0, "quota", transient=False)
    assert state.outage is None
    failed(state, CopyFile(LOG), 100.0, "refused", transient=True)
    forget_gone(state, Listing((LOG, MODEL)))
    assert state.outage is not None and len(state.failures) == 2
    forget_gone(state, Listing((), (MODEL.path,)))
    assert list(state.failures) == [MODEL.path]


def test_what_disappears_from_disk_is_forgotten() -> None:
    state = MirrorState()
    done(state, LOG)
    failed(state, CopyFile(MODEL), 100, "refused", transient=True)
    forget_gone(state, Listing())
    assert (state.copied, state.failures, state.outage) == ({}, {}, None)
    assert paths(Listing((LOG,)), state) == [LOG.path]


EVENTS = st.lists(st.tuples(st.sampled_from(["grow", "ok", "fail", "down", "tick"]), st.integers(0, 2)), max_size=60)


@given(EVENTS)
def test_whatever_happens_it_catches_up_once_the_store_works(events: list[tuple[str, int]]) -> None:
    state, files, now_s = MirrorState(), {0: LOG, 1: MODEL, 2: LocalFile("x", 0, 0, 3)}, 0.0
    for kind, which in events:
        now_s += 0.3
        file = files[which]
        if kind == "grow":
            files[which] = at(file, file.length + 1, file.modified_ns / SECOND + 1)
        elif kind == "ok":
            done(state, file, now_s)
        elif kind in ("fail", "down"):
            failed(state, CopyFile(file), now_s, kind, transient=kind == "down")
    listing = Listing(tuple(files.values()))
    for _ in range(100):
        now_s += 1
        for action in plan(listing, state, (), now_s, 10**18, False):
            succeeded(state, action, now_s, 0.01)
    assert behind(listing, state) == []
    assert plan(listing, state, (), now_s, 10**18, True) == []
