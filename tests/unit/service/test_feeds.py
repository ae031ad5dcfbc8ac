"""Tests of event streams of jobs: nothing is lost, doubled or stored for slow listeners."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.core.states import Lifecycle
from hopsml.service.engine import LogPiece
from hopsml.service.rest import feeds
from hopsml.service.rest.feeds import JobFeed, count_consecutive, decode_complete
from tests.helpers.service.followed import PlayedJob, events, until, until_end, within_time
from tests.helpers.service.served import Served

pytestmark = pytest.mark.fast


@given(st.integers(0, 5), st.sets(st.integers(1, 9)))
def test_unbroken_counts_ids_up_to_the_first_gap(after: int, later: set[int]) -> None:
    ids = sorted(after + one for one in later)
    count = count_consecutive(after, ids)
    assert ids[:count] == list(range(after + 1, after + 1 + count))
    assert count == len(ids) or ids[count] != after + count + 1


@given(st.lists(st.sampled_from(["a", "ü", "€", "𝄞", "\x1b[31m", "\0"])), st.integers(1, 7))
def test_characters_split_between_pieces_are_completed(letters: list[str], length: int) -> None:
    data, text_seen, at = "".join(letters).encode(), "", 0
    while at < len(data):
        text, taken = decode_complete(data[at : at + length + 3])
        text_seen, at = text_seen + text, at + taken
    assert text_seen == "".join(letters)


def test_job_changes_are_streamed_and_continued_after_the_last_event(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)

    async def scenario() -> None:
        stream = served.streams.stream("jobs", lambda: JobFeed(served.jobs.store), "")
        async with aclosing(stream):
            received = events(stream)
            assert (await anext(received))["event"] == "hello"
            job.changes(Lifecycle.RUNNING)
            seen = await anext(received)
            assert (seen["event"], seen["job"], seen["state"]) == ("job", job.id, "RUNNING")
        job.changes(Lifecycle.CLOSING)
        job.ends()
        async with aclosing(served.streams.stream("jobs", lambda: JobFeed(served.jobs.store), seen["id"])) as stream:
            received = events(stream)
            text_seen = [await anext(received) for _ in range(3)]
            assert [one.get("state") for one in text_seen] == [None, "CLOSING", "FINISHED"]

    within_time(served, scenario)


@pytest.mark.parametrize("last", ["1", "99", "nonsense"], ids=["too far behind", "of another database", "no id"])
def test_listener_with_an_unusable_event_id_is_reset(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setattr(feeds, "KEPT_CHANGES", 3)
    job = PlayedJob(served, tmp_path)
    for _ in range(5):
        job.changes(Lifecycle.RUNNING)

    async def scenario() -> None:
        feed = JobFeed(served.jobs.store)
        at, _ = await feed.start_listener(last)
        (events_seen,), at_next = await feed.since(at)
        assert b"event: reset" in events_seen and b"id: 6\n" in events_seen
        assert at_next is not None and await feed.since(at_next) == ([], at_next)

    within_time(served, scenario)


def test_row_stored_after_one_with_a_higher_id_is_not_skipped(served: Served, tmp_path: Path) -> None:
    job, now = PlayedJob(served, tmp_path), [100.0]
    feed = JobFeed(served.jobs.store, lambda: now[0])
    feed.poll()
    job.changes(Lifecycle.CLOSING, id=3)
    feed.poll()
    assert feed.version == 1
    job.changes(Lifecycle.RUNNING, id=2)
    feed.poll()
    assert feed.version == 3
    job.changes(Lifecycle.FINISHED, id=5)
    feed.poll()
    now[0] += feeds.GAP_S
    assert feed.version == 3
    feed.poll()
    assert feed.version == 5, "a transaction that was broken off holds nobody up for ever"


def test_log_is_followed_to_the_end_of_its_job(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)

    async def scenario() -> None:
        async with aclosing(job.listen()) as stream:
            received = events(stream)
            assert (await anext(received))["application"] == ""
            application = job.starts()
            assert await anext(received) == {"id": "0", "event": "reset", "application": application}
            job.prints(b"one\n\xff\x1b[2J" + "ü".encode()[:1])
            assert await anext(received) == {"id": "9", "event": "log", "text": "one\n\ufffd\x1b[2J", "offset": 0}
            job.prints("ü".encode()[1:])
            job.ends()
            last = [await anext(received), await anext(received)]
            assert [one["event"] for one in last] == ["log", "end"] and last[1]["state"] == "FINISHED"
            with pytest.raises(StopAsyncIteration):
                await anext(received)

    within_time(served, scenario)


def test_log_of_an_ended_job_is_sent_completely(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    never = PlayedJob(served, tmp_path)
    never.ends(Lifecycle.CANCELLED)
    job.starts()
    text = "".join(f"step {step} ü\n" for step in range(20_000))
    job.prints(text.encode() + b"\xc3")  # an incomplete character
    job.ends()

    async def scenario() -> None:
        assert await until_end(job.listen()) == text + "\ufffd"
        assert await until_end(never.listen()) == ""
        async with aclosing(job.listen("-6 ")) as stream:
            assert await until_end(stream) == "9 ü\n\ufffd"

    within_time(served, scenario)


def test_log_that_is_truncated_or_of_a_new_try_is_reset(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    first = job.starts()
    job.prints(b"before\n")

    async def scenario() -> None:
        async with aclosing(job.listen()) as stream:
            received = events(stream)
            assert [(await anext(received))["event"] for _ in range(2)] == ["hello", "log"]
            job.cuts()
            assert (await anext(received))["event"] == "reset"
            job.prints(b"behind\n")
            assert (await anext(received))["text"] == "behind\n"
            second = job.starts()
            assert (await anext(received))["application"] == second
            job.prints(b"again\n")
            assert (await anext(received))["text"] == "again\n"
        for last in (f"7 {first}", "700 "):  # listeners that were disconnected in between
            async with aclosing(job.listen(last)) as stream:
                received = events(stream)
                assert [(await anext(received))["event"] for _ in range(3)] == ["hello", "reset", "log"]

    within_time(served, scenario)


def test_log_of_ten_gigabytes_is_followed_from_its_end_in_bounded_memory(served: Served, tmp_path: Path) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    job.prints(b"begin\n")
    with open(job.log, "r+b") as file:
        file.truncate(10 << 30)
    job.prints(b"\nlast line\n")

    async def scenario() -> None:
        tracemalloc.start()
        try:
            async with aclosing(job.listen("-11 ")) as stream:
                received = events(stream)
                assert (await anext(received))["event"] == "hello"
                assert (await anext(received))["text"] == "\nlast line\n"
                job.prints(b"and on\n")
                assert (await anext(received))["text"] == "and on\n"
            async with aclosing(job.listen()) as stream:  # a listener at the start is sent pieces at its own pace
                received = events(stream)
                for _ in range(100):
                    await anext(received)
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()

    within_time(served, scenario)


def test_log_unreadable_for_a_while_is_sent_completely_and_a_removed_one_ends(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    text = "x" * 99 + "\n"
    job.prints(text.encode() * 2_000)
    job.ends()
    away, missed = job.log.with_suffix(".away"), list[int]()
    read = served.jobs.engine.log

    def counted(application: str, offset: int, limit: int) -> LogPiece | None:
        if (found := read(application, offset, limit)) is None and offset > 0:
            missed.append(offset)
        return found

    monkeypatch.setattr(served.jobs.engine, "log", counted)

    async def scenario() -> None:
        async with aclosing(job.listen()) as stream:
            received = events(stream)
            events_seen = [await anext(received), await anext(received)]
            job.log.rename(away)
            next_one = asyncio.ensure_future(anext(received))  # type: ignore[arg-type]
            await until(lambda: len(missed) > 2, "it to be asked for in vain")
            away.rename(job.log)
            events_seen += [await next_one, await anext(received), await anext(received)]
            assert "".join(one["text"] for one in events_seen[1:]) == text * 2_000
            assert (await anext(received))["event"] == "end"
        monkeypatch.setattr(feeds, "GONE_S", 0.0)
        async with aclosing(job.listen()) as stream:
            received = events(stream)
            await anext(received)
            job.log.unlink()
            assert (await anext(received))["event"] == "end"

    within_time(served, scenario)


def test_listeners_of_one_log_share_one_reader(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = PlayedJob(served, tmp_path)
    job.starts()
    text = "x" * 99 + "\n"
    job.prints(text.encode() * 10_000)
    engine, reads = served.jobs.engine, list[int]()
    read = engine.log
    monkeypatch.setattr(engine, "log", lambda *arguments: (reads.append(arguments[1]), read(*arguments))[1])

    async def scenario() -> None:
        listeners = [asyncio.create_task(until_end(job.listen())) for _ in range(50)]
        await until(lambda: len(reads) > 5, "the first pieces")
        assert len(served.streams) == 1
        job.prints(b"last\n")
        job.ends()
        assert {await one for one in listeners} == {text * 10_000 + "last\n"}
        begins = [offset for offset in reads if 0 <= offset < 1_000_000]
        assert len(begins) == len(set(begins)) == 16, (
            "what already exists is read once; looks at the end are not counted"
        )

    within_time(served, scenario)
