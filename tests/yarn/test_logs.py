"""Tests of container logs: Hadoop's TFile (written by Hadoop 3.5), and a NodeManager's answers."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import pytest

from hopsml.errors import ClusterError
from hopsml.yarn import logs, resource_manager, tfile

pytestmark = pytest.mark.fast

DATA = Path(__file__).parent / "data"
LAST = b"".join(b"stdout line %d of 2\n" % line for line in range(40))


@pytest.mark.parametrize("codec", ["none", "gz"])
@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [(0, 1000, LAST), (0, 10, LAST[:10]), (700, 1000, LAST[700:]), (-20, 1000, LAST[-20:]), (9999, 10, b"")],
)
def test_part_of_an_aggregated_log(codec: str, offset: int, limit: int, expected: bytes) -> None:
    """The container's value is in chunks of 16 bytes, behind those of two other containers."""
    with (DATA / f"logs-{codec}.tfile").open("rb") as file:
        found = logs.within(file, "container_1_0001_01_000002", "stdout", offset, limit)
    assert found == (expected, len(LAST))


def test_what_an_aggregated_log_does_not_have() -> None:
    with (DATA / "logs-none.tfile").open("rb") as file:
        assert logs.within(file, "container_1_0001_01_000009", "stdout", 0, 10) is None
        assert logs.within(file, "container_1_0001_01_000003", "syslog", 0, 10) is None
        assert logs.within(file, "container_1_0001_01_000000", "stdout", 0, 10) == (b"", 0)


@pytest.mark.parametrize("cut", [0, 10, 27, 100])
def test_a_file_that_is_cut_or_none_at_all_is_told(cut: int) -> None:
    whole = (DATA / "logs-none.tfile").read_bytes()
    with pytest.raises(tfile.FormatError, match="not a TFile"):
        list(tfile.records(io.BytesIO(whole[:cut])))
    with pytest.raises(tfile.FormatError):  # the end is there, something before it is not
        list(tfile.records(io.BytesIO(whole[: 28 + cut] + whole[-1200:])))


def test_any_damage_to_an_aggregated_log_is_told_as_such() -> None:
    """Its owner may write into it, and the job service reads it."""
    random_bytes = random.Random(1)
    for name in ("logs-gz.tfile", "logs-none.tfile"):
        whole = (DATA / name).read_bytes()
        for _ in range(3000):
            harmed = bytearray(whole)
            for _ in range(random_bytes.choice((1, 1, 1, 3, 20))):
                harmed[random_bytes.randrange(len(harmed))] = random_bytes.choice((0, 1, 127, 128, 136, 255))
            with contextlib.suppress(tfile.FormatError):
                logs.within(io.BytesIO(harmed), "container_1_0001_01_000002", "stdout", 0, 1000)


def test_a_block_of_terabytes_is_not_unpacked_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros before one byte: 64 kB that were written to the disk first, and so would be the terabytes."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    packed = zlib.compress(bytes(64 << 20) + b"x")
    plain = tfile._block(io.BytesIO(packed), "gz", (0, len(packed), (64 << 20) + 1), tfile.Effort())
    tracemalloc.start()
    try:
        assert plain.exactly(10) == bytes(10)
        plain.skip((64 << 20) - 10)
        assert plain.exactly(1) == b"x" and plain.at_end()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def _number(value: int) -> bytes:
    return b"\x87" + value.to_bytes(8, "big", signed=True)


def _text(value: bytes) -> bytes:
    return _number(len(value)) + value


def _packed_tfile(blocks: list[bytes]) -> bytes:
    """Return a TFile with these data blocks, compressed."""
    whole, regions = b"", b""
    for plain in blocks:
        packed = zlib.compress(plain, 1)
        regions += _number(len(whole)) + _number(len(packed)) + _number(len(plain))
        whole += packed
    index = _text(b"gz") + _number(len(blocks)) + regions
    start, whole = len(whole), whole + index
    listing = _number(1) + _text(b"data:BCFile.index") + _text(b"none")
    listing += _number(start) + _number(len(index)) + _number(len(index))
    return whole + listing + struct.pack(">q", len(whole)) + bytes(4) + tfile.MAGIC


@pytest.mark.parametrize(("bound", "value"), [("MOST_SKIPPED_BYTES", 20 << 20), ("SEARCH_S", 0.0)])
def test_the_search_for_a_log_in_a_file_that_unpacks_to_very_much_ends(
    bound: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of terabytes, or very many records, are before the log; 64 MiB and two stand for them here."""
    log = b"\0\6stdout\0\1" + b"5" + b"hello"
    other = _text(b"\0\5other") + _number(64 << 20) + bytes(64 << 20)
    whole = _packed_tfile([other + _text(b"\0\1c") + _number(len(log)) + log])
    assert logs.within(io.BytesIO(whole), "c", "stdout", 0, 100) == (b"hello", 5)
    monkeypatch.setattr(tfile, bound, value)
    with pytest.raises(tfile.FormatError, match="the search in it has ended after"):
        logs.within(io.BytesIO(whole), "c", "stdout", 0, 100)


def test_a_codec_that_is_not_read_is_named() -> None:
    whole = (DATA / "logs-gz.tfile").read_bytes().replace(b"\x02gz", b"\x02xz")
    with pytest.raises(tfile.FormatError, match="'xz'"):
        list(tfile.records(io.BytesIO(whole)))


@pytest.mark.parametrize(
    ("stored", "number"),
    [
        ("7f", 127),
        ("e0", -32),
        ("cc80", 128),
        ("cbdf", -33),
        ("dfff", 5119),
        ("b800", -5120),
        ("a81400", 5120),
        ("b7ffff", 1048575),
        ("980000", -1048576),
        ("90100000", 1048576),
        ("97ffffff", 134217727),
        ("8308000000", 134217728),
        ("83f7ffffff", -134217729),
        ("840080000000", 2147483648),
        ("85010000000000", 1099511627776),
        ("86feffffffffffff", -281474976710657),
        ("877fffffffffffffff", 9223372036854775807),
        ("878000000000000000", -9223372036854775808),
    ],
)
def test_numbers(stored: str, number: int) -> None:
    """Written by Hadoop's own writeVLong."""
    content = bytes.fromhex(stored)
    assert tfile._integer(tfile.Block(io.BytesIO(content), 0, len(content), tfile.Effort())) == number


def node_says(content: bytes, wanted: int, *, running: bool) -> resource_manager.Answer:
    foot = b".This log file belongs to a running container (c) and so may not be complete." if running else b"."
    head = f"Container: c on n:1\nLogAggregationType: LOCAL\n=====\nLogType:stdout\nLogLength:{len(content)}\nLogContents:\n"
    return resource_manager.Answer(
        200, head.encode() + content[-wanted:] + b"End of LogType:stdout" + foot + b"\n***\n\n"
    )


@pytest.mark.parametrize("content", [b"", b"one\n", b"no newline", b"LogContents:\nEnd of LogType:stdout.\n\xff"])
@pytest.mark.parametrize("running", [True, False])
def test_a_nodes_answer(content: bytes, running: bool) -> None:
    assert logs.parse(node_says(content, 100, running=running), 100) == (content, len(content), running)


def test_a_node_without_the_log_and_one_that_fails() -> None:
    assert logs.parse(resource_manager.Answer(404, b"HTTP 404 Not Found"), 10) is None
    with pytest.raises(ClusterError, match="HTTP 500 out of memory"):
        logs.parse(resource_manager.Answer(500, b"out of memory"), 10)
