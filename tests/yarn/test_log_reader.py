"""Tests of reading an aggregated YARN log in pieces: each byte once, from one opened file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.errors import ClusterError
from hopsml.yarn import YarnApplication, logs
from hopsml.yarn.logs import LogReader

pytestmark = pytest.mark.fast

DATA = Path(__file__).parent / "data"
TEXT = b"".join(b"stdout line %d of 2\n" % line for line in range(40))
ID = "application_1_0001"


class Put:
    """An application that is over, whose node is gone; ``asked``: how often somebody wanted to know of it."""

    def __init__(self, folder: Path, container: str) -> None:
        self.folder, self.asked = folder, 0
        page = f"http://127.0.0.1:9/node/containerlogs/{container}/anna"  # nobody listens at the port of discard
        self._application = YarnApplication(ID, "", "FINISHED", "SUCCEEDED", user="anna", am_log_url=page)
        self.reader = LogReader(self.find, most_open=2)

    def find(self, application_id: str) -> YarnApplication:
        self.asked += 1
        return self._application

    def pieces(self, offset: int, limit: int, name: str = "stdout") -> Iterator[bytes]:
        while (part := self.reader.read(ID, name, offset, limit)) is not None and part.data:
            assert part.offset == offset and part.length == len(TEXT)
            yield part.data
            offset = part.end


@pytest.fixture(params=["none", "gz"])
def put(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    folder = tmp_path / "logs" / "anna" / "bucket-logs-tfile" / "0001" / ID
    folder.mkdir(parents=True)
    shutil.copy(DATA / f"logs-{request.param}.tfile", folder / "node_1")
    setting = (
        f"<property><name>yarn.nodemanager.remote-app-log-dir</name><value>file://{tmp_path}/logs</value></property>"
    )
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    made = Put(folder, "container_1_0001_01_000002")
    yield made
    made.reader.close()


@pytest.mark.parametrize(("offset", "limit"), [(0, 7), (0, 10_000), (300, 64), (len(TEXT), 10), (10 * len(TEXT), 10)])
def test_pieces_are_the_log_from_there_on(put: Put, offset: int, limit: int) -> None:
    assert b"".join(put.pieces(offset, limit)) == TEXT[offset:]
    assert put.asked <= 2, "once at its beginning, once at its end"


def test_whoever_takes_less_than_was_given_and_others_go_on_where_they_were(put: Put) -> None:
    read, asked = put.reader.read, lambda: put.asked
    assert read(ID, "stdout", 0, 100).data == TEXT[:100]  # type: ignore[union-attr]
    assert read(ID, "stdout", 97, 100).data == TEXT[97:197], "a character was cut"  # type: ignore[union-attr]
    assert read(ID, "stdout", 97, 50).data == TEXT[97:147] and asked() == 1, "the same for another one"  # type: ignore[union-attr]
    assert read(ID, "stdout", 500, 10).data == TEXT[500:510] and asked() == 2  # type: ignore[union-attr]
    assert read(ID, "stdout", 510, 10).data == TEXT[510:520]  # type: ignore[union-attr]
    assert read(ID, "stdout", 147, 10).data == TEXT[147:157] and asked() == 2, "both are open"  # type: ignore[union-attr]
    assert read(ID, "stdout", 300, 10).data == TEXT[300:310] and asked() == 3  # type: ignore[union-attr]
    assert read(ID, "stdout", 520, 10).data == TEXT[520:530] and asked() == 4, "no more than two are"  # type: ignore[union-attr]


def test_one_that_nobody_has_read_for_long_is_closed(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put.reader.read(ID, "stdout", 0, 100) is not None
    with monkeypatch.context() as impatient:
        impatient.setattr(logs, "IDLE_S", 0.0)
        assert put.reader.read(ID, "stdout", 500, 10) is not None
    assert put.reader.read(ID, "stdout", 510, 10) is not None and put.asked == 2
    assert put.reader.read(ID, "stdout", 100, 10) is not None and put.asked == 3


def test_a_log_that_is_not_there_and_one_that_is_no_log(put: Put) -> None:
    assert put.reader.read(ID, "syslog", 0, 10) is None
    (put.folder / "node_1").write_bytes(b"x" * 100)
    with pytest.raises(ClusterError, match=f"yarn logs -applicationId {ID}"):
        put.reader.read(ID, "stdout", 0, 10)


def test_an_offset_that_is_reached_too_late_is_refused(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be said to have any length, and users choose the offset."""
    monkeypatch.setattr(logs, "SKIP_S", 0.0)
    with pytest.raises(ClusterError, match="is too long to be read from byte 500 on"):
        put.reader.read(ID, "stdout", 500, 10)
    assert put.reader.read(ID, "stdout", 0, 10) is not None
