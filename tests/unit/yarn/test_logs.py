"""Tests of container logs: Hadoop's TFile (written by Hadoop 3.5), a NodeManager's answers, and reading in pieces."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.core import hadoop_http
from hopsml.errors import ClusterError
from hopsml.yarn import YarnApplication, logs, tfile
from hopsml.yarn.logs import LogReader

pytestmark = pytest.mark.fast

DATA = Path(__file__).parent / "data"
LAST = b"".join(b"stdout line %d of 2\n" % line for line in range(40))

ID = "application_1_0001"


class LoggedApplication:
    """Ended application whose node is removed; ``queries`` counts the queries for it."""

    def __init__(self, folder: Path, container: str) -> None:
        self.folder, self.queries = folder, 0
        page = f"http://127.0.0.1:9/node/containerlogs/{container}/anna"  # no process listens on the discard port
        self._application = YarnApplication(ID, "", "FINISHED", "SUCCEEDED", user="anna", am_log_url=page)
        self.reader = LogReader(self.find, most_open=2)

    def find(self, application_id: str) -> YarnApplication:
        self.queries += 1
        return self._application

    def pieces(self, offset: int, limit: int, name: str = "stdout") -> Iterator[bytes]:
        while (part := self.reader.read(ID, name, offset, limit)) is not None and part.data:
            assert part.offset == offset and part.length == len(LAST)
            yield part.data
            offset = part.end


@pytest.fixture(params=["none", "gz"])
def logged(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoggedApplication]:
    folder = tmp_path / "logs" / "anna" / "bucket-logs-tfile" / "0001" / ID
    folder.mkdir(parents=True)
    shutil.copy(DATA / f"logs-{request.param}.tfile", folder / "node_1")
    setting = (
        f"<property><name>yarn.nodemanager.remote-app-log-dir</name><value>file://{tmp_path}/logs</value></property>"
    )
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    made = LoggedApplication(folder, "container_1_0001_01_000002")
    yield made
    made.reader.close()


@pytest.mark.parametrize(("offset", "limit"), [(0, 7), (0, 10_000), (300, 64), (len(LAST), 10), (10 * len(LAST), 10)])
def test_pieces_of_a_log_join_to_its_content_from_the_offset(
    logged: LoggedApplication, offset: int, limit: int
) -> None:
    assert b"".join(logged.pieces(offset, limit)) == LAST[offset:]
    assert logged.queries <= 2, "once at its beginning, once at its end"


def test_readers_at_different_offsets_reuse_a_bounded_number_of_open_logs(logged: LoggedApplication) -> None:
    read, queries = logged.reader.read, lambda: logged.queries
    assert read(ID, "stdout", 0, 100).data == LAST[:100]  # type: ignore[union-attr]
    assert read(ID, "stdout", 97, 100).data == LAST[97:197], "a character was cut"  # type: ignore[union-attr]
    assert read(ID, "stdout", 97, 50).data == LAST[97:147] and queries() == 1, "the same for another one"  # type: ignore[union-attr]
    assert read(ID, "stdout", 500, 10).data == LAST[500:510] and queries() == 2  # type: ignore[union-attr]
    assert read(ID, "stdout", 510, 10).data == LAST[510:520]  # type: ignore[union-attr]
    assert read(ID, "stdout", 147, 10).data == LAST[147:157] and queries() == 2, "both are open"  # type: ignore[union-attr]
    assert read(ID, "stdout", 300, 10).data == LAST[300:310] and queries() == 3  # type: ignore[union-attr]
    assert read(ID, "stdout", 520, 10).data == LAST[520:530] and queries() == 4, "no more than two are"  # type: ignore[union-attr]


def test_open_log_is_closed_after_its_idle_time(logged: LoggedApplication, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged.reader.read(ID, "stdout", 0, 100) is not None
    with monkeypatch.context() as impatient:
        impatient.setattr(logs, "IDLE_S", 0.0)
        assert logged.reader.read(ID, "stdout", 500, 10) is not None
    assert logged.reader.read(ID, "stdout", 510, 10) is not None and logged.queries == 2
    assert logged.reader.read(ID, "stdout", 100, 10) is not None and logged.queries == 3


def test_missing_log_is_none_and_an_invalid_file_is_an_error(logged: LoggedApplication) -> None:
    assert logged.reader.read(ID, "syslog", 0, 10) is None
    (logged.folder / "node_1").write_bytes(b"x" * 100)
    with pytest.raises(ClusterError, match=f"yarn logs -applicationId {ID}"):
        logged.reader.read(ID, "stdout", 0, 10)


def test_offset_that_takes_too_long_to_reach_is_refused(
    logged: LoggedApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may declare any length, and users choose the offset."""
    monkeypatch.setattr(logs, "SKIP_S", 0.0)
    with pytest.raises(ClusterError, match="cannot be read from byte 500 on"):
        logged.reader.read(ID, "stdout", 500, 10)
    assert logged.reader.read(ID, "stdout", 0, 10) is not None


@pytest.mark.parametrize("codec", ["none", "gz"])
@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [(0, 1000, LAST), (0, 10, LAST[:10]), (700, 1000, LAST[700:]), (-20, 1000, LAST[-20:]), (9999, 10, b"")],
)
def test_part_of_an_aggregated_log_is_read(codec: str, offset: int, limit: int, expected: bytes) -> None:
    """The container's value is in chunks of 16 bytes, behind those of two other containers."""
    with (DATA / f"logs-{codec}.tfile").open("rb") as file:
        found = logs.read_from_aggregated_file(file, "container_1_0001_01_000002", "stdout", offset, limit)
    assert found == (expected, len(LAST))


def test_missing_container_or_file_of_an_aggregated_log_is_none() -> None:
    with (DATA / "logs-none.tfile").open("rb") as file:
        assert logs.read_from_aggregated_file(file, "container_1_0001_01_000009", "stdout", 0, 10) is None
        assert logs.read_from_aggregated_file(file, "container_1_0001_01_000003", "syslog", 0, 10) is None
        assert logs.read_from_aggregated_file(file, "container_1_0001_01_000000", "stdout", 0, 10) == (b"", 0)


@pytest.mark.parametrize("cut", [0, 10, 27, 100])
def test_truncated_or_foreign_file_is_a_format_error(cut: int) -> None:
    file_bytes = (DATA / "logs-none.tfile").read_bytes()
    with pytest.raises(tfile.FormatError, match="not a TFile"):
        list(tfile.read_records(io.BytesIO(file_bytes[:cut])))
    with pytest.raises(tfile.FormatError):  # the end is present, something before it is missing
        list(tfile.read_records(io.BytesIO(file_bytes[: 28 + cut] + file_bytes[-1200:])))


def test_any_damage_to_an_aggregated_log_is_a_format_error() -> None:
    """The owner may write into the file that the job service reads."""
    random_bytes = random.Random(1)
    for name in ("logs-gz.tfile", "logs-none.tfile"):
        file_bytes = (DATA / name).read_bytes()
        for _ in range(3000):
            harmed = bytearray(file_bytes)
            for _ in range(random_bytes.choice((1, 1, 1, 3, 20))):
                harmed[random_bytes.randrange(len(harmed))] = random_bytes.choice((0, 1, 127, 128, 136, 255))
            with contextlib.suppress(tfile.FormatError):
                logs.read_from_aggregated_file(io.BytesIO(harmed), "container_1_0001_01_000002", "stdout", 0, 1000)


def test_compressed_block_is_read_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros before one byte: nothing is written to the disk."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    packed = zlib.compress(bytes(64 << 20) + b"x")
    plain = tfile._block(io.BytesIO(packed), "gz", (0, len(packed), (64 << 20) + 1), tfile.SearchLimit())
    tracemalloc.start()
    try:
        assert plain.read_exactly(10) == bytes(10)
        plain.skip((64 << 20) - 10)
        assert plain.read_exactly(1) == b"x" and plain.is_at_end()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def _number(value: int) -> bytes:
    return b"\x87" + value.to_bytes(8, "big", signed=True)


def _text(value: bytes) -> bytes:
    return _number(len(value)) + value


def _packed_tfile(blocks: list[bytes]) -> bytes:
    """Return a TFile with these data blocks, compressed."""
    file_bytes, regions = b"", b""
    for plain in blocks:
        packed = zlib.compress(plain, 1)
        regions += _number(len(file_bytes)) + _number(len(packed)) + _number(len(plain))
        file_bytes += packed
    index = _text(b"gz") + _number(len(blocks)) + regions
    start, file_bytes = len(file_bytes), file_bytes + index
    listing = _number(1) + _text(b"data:BCFile.index") + _text(b"none")
    listing += _number(start) + _number(len(index)) + _number(len(index))
    return file_bytes + listing + struct.pack(">q", len(file_bytes)) + bytes(4) + tfile.MAGIC


@pytest.mark.parametrize(("bound", "value"), [("MOST_SKIPPED_BYTES", 20 << 20), ("SEARCH_S", 0.0)])
def test_search_in_an_aggregated_log_is_bounded(bound: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of terabytes or many records may precede the log; the test uses 64 MiB and two records."""
    log = b"\0\6stdout\0\1" + b"5" + b"hello"
    other = _text(b"\0\5other") + _number(64 << 20) + bytes(64 << 20)
    file_bytes = _packed_tfile([other + _text(b"\0\1c") + _number(len(log)) + log])
    assert logs.read_from_aggregated_file(io.BytesIO(file_bytes), "c", "stdout", 0, 100) == (b"hello", 5)
    monkeypatch.setattr(tfile, bound, value)
    with pytest.raises(tfile.FormatError, match="the search in the file stopped after"):
        logs.read_from_aggregated_file(io.BytesIO(file_bytes), "c", "stdout", 0, 100)


def test_unsupported_codec_is_named() -> None:
    file_bytes = (DATA / "logs-gz.tfile").read_bytes().replace(b"\x02gz", b"\x02xz")
    with pytest.raises(tfile.FormatError, match="'xz'"):
        list(tfile.read_records(io.BytesIO(file_bytes)))


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
def test_variable_length_integers_are_decoded(stored: str, number: int) -> None:
    """Written by Hadoop's own writeVLong."""
    content = bytes.fromhex(stored)
    assert tfile._integer(tfile.Block(io.BytesIO(content), 0, len(content), tfile.SearchLimit())) == number


def node_answer(content: bytes, wanted: int, *, running: bool) -> hadoop_http.Answer:
    foot = b".This log file belongs to a running container (c) and so may not be complete." if running else b"."
    head = f"Container: c on n:1\nLogAggregationType: LOCAL\n=====\nLogType:stdout\nLogLength:{len(content)}\nLogContents:\n"
    return hadoop_http.Answer(200, head.encode() + content[-wanted:] + b"End of LogType:stdout" + foot + b"\n***\n\n")


@pytest.mark.parametrize("content", [b"", b"one\n", b"no newline", b"LogContents:\nEnd of LogType:stdout.\n\xff"])
@pytest.mark.parametrize("running", [True, False])
def test_log_is_parsed_from_the_answer_of_a_node(content: bytes, running: bool) -> None:
    assert logs.parse_log_answer(node_answer(content, 100, running=running), 100) == (content, len(content), running)


def test_missing_log_on_a_node_is_none_and_a_failing_node_is_an_error() -> None:
    assert logs.parse_log_answer(hadoop_http.Answer(404, b"HTTP 404 Not Found"), 10) is None
    with pytest.raises(ClusterError, match="HTTP 500 out of memory"):
        logs.parse_log_answer(hadoop_http.Answer(500, b"out of memory"), 10)
    skewed = b"<h1>GSSException: No valid credentials (Mechanism level: Clock skew too great (37))</h1>"
    with pytest.raises(ClusterError, match=r"HTTP 403 .*too great \(37\)\); synchronise the clocks"):
        logs.parse_log_answer(hadoop_http.Answer(403, skewed), 10)
