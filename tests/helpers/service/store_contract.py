"""Contract of every database; the test class of each one inherits these tests."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, JobNotFound, PermissionRefused
from hopsml.service.lifecycle import (
    Ending,
    EngineSnapshot,
    JobRecord,
    SeenApplication,
    TaskRule,
    begin_ending,
    begin_try,
    resize,
    step,
)
from hopsml.service.store import JobStore, NewJob, RequestKind, StaleRecord
from hopsml.service.store import store as stores
from hopsml.service.store.accounts import AuditEntry, AuditLog, Caller, Role, Tokens, callback_to_store
from hopsml.service.store.notes import Notes, RunNote
from hopsml.service.store.rows import Account, JobFilter, JobLimits, Leader
from hopsml.service.store.store import check_lead, record_of

ME = Leader("me", "here", 1e9, 1)  # the lease that the fixture takes
RULED = JobRecord(0, (TaskRule("train"),))


def new(name: str = "digits", owner: str = "alice", key: str | None = None) -> NewJob:
    return NewJob(name, owner, "default", 50, "{}", "local", retries=1, idempotency_key=key)


def record(store: JobStore, serial: int) -> JobRecord:
    return record_of(store.job(serial), store.launches([serial])[serial], RULED)


class StoreContract:
    """Base class; a subclass has a fixture ``store``: an empty one whose leader is "me"."""

    def test_job_is_stored_with_its_launches_and_changes(self, store: JobStore) -> None:
        row = store.submit(new(), 10.0)
        assert (row.id, row.state, row.version) == ("digits-1", Lifecycle.WAITING, 1)
        begun = begin_try(record(store, 1), "t", 20.0).record
        saved = store.save(record(store, 1), begun, ME, 20.0, Account(5.0, 10.0, 0, [{"n1": 1}]))
        seen = EngineSnapshot({"t-1-1": (SeenApplication("app-1", Lifecycle.RUNNING),)})
        store.save(saved, step(saved, seen, "t", 21.0).record, ME, 21.0)
        found = record(store, 1)
        assert (found.state, found.launches[0].application_id, found.version) == (Lifecycle.RUNNING, "app-1", 3)
        assert store.job(1).placement == [{"n1": 1}] and store.job(1).attained_s == 5.0
        changes = [(change.task, change.state, change.at_s) for change in store.changes(1)]
        assert changes == [
            ("", Lifecycle.WAITING, 10.0),
            ("", Lifecycle.STARTING, 20.0),
            ("train", Lifecycle.WAITING, 20.0),
            ("", Lifecycle.RUNNING, 21.0),
            ("train", Lifecycle.RUNNING, 21.0),
        ]

    def test_owner_has_a_bounded_number_of_unfinished_jobs(self, store: JobStore) -> None:
        store.limits = JobLimits(unfinished=2, stored=100)
        store.submit(new(key="first"), 1.0)
        store.submit(new(), 2.0)
        with pytest.raises(ArgumentError, match=r"alice has 2 jobs that have not ended.*--unfinished-jobs"):
            store.submit(new(), 3.0)
        assert store.submit(new(key="first"), 3.0).serial == 1, "a submission that is repeated is no further job"
        store.submit(new(owner="bob"), 3.0)
        self._ended(store, 1)
        store.submit(new(), 4.0)
        assert [row.owner for row in store.living()] == ["alice", "bob", "alice"]
        store.limits = JobLimits(unfinished=100, stored=1000, unfinished_length=1000)
        with pytest.raises(ArgumentError, match="the job files of bob's jobs"):
            store.submit(replace(new(owner="bob"), spec=" " * 999), 5.0)
        store.limits = JobLimits(unfinished=0, stored=0, unfinished_length=1)
        store.submit(new(), 6.0)

    def test_oldest_ended_jobs_of_an_owner_are_removed_beyond_the_limit(self, store: JobStore) -> None:
        for number in range(5):
            store.submit(new(key=f"{number}"), 1.0)
        store.submit(new(owner="bob"), 1.0)
        store.add_request(2, RequestKind.PAUSE, "", "alice", 1.0)
        for serial in (2, 3, 6):
            store.save(record(store, serial), begin_try(record(store, serial), "t", 2.0).record, ME, 2.0)
            self._ended(store, serial)
        store.limits = JobLimits(unfinished=5, stored=5)
        store.submit(new(), 3.0)
        assert [row.serial for row in store.jobs().jobs] == [7, 6, 5, 4, 3, 1], (
            "2 was the oldest of alice's that had ended"
        )
        with pytest.raises(JobNotFound):
            store.job(2)
        assert store.changes(2) == [] == store.open_requests() and store.launches_of(2, 1) == ()
        assert store.ended_before([1, 2, 3, 99], 0.0) == {2}, "its files are those of an ended job"
        store.limits = JobLimits(unfinished=9, stored=9, stored_length=12)
        store.submit(replace(new(), spec=" " * 4), 4.0)
        assert 3 not in [row.serial for row in store.jobs().jobs], "with the length of the job files bounded, too"

    def test_job_with_too_many_requests_can_still_be_cancelled(
        self, store: JobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stores, "MOST_REQUESTS", 3)
        store.submit(new(), 1.0)
        for kind in (RequestKind.PAUSE, RequestKind.RESUME, RequestKind.PAUSE):
            store.add_request(1, kind, "", "alice", 2.0)
        with pytest.raises(ArgumentError, match=r"job digits-1 has had 3 requests.*hopsml jobs cancel digits-1"):
            store.add_request(1, RequestKind.MOVE, "default 50", "alice", 2.0)
        for _ in range(3):
            store.add_request(1, RequestKind.CANCEL, "", "alice", 2.0)
        with pytest.raises(ArgumentError):
            store.add_request(1, RequestKind.CANCEL, "", "alice", 2.0)

    @staticmethod
    def _ended(store: JobStore, serial: int) -> None:
        before = record(store, serial)
        store.save(before, replace(before, state=Lifecycle.FINISHED, ended_s=5.0), ME, 5.0)

    def test_target_placement_of_a_shrinking_job_is_stored(self, store: JobStore) -> None:
        store.submit(new(), 10.0)
        begun = begin_try(record(store, 1), "t", 20.0, (2,)).record
        saved = store.save(record(store, 1), begun, ME, 20.0, Account(0.0, 10.0, 0, [{"n1": 2}]))
        smaller = resize(saved, (1,), "for another", 30.0)
        saved = store.save(saved, smaller, ME, 30.0, Account(0.0, 10.0, 0, [{"n1": 2}], [{"n1": 1}]))
        row = store.job(1)
        assert (row.placement, row.target, row.cause) == ([{"n1": 2}], [{"n1": 1}], "for another")
        assert record(store, 1).shrinking_since_s == 30.0
        assert [(change.cause, change.at_s) for change in store.changes(1)][-1] == ("for another", 30.0)
        store.save(saved, replace(saved, shrinking_since_s=0.0), ME, 31.0, Account(0.0, 10.0, 0, [{"n1": 1}]))
        assert (store.job(1).placement, store.job(1).target) == ([{"n1": 1}], None)

    def test_ended_job_is_not_overwritten_and_a_stale_record_is_refused(self, store: JobStore) -> None:
        store.submit(new(), 10.0)
        before = record(store, 1)
        store.save(before, begin_ending(before, Ending.CANCELLED, "by alice", 11.0), ME, 11.0)
        with pytest.raises(StaleRecord):
            store.save(before, begin_try(before, "t", 12.0).record, ME, 12.0)
        after = record(store, 1)
        with pytest.raises(StaleRecord):
            store.save(after, begin_try(RULED, "t", 12.0).record, ME, 12.0)
        assert record(store, 1) == after and len(store.changes(1)) == 2

    def test_only_the_leader_can_store(self, store: JobStore) -> None:
        store.submit(new(), 10.0)
        assert store.acquire_lease("you", "there", 100.0, 30.0) == ME
        before = record(store, 1)
        with pytest.raises(StaleRecord):
            store.save(before, begin_try(before, "t", 12.0).record, replace(ME, holder="you"), 12.0)
        assert record(store, 1) == before
        store.resign(ME)
        yours = store.acquire_lease("you", "there", 101.0, 30.0)
        assert (yours.holder, yours.term) == ("you", 2) and store.still_leads(yours) and not store.still_leads(ME)
        assert store.acquire_lease("me", "here", 102.0, 30.0).address == "there"
        with pytest.raises(StaleRecord):
            store.save(before, begin_try(before, "t", 12.0).record, ME, 103.0)

    def test_earlier_term_of_the_same_server_cannot_store(self, store: JobStore) -> None:
        store.submit(new(), 10.0)
        before = record(store, 1)
        request = store.add_request(1, RequestKind.PAUSE, "", "alice", 10.0)
        assert store.acquire_lease("me", "here", 11.0, 30.0, term=ME.term).term == ME.term, "renewed"
        other = store.acquire_lease("you", "there", 50.0, 30.0)
        store.resign(ME), store.resign(other)
        again = store.acquire_lease("me", "here", 51.0, 30.0, term=ME.term)
        assert (other.term, again.term) == (2, 3)
        with pytest.raises(StaleRecord):
            store.save(before, begin_try(before, "t", 52.0).record, ME, 52.0)
        with pytest.raises(StaleRecord):
            store.move(1, "other", 1, ME, 52.0)
        with pytest.raises(StaleRecord):
            store.answer(request.id, "", ME, 52.0)
        assert record(store, 1) == before and store.job(1).queue == "default" and store.open_requests() == [request]
        store.save(before, begin_try(before, "t", 53.0).record, again, 53.0)

    def test_unrenewed_lease_with_a_clock_ahead_is_taken_over(self, store: JobStore) -> None:
        store.resign(ME)
        ahead = store.acquire_lease("other", "a", 100.0 + 86_400.0, 30.0)
        assert store.acquire_lease("me", "b", 101.0, 30.0).holder == "other"
        store.acquire_lease("other", "a", 110.0 + 86_400.0, 30.0, term=ahead.term)
        assert store.acquire_lease("me", "b", 132.0, 30.0).holder == "other", "it was renewed since"
        assert store.acquire_lease("me", "b", 161.0, 30.0).holder == "other"
        assert store.acquire_lease("me", "b", 163.0, 30.0).holder == "me"

    def test_leader_does_not_change_while_a_change_is_stored(self, store: JobStore) -> None:
        taken: list[float] = []

        def take() -> None:
            store.acquire_lease("you", "there", 2e9, 30.0)
            taken.append(time.monotonic())

        other = threading.Thread(target=take)
        with store.write_transaction() as connection:
            check_lead(connection, ME)
            other.start()
            other.join(0.3)
            stored = time.monotonic()
        other.join()
        assert taken[0] > stored

    def test_repeated_submission_with_one_key_is_one_job(self, store: JobStore) -> None:
        assert store.submit(new(key="k"), 10.0) == store.submit(new(key="k"), 11.0)
        assert store.submit(new(owner="bob", key="k"), 12.0).serial > 1
        with pytest.raises(ArgumentError, match="digits-1"):
            store.submit(NewJob("digits", "alice", "default", 50, '{"a": 1}', "local", idempotency_key="k"), 13.0)

    def test_concurrent_submissions_are_all_stored_in_order(self, store: JobStore) -> None:
        def submit(owner: str) -> None:
            for number in range(25):
                store.submit(new(f"job{number}", owner), 10.0 + number)

        threads = [threading.Thread(target=submit, args=(owner,)) for owner in ("a", "b", "c", "d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = store.living()
        assert [row.serial for row in rows] == list(range(1, 101))
        for owner in ("a", "b", "c", "d"):
            assert [row.name for row in rows if row.owner == owner] == [f"job{number}" for number in range(25)]

    def test_job_stored_after_a_newer_one_is_returned_as_new(self, store: JobStore) -> None:
        for _ in range(3):
            store.submit(new(), 10.0)
        assert [row.serial for row in store.new((), 0)] == [1, 2, 3]
        assert [row.serial for row in store.new({1, 3}, 3)] == [2]
        before = record(store, 2)
        store.save(before, begin_ending(before, Ending.CANCELLED, "by alice", 11.0), ME, 11.0)
        assert store.new({1, 3}, 3) == []

    def test_jobs_are_listed_in_pages_and_by_filters(self, store: JobStore) -> None:
        for number in range(7):
            store.submit(new(f"Job-{number}" if number % 2 else "x_y", "alice" if number < 3 else "bob"), 10.0)
        first = store.jobs(limit=3)
        assert [row.serial for row in first.jobs] == [7, 6, 5] and first.cursor == 5
        assert [row.serial for row in store.jobs(before=5, limit=9).jobs] == [4, 3, 2, 1]
        assert store.jobs(limit=7).cursor is None
        assert [row.serial for row in store.jobs(JobFilter(owner="alice", text="job")).jobs] == [2]
        assert store.jobs(JobFilter(text="%")).jobs == () and len(store.jobs(JobFilter(text="x_y")).jobs) == 4
        assert store.jobs(JobFilter(states=(Lifecycle.RUNNING,))).jobs == ()
        assert len(store.jobs(JobFilter(queue="default")).jobs) == 7
        with pytest.raises(JobNotFound, match="no job 99"):
            store.job(99)

    def test_request_is_open_until_it_is_answered(self, store: JobStore) -> None:
        store.submit(new(), 10.0)
        request = store.add_request(1, RequestKind.CANCEL, "", "bob", 11.0)
        assert store.open_requests() == [request]
        store.answer(request.id, "", ME, 12.0)
        assert store.open_requests() == []
        with pytest.raises(JobNotFound):
            store.add_request(9, RequestKind.PAUSE, "", "bob", 11.0)

    def test_tokens_are_stored_as_digests_and_expire(self, store: JobStore) -> None:
        tokens = Tokens(store)
        token = tokens.create("alice", Role.USER, 10.0, label="laptop", lasts_s=60.0)
        assert tokens.caller(token, 69.0) == Caller("alice", Role.USER)
        assert tokens.caller(token, 70.0) is None and tokens.caller(token + "x", 20.0) is None
        with store.read_transaction() as connection:
            assert token not in str(connection.exec_driver_sql("SELECT * FROM tokens").all())
        tokens.revoke(tokens.all()[0].id, 30.0)
        assert tokens.caller(token, 31.0) is None
        with pytest.raises(ArgumentError, match="no token"):
            tokens.revoke(tokens.all()[0].id, 32.0)

    def test_note_of_a_run_is_replaced_completely(self, store: JobStore) -> None:
        notes = Notes(store)
        assert notes.get("a_1") is None and notes.all() == {}
        notes.store_note("a_1", "<b>first</b>\0", ["good", " good ", "", "ä"], "ana", 1.0)
        stored_note = notes.store_note("a_1", "second", ["bad"], "ben", 2.0)
        assert notes.get("a_1") == notes.all()["a_1"] == stored_note == RunNote("a_1", "second", ("bad",), "ben", 2.0)
        notes.store_note("a_1", "x" * 4000, [f"t{n}" for n in range(20)], "ana", 3.0)
        for note, tags, problem in (
            ("x" * 100_000, [], "4000"),
            ("", ["two words"], "join its words"),
            ("", ["\x1b[31m"], "can be seen"),
            ("", ["x" * 41], "40 characters"),
            ("", [f"t{n}" for n in range(21)], "at most 20"),
        ):
            with pytest.raises(ArgumentError, match=problem):
                notes.store_note("a_1", note, tags, "ana", 4.0)
        assert notes.all()["a_1"].at_s == 3.0

    def test_concurrent_notes_of_one_run_are_stored(self, store: JobStore) -> None:
        def put(who: str) -> None:
            for number in range(5):
                Notes(store).store_note(f"a_{number}", "noted", [], who, 1.0)
                Notes(store).save("ana", f"view {number}", who, False, 1.0)

        threads = [threading.Thread(target=put, args=(who,)) for who in ("ana", "ben", "carla", "dora")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(Notes(store).all()) == len(Notes(store).views("ana")) == 5

    def test_views_are_those_of_the_user_and_shared_ones(self, store: JobStore) -> None:
        notes = Notes(store)
        mine = notes.save("ana", "mine", "filter=a", False, 1.0)
        shared = notes.save("ben", "ours", "filter=b", True, 2.0)
        assert notes.views("ana") == [mine, shared] and notes.views("ben") == [shared]
        again = notes.save("ana", "mine", "filter=c", False, 3.0)
        assert again.id == mine.id and notes.views("ana")[0].query == "filter=c"
        with pytest.raises(PermissionRefused, match="ben's"):
            notes.delete(shared.id, "ana", of_others=False)
        with pytest.raises(ArgumentError, match="no view"):
            notes.delete(mine.id, "ben", of_others=True)
        notes.delete(shared.id, "olga", of_others=True)
        notes.delete(mine.id, "ana", of_others=False)
        assert notes.views("ana") == []

    def test_service_name_is_stored_once(self, store: JobStore) -> None:
        assert store.service("ab12") == "ab12" == store.service("cd34")

    def test_audit_log_is_paged_filtered_and_deleted(self, store: JobStore) -> None:
        log = AuditLog(store)
        for number in range(5):
            user = "alice" if number % 2 else "bob\x00\ud800" + "b" * 300
            log.add(AuditEntry(float(number), user, "user", "cancel", "digits-1", 202, "127.0.0.1"))
        first = log.page(limit=2)
        rest = log.page(before=first.cursor, limit=10)
        assert [row.at_s for row in (*first.entries, *rest.entries)] == [
            4.0,
            3.0,
            2.0,
            1.0,
            0.0,
        ] and rest.cursor is None
        assert [row.at_s for row in log.page(user="alice", action="cancel").entries] == [3.0, 1.0]
        assert not log.page(action="submit").entries
        assert len(first.entries[0].user) == 200 and first.entries[0].user.startswith("bob\ufffd\ufffdb")
        assert log.delete_before(3.0) == 3 and [row.at_s for row in log.page().entries] == [4.0, 3.0]

    def test_audit_entry_is_stored_with_its_change_or_not_at_all(self, store: JobStore) -> None:
        entry = AuditEntry(1.0, "alice", "user", "submit", "", 201, "127.0.0.1")
        store.submit(new(key="k"), 1.0, callback_to_store(entry))
        store.submit(new(key="k"), 1.0, callback_to_store(entry))  # the same job: nothing is changed
        store.add_request(1, RequestKind.CANCEL, "", "alice", 2.0, callback_to_store(entry))
        tokens = Tokens(store)
        tokens.create("bob", Role.USER, 3.0, also=callback_to_store(entry))
        made = tokens.all()[-1]
        tokens.revoke(made.id, 4.0, callback_to_store(entry))
        with pytest.raises(ArgumentError):
            tokens.revoke(made.id, 5.0, callback_to_store(entry))
        found = [row.target for row in AuditLog(store).page().entries]
        assert found == [made.id, made.id, "digits-1", "digits-1"]

        def fail(connection: object, target: str) -> None:
            raise RuntimeError("the log cannot be written")

        with pytest.raises(RuntimeError):
            store.submit(new(), 6.0, fail)
        assert len(store.jobs().jobs) == 1

    def test_jobs_are_counted_by_queue_and_state(self, store: JobStore) -> None:
        assert store.counts() == []
        for at_s in (20.0, 10.0, 30.0):
            store.submit(new(), at_s)
        before = record(store, 3)
        store.save(before, begin_ending(before, Ending.CANCELLED, "by alice", 40.0), ME, 40.0)
        found = {one.state: (one.queue, one.count, one.since_s) for one in store.counts()}
        assert found[Lifecycle.WAITING] == ("default", 2, 10.0)
        assert found[Lifecycle.CANCELLED][:2] == ("default", 1) and len(found) == 2
