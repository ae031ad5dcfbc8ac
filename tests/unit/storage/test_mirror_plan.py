"""Tests of the mirror's decisions, without disk, clock or store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.storage import mirror_plan
from hopsml.storage.mirror_plan import (
    CommitCheckpoint,
    CopyFile,
    Listing,
    LocalFile,
    MirrorState,
    PathBehind,
    forget_deleted_paths,
    paths_behind,
    plan,
    record_failure,
    record_success,
)

pytestmark = pytest.mark.fast

SECOND = 10**9
LOG = LocalFile("logs/g0-rank0.log", 100, 50 * SECOND, 1)
MODEL = LocalFile("export/model.keras", 100, 50 * SECOND, 2)


def changed_file(file: LocalFile, length: int, modified_s: float) -> LocalFile:
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


def mark_copied(state: MirrorState, file: LocalFile, now_s: float = 100.0, took_s: float = 0.01) -> None:
    record_success(state, CopyFile(file), now_s, took_s)


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
def test_growing_files_are_recognised_by_name(path: str, grows: bool) -> None:
    assert LocalFile(path, 1, 1, 1).is_append_only is grows


def test_mirror_copies_a_new_file_once_and_again_after_a_change() -> None:
    state = MirrorState()
    assert paths(Listing((LOG,)), state) == [LOG.path]
    assert paths(Listing((LOG,)), state, busy=(LOG.path,)) == []
    mark_copied(state, LOG)
    assert paths(Listing((LOG,)), state, now_s=200) == []
    longer = changed_file(LOG, 120, 60)
    assert paths(Listing((longer,)), state, now_s=200) == [LOG.path]
    replaced = LocalFile(LOG.path, 100, LOG.modified_ns, 99)
    assert paths(Listing((replaced,)), state, now_s=200) == [LOG.path]


def test_mirror_limits_the_rate_of_copies_of_a_growing_file() -> None:
    state, longer = MirrorState(), changed_file(LOG, 120, 60)
    mark_copied(state, LOG, now_s=100.0)
    assert paths(Listing((longer,)), state, now_s=100.0 + mirror_plan.GROWING_PAUSE_S - 0.1) == []
    assert paths(Listing((longer,)), state, now_s=100.0 + mirror_plan.GROWING_PAUSE_S) == [LOG.path]
    assert paths(Listing((longer,)), state, now_s=100.1, urgent=True) == [LOG.path]
    long, grown = changed_file(LOG, 10**9, 50), changed_file(LOG, 10**9 + 1, 60)
    mark_copied(state, long, now_s=100.0, took_s=3.0)
    assert paths(Listing((grown,)), state, now_s=159) == []  # 3 s of copying: at most a twentieth of the time
    assert paths(Listing((grown,)), state, now_s=160) == [LOG.path]


def test_mirror_copies_only_long_files_less_often() -> None:
    for length, due_s in ((mirror_plan.LONG_BYTES, mirror_plan.GROWING_PAUSE_S), (mirror_plan.LONG_BYTES + 1, 60.0)):
        state, grown = MirrorState(), changed_file(LOG, length + 1, 60)
        mark_copied(state, changed_file(LOG, length, 50), now_s=100.0, took_s=3.0)
        assert paths(Listing((grown,)), state, now_s=100.0 + due_s - 0.1) == []
        assert paths(Listing((grown,)), state, now_s=100.0 + due_s) == [LOG.path]


def test_mirror_waits_until_other_files_are_unchanged_for_a_second() -> None:
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=50.5) == []
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=51.0) == [MODEL.path]
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=50.5, urgent=True) == [MODEL.path]


def test_mirror_copies_a_file_from_the_future_of_a_clock_that_was_set_back() -> None:
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=10.0) == [MODEL.path]
    assert paths(Listing((MODEL,)), MirrorState(), wall_s=49.5) == []


def test_mirror_commits_a_checkpoint_once() -> None:
    state, listing = MirrorState(), Listing((), ("checkpoints/step-000000001",))
    assert plan(listing, state, (), 0, 0, False) == [CommitCheckpoint("checkpoints/step-000000001")]
    record_success(state, CommitCheckpoint("checkpoints/step-000000001"), 1, 1)
    assert plan(listing, state, (), 0, 0, True) == []


def test_failed_checkpoint_commit_is_retried_with_its_reason() -> None:
    step = "checkpoints/step-000000001"
    state, listing = MirrorState(), Listing((), (step,))
    assert paths_behind(listing, state) == [PathBehind(step, "not copied yet")]
    for _ in range(2):
        record_failure(state, CommitCheckpoint(step), 100.0, "quota", transient=False)
    assert paths_behind(listing, state) == [PathBehind(step, "quota")]
    assert paths(listing, state, now_s=101.9) == [] and paths(listing, state, now_s=102.0) == [step]
    assert paths(listing, state, now_s=100.9, urgent=True) == [] and paths(listing, state, now_s=101.0, urgent=True)
    forget_deleted_paths(state, listing)
    assert step in state.failures
    record_success(state, CommitCheckpoint(step), 103.0, 1.0)
    assert paths_behind(listing, state) == [] == paths(listing, state) and not state.failures
    record_failure(state, CommitCheckpoint(step), 104.0, "quota", transient=False)
    assert state.failures[step].count == 1  # the first in a row


def test_mirror_copies_short_files_first_and_checkpoints_last() -> None:
    big = LocalFile("logs/big.log", 10**9, 0, 3)
    listing = Listing((big, LOG), ("checkpoints/step-000000001",))
    assert paths(listing, MirrorState()) == [LOG.path, big.path, "checkpoints/step-000000001"]


def test_lasting_failure_is_retried_with_growing_pauses_and_blocks_no_other_file() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    now_s = 100.0
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        record_failure(state, CopyFile(MODEL), now_s, "quota", transient=False)
        assert paths(listing, state, now_s=now_s + delay_s - 0.01) == [LOG.path]
        assert paths(listing, state, now_s=now_s + 1, urgent=True) == [LOG.path, MODEL.path]
        now_s += delay_s
        assert MODEL.path in paths(listing, state, now_s=now_s)
    assert paths_behind(listing, state) == [PathBehind(MODEL.path, "quota"), PathBehind(LOG.path, "not copied yet")]
    mark_copied(state, MODEL)
    assert paths_behind(listing, state) == [PathBehind(LOG.path, "not copied yet")]


def test_outage_reduces_the_mirror_to_one_probe() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    record_failure(state, CopyFile(LOG), 100.0, "refused", transient=True)
    record_failure(state, CopyFile(MODEL), 100.1, "refused", transient=True)  # was under way at the same time
    assert paths(listing, state, now_s=100.9) == []
    assert paths(listing, state, now_s=101.2) == [LOG.path]
    assert paths(listing, state, now_s=101.2, busy=(LOG.path,)) == []
    record_failure(state, CopyFile(LOG), 102.0, "refused", transient=True)
    assert paths(listing, state, now_s=103.9) == []
    assert paths(listing, state, now_s=103.0, urgent=True) == [LOG.path]
    assert {late.reason for late in paths_behind(listing, state)} == {"refused"}
    other = LocalFile("logs/new.log", 1, 0, 9)  # which was never tried
    assert paths_behind(Listing((other,)), state) == [PathBehind(other.path, "refused")]
    mark_copied(state, LOG, now_s=104)
    assert paths(listing, state, now_s=104) == [MODEL.path]


def test_failed_copies_are_retried_at_once_after_an_outage() -> None:
    state, listing = MirrorState(), Listing((LOG, MODEL))
    for now_s in (100.0, 110.0, 120.0, 130.0):
        record_failure(state, CopyFile(MODEL), now_s, "refused", transient=True)
    mark_copied(state, LOG, now_s=131.0)
    assert paths(listing, state, now_s=131.0) == [MODEL.path]  # at once: time has mended it


def test_outage_probes_have_growing_pauses_and_concurrent_failures_count_once() -> None:
    state, listing, now_s = MirrorState(), Listing((LOG,)), 100.0
    for delay_s in (1, 2, 4, 8, 16, 30, 30):
        record_failure(state, CopyFile(LOG), now_s, "refused", transient=True)
        record_failure(state, CopyFile(MODEL), now_s + mirror_plan.TOGETHER_S - 0.1, "refused", transient=True)
        assert paths(listing, state, now_s=now_s + mirror_plan.TOGETHER_S + delay_s - 0.2) == []
        now_s += mirror_plan.TOGETHER_S - 0.1 + delay_s
        assert paths(listing, state, now_s=now_s) == [LOG.path]
    record_failure(state, CopyFile(LOG), now_s, "refused", transient=True)
    before = state.outage
    record_failure(state, CopyFile(LOG), now_s + mirror_plan.TOGETHER_S, "refused", transient=True)
    assert before is not None and state.outage is not None and state.outage.transient
    assert state.outage.count == before.count + 1


def test_lasting_failure_is_not_an_outage() -> None:
    state = MirrorState()
    record_failure(state, CopyFile(MODEL), 100.0, "quota", transient=False)
    assert state.outage is None
    record_failure(state, CopyFile(LOG), 100.0, "refused", transient=True)
    forget_deleted_paths(state, Listing((LOG, MODEL)))
    assert state.outage is not None and len(state.failures) == 2
    forget_deleted_paths(state, Listing((), (MODEL.path,)))
    assert list(state.failures) == [MODEL.path]


def test_mirror_discards_the_state_of_deleted_files() -> None:
    state = MirrorState()
    mark_copied(state, LOG)
    record_failure(state, CopyFile(MODEL), 100, "refused", transient=True)
    forget_deleted_paths(state, Listing())
    assert (state.copied, state.failures, state.outage) == ({}, {}, None)
    assert paths(Listing((LOG,)), state) == [LOG.path]


EVENTS = st.lists(st.tuples(st.sampled_from(["grow", "ok", "fail", "down", "tick"]), st.integers(0, 2)), max_size=60)


@given(EVENTS)
def test_mirror_copies_everything_once_the_store_works(events: list[tuple[str, int]]) -> None:
    state, files, now_s = MirrorState(), {0: LOG, 1: MODEL, 2: LocalFile("x", 0, 0, 3)}, 0.0
    for kind, which in events:
        now_s += 0.3
        file = files[which]
        if kind == "grow":
            files[which] = changed_file(file, file.length + 1, file.modified_ns / SECOND + 1)
        elif kind == "ok":
            mark_copied(state, file, now_s)
        elif kind in ("fail", "down"):
            record_failure(state, CopyFile(file), now_s, kind, transient=kind == "down")
    listing = Listing(tuple(files.values()))
    for _ in range(100):
        now_s += 1
        for action in plan(listing, state, (), now_s, 10**18, False):
            record_success(state, action, now_s, 0.01)
    assert paths_behind(listing, state) == []
    assert plan(listing, state, (), now_s, 10**18, True) == []
