"""Log of an application's driver, read while it grows; in cluster mode this is the output of its first container.

A NodeManager serves the first or the last bytes of a log while the container runs and until the log is aggregated;
afterwards it is in HDFS, in a file that can only be read sequentially. ``LogReader`` therefore keeps a log open between
two pieces, so that a long log is fetched once.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from hopsml.core import hadoop_http, settings
from hopsml.core.hadoop_http import AccessError, Answer, NoAnswer
from hopsml.core.spnego import refusal_remedy
from hopsml.errors import ArgumentError, ClusterError, ClusterUnavailable, PathNotFound, StorageError
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import for_url
from hopsml.yarn import tfile
from hopsml.yarn.resource_manager import TIMEOUT_S, YarnApplication
from hopsml.yarn.tfile import FormatError, SearchLimit

PART_BYTES = 4 << 20  # bytes per read: of a log that grows faster, parts are skipped
_SLACK_BYTES = 4096  # allowance for bytes written between two requests
_TRIES = 3
_PAGE = re.compile(r"(https?://[^/]+)/.*/(container_\w+)")
_LENGTH = re.compile(rb"^LogLength:\s*(\d+)\s*$", re.MULTILINE)
_BEGIN = b"LogContents:\n"
_RUNNING = b"belongs to a running container"
_DEFAULT_DIR = "/tmp/logs"
_BUCKETS = 10_000
_MOST_DIGITS = 18  # of a log's length


@dataclass(frozen=True)
class LogPart:
    """Part of a log file of one container; ``offset`` and ``end`` are in bytes of the file.

    ``offset`` is larger than requested if the log has grown by more than is read at once.
    """

    container: str
    data: bytes
    offset: int
    complete: bool  # the file ends here and will not grow any more
    length: int  # of the whole file as written so far

    @property
    def end(self) -> int:
        """Offset in bytes at which the next part begins."""
        return self.offset + len(self.data)

    @property
    def text(self) -> str:
        """Content of the part as text; invalid UTF-8 is replaced."""
        return self.data.decode(errors="replace")


def read(
    application: YarnApplication,
    name: str = "stdout",
    offset: int = 0,
    limit: int = PART_BYTES,
) -> LogPart | None:
    """Return a part of the driver's log file; None if there is no log.

    In cluster mode stdout contains the script's output, including tracebacks, and stderr Spark's log. There is no log
    before the container has started, and after its end until (or unless) the log is aggregated.

    Args:
        application: the application.
        name: stdout or stderr.
        offset: first byte; below 0: counted from the end.
        limit: largest number of bytes.

    Raises:
        ClusterUnavailable: if the NodeManager does not answer.
        ClusterError: if it refuses, or the aggregated log has an unknown format.
        StorageError: if the aggregated log cannot be read.
    """
    part = read_from_node(application, name, offset, limit)
    if part is not None or not application.is_final or not (container := driver_container(application)):
        return part
    with converting_format_errors(application.id):
        found = read_aggregated(application.id, application.user, container, name, offset, limit)
    if found is None:
        return None
    data, length = found
    start = max(0, length + offset) if offset < 0 else min(offset, length)
    return LogPart(container, data, start, complete=start + len(data) >= length, length=length)


def read_from_node(application: YarnApplication, name: str, offset: int, limit: int) -> LogPart | None:
    """Return a part of the log as ``read``, from the driver's NodeManager only.

    None also if node and application have ended.
    """
    page = _PAGE.match(application.am_log_url)
    if page is None:
        return None
    try:
        return _from_node(page[1], page[2], name, offset, limit)
    except ClusterUnavailable:
        if not application.is_final:
            raise
        return None  # the node may be gone for good; what it has aggregated is in HDFS


def driver_container(application: YarnApplication) -> str:
    """Return the id of the driver's container; "" before there is one."""
    page = _PAGE.match(application.am_log_url)
    return page[2] if page is not None else ""


@contextlib.contextmanager
def converting_format_errors(application_id: str) -> Iterator[None]:
    """Raise ClusterError in place of a FormatError, for an aggregated log in a format that is not supported."""
    try:
        yield
    except tfile.FormatError as error:
        raise ClusterError(
            f"the aggregated log of {application_id} cannot be read here ({error}); run `yarn logs -applicationId "
            f"{application_id}` instead"
        ) from error


def tail(application: YarnApplication, name: str = "stdout", limit: int = 8192) -> str:
    """Return the last bytes of a log as text; "" if it is not available."""
    try:
        part = read(application, name, offset=-limit, limit=limit)
    except (ClusterError, StorageError):
        return ""
    return part.text if part is not None else ""


def _from_node(address: str, container: str, name: str, offset: int, limit: int) -> LogPart | None:
    """Read from the NodeManager's REST API, which returns the first or the last bytes, with the length of the file."""
    url = _address(address, container, name)
    wanted = -offset if offset < 0 else _SLACK_BYTES
    for _ in range(_TRIES):
        wanted = min(wanted, limit)
        try:
            answer = hadoop_http.request(f"{url}?size=-{wanted}", TIMEOUT_S)
        except AccessError as error:
            raise ClusterError(f"the log of {container} cannot be read: {error}") from error
        except NoAnswer as error:
            raise ClusterUnavailable(f"the NodeManager of {container} does not answer: {error}") from error
        parsed = parse_log_answer(answer, wanted)
        if parsed is None:
            return None
        data, length, running = parsed
        start = length - len(data)
        if offset < 0 or start <= offset or wanted >= limit:
            break
        wanted = length - offset + _SLACK_BYTES
    begin = start if offset < 0 else max(start, min(offset, length))
    return LogPart(container, data[begin - start :], begin, complete=not running, length=length)


def _address(address: str, container: str, name: str) -> str:
    return f"{address}/ws/v1/node/containers/{container}/logs/{name}"


def open_beginning(application: YarnApplication, name: str, length: int) -> BinaryIO:
    """Open the first ``length`` bytes of a log on the driver's node as a stream, which the caller must close.

    Raises:
        ClusterUnavailable: if the NodeManager does not answer.
        ClusterError: if it requires a valid ticket.
    """
    page = _PAGE.match(application.am_log_url)
    assert page is not None  # it was read before
    with contextlib.ExitStack() as stack:
        try:
            answer = hadoop_http.opened(f"{_address(page[1], page[2], name)}?size={length}", TIMEOUT_S)
            stack.enter_context(answer)
            while (line := answer.readline(_SLACK_BYTES)) != _BEGIN:
                if not line:
                    raise NoAnswer(f"{page[2]}: the answer has no log")
        except AccessError as error:
            raise ClusterError(f"the log of {page[2]} cannot be read: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ClusterUnavailable(f"the NodeManager of {page[2]} does not answer: {error}") from error
        stack.pop_all()
        return answer


def parse_log_answer(answer: Answer, wanted: int) -> tuple[bytes, int, bool] | None:
    """Return the last ``wanted`` bytes of the log, its length, and True if its container runs; None without a log."""
    if answer.status in (404, 410):
        return None
    head, begin, rest = answer.body.partition(_BEGIN)
    length = _LENGTH.search(head)
    if answer.status != 200 or not begin or length is None:
        remedy = refusal_remedy(answer.message)
        text = f"the NodeManager refuses the log: HTTP {answer.status} {answer.message}"
        raise ClusterError(f"{text}; {remedy}" if remedy else text)
    count = min(wanted, int(length[1]))
    return rest[:count], int(length[1]), _RUNNING in rest[count:]


def read_aggregated(
    application_id: str, user: str, container: str, name: str, offset: int, limit: int
) -> tuple[bytes, int] | None:
    """Return up to ``limit`` bytes of a container's aggregated log from ``offset`` on, and the log's length.

    A negative ``offset`` counts from the end. None if there is no such log (yet). Raises StorageError, and
    tfile.FormatError for an unsupported format.
    """
    effort = tfile.SearchLimit()  # for all files: there may be very many
    for url in list_aggregated_files(application_id, user, settings.yarn_settings()):
        with _store(url).open_read(url) as file:
            found = read_from_aggregated_file(file, container, name, offset, limit, effort)
        if found is not None:
            return found
    return None


def list_aggregated_files(application_id: str, user: str, known: Mapping[str, str]) -> Iterator[str]:
    """Yield the URLs of the aggregated log files of an application that has ended, one for each node.

    ``<dir>/<user>/bucket-logs-tfile/<nnnn>/<application>/<node>``; of Hadoop 2
    ``<dir>/<user>/logs/<application>/<node>``.
    """
    folder = known.get("yarn.nodemanager.remote-app-log-dir", _DEFAULT_DIR)
    if not urls.scheme_and_authority(folder):
        folder = (settings.default_fs() or "") + folder
    bucket = f"{int(application_id.rpartition('_')[2]) % _BUCKETS:04d}"
    for kind in _entries(urls.join(folder, user)):
        for candidate in (urls.join(kind, bucket, application_id), urls.join(kind, application_id)):
            yield from (url for url in _entries(candidate) if not url.endswith(".tmp"))  # .tmp: being written


def read_from_aggregated_file(
    file: BinaryIO, container: str, name: str, offset: int, limit: int, effort: tfile.SearchLimit | None = None
) -> tuple[bytes, int] | None:
    """Return a part of a log as ``read_aggregated``, from one aggregated file; ``effort`` bounds the search."""
    found = find_in_aggregated_file(file, container, name, effort)
    if found is None:
        return None
    value, length = found
    start = max(0, length + offset) if offset < 0 else min(offset, length)
    value.skip(start)
    return value.read(min(limit, length - start)), length


def find_in_aggregated_file(
    file: BinaryIO, container: str, name: str, effort: tfile.SearchLimit | None = None
) -> tuple[tfile.Value, int] | None:
    """Return a log of an aggregated file from its beginning, and its length, beyond which nothing may be read.

    The file has a record for each container, which contains each log's name, length and bytes. None if there is no such
    log. ``effort`` bounds the search.
    """
    for key, value in tfile.read_records(file, effort):
        if key[2:].decode(errors="replace") != container:
            continue
        while size := value.read(2):
            found = value.read(int.from_bytes(size, "big")).decode(errors="replace")
            text = value.read(int.from_bytes(value.read(2), "big"))
            if not text.isdigit() or len(text) > _MOST_DIGITS:
                raise tfile.FormatError(f"the length of the log {found!r:.80} is not a number: {text!r:.80}")
            length = int(text)
            if found == name:
                return value, length
            value.skip(length)
    return None


def _entries(url: str) -> list[str]:
    """Return the URLs in a folder; none if it does not exist."""
    try:
        return [entry.url for entry in _store(url).list_dir(url)]
    except PathNotFound:
        return []


def _store(url: str) -> filesystem.FileSystem:
    """Return the file system of aggregated logs.

    Raises:
        ClusterError: for a store that is not supported.
    """
    try:
        return filesystem.for_url(url)
    except ArgumentError as error:
        raise ClusterError(f"the aggregated log cannot be read from here: {error}") from error


MOST_OPEN = 8
IDLE_S = 60.0  # seconds; an open log occupies a thread of its node
_SKIP_BYTES = 1 << 20
SKIP_S = 60.0  # seconds in which a log must be read up to the offset that is asked for


class LogBytes(Protocol):
    """Interface for reading the bytes of a log from its current position."""

    def read(self, count: int, /) -> bytes:
        """Return up to ``count`` bytes; fewer, or none, at the end."""


@dataclass
class LogCursor:
    """Log that is being read.

    ``last`` holds the bytes read last, as a piece may end within a character.
    """

    application_id: str
    name: str
    container: str
    source: LogBytes
    length: int  # readable bytes
    close: Callable[[], object]
    at: int = 0
    last: bytes = b""
    used_s: float = 0.0

    def can_read_from(self, application_id: str, name: str, offset: int) -> bool:
        """Return True if it is this log and a piece can start at ``offset``: at its position, or shortly before."""
        is_it = (self.application_id, self.name) == (application_id, name)
        return is_it and self.at - len(self.last) <= offset <= self.at and offset < self.length

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes of the log.

        Raises:
            ClusterUnavailable: if the log ends before, or this takes more than ``SKIP_S``.
        """
        until = time.monotonic() + SKIP_S
        while count:
            if time.monotonic() > until:
                raise ClusterUnavailable(
                    f"the log of {self.container} cannot be read from byte {self.at + count} on: it was not reached "
                    f"within {SKIP_S:g} s; read the log from its beginning, or from its end"
                )
            count -= len(self._next(min(count, _SKIP_BYTES)))

    def read_piece(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``, for which ``can_read_from`` is True.

        Raises ClusterUnavailable.
        """
        kept = self.last[len(self.last) - (self.at - offset) :] if offset < self.at else b""
        fresh = min(limit - len(kept), self.length - self.at)
        data = kept + (self._next(fresh) if fresh > 0 else b"")
        self.last = data
        return data[:limit]

    def _next(self, count: int) -> bytes:
        """Read up to ``count`` bytes; raise ClusterUnavailable if there are none."""
        try:
            data = self.source.read(count)
        except (OSError, http.client.HTTPException, FormatError) as error:
            raise ClusterUnavailable(
                f"the connection for the log of {self.container} broke at byte {self.at}: {error}"
            ) from error
        if not data:
            raise ClusterUnavailable(
                f"the log of {self.container} ended at byte {self.at}, before its length of {self.length} bytes"
            )
        self.at += len(data)
        return data


class LogReader:
    """Thread-safe reader of logs that looks an application up only if no open log can continue at the offset."""

    def __init__(self, find: Callable[[str], YarnApplication], most_open: int = MOST_OPEN) -> None:
        self._find, self._most = find, most_open
        self._open: list[LogCursor] = []  # idle ones, in order of last use
        self._lock = threading.Lock()

    def read(self, application_id: str, name: str, offset: int, limit: int) -> LogPart | None:
        """Return a part of a log as ``logs.read``, for an offset of at least 0, without skipping bytes; same errors."""
        opened = self._taken(application_id, name, offset)
        if opened is not None:
            with contextlib.suppress(ClusterError, StorageError):  # the open log has expired: it is opened again
                return self._piece(opened, offset, limit)
        application = self._find(application_id)
        part = read_from_node(application, name, offset, limit)
        if part is not None:
            if part.offset <= offset:
                return part
            opened = _of_node(application, name, part.length)
        elif not application.is_final or (opened := _of_storage(application, name)) is None:
            return None
        if offset >= opened.length:
            opened.close()
            return LogPart(opened.container, b"", opened.length, complete=True, length=opened.length)
        try:
            opened.skip(offset)
        except BaseException:
            opened.close()
            raise
        return self._piece(opened, offset, limit)

    def _taken(self, application_id: str, name: str, offset: int) -> LogCursor | None:
        """Take an open log that can continue at this offset out of the idle ones, and return it; None if none can."""
        with self._lock:
            found = next((one for one in self._open if one.can_read_from(application_id, name, offset)), None)
            if found is not None:
                self._open.remove(found)
            return found

    def _piece(self, opened: LogCursor, offset: int, limit: int) -> LogPart:
        """Read a part from an open log, and close it on an error."""
        try:
            data = opened.read_piece(offset, limit)
        except BaseException:
            opened.close()
            raise
        self._give_back(opened)
        end = offset + len(data)
        return LogPart(opened.container, data, offset, complete=False, length=max(end, opened.length))

    def _give_back(self, opened: LogCursor) -> None:
        """Store an open log for later use, and close old ones."""
        opened.used_s = time.monotonic()
        with self._lock:
            self._open.append(opened)
            old = [one for one in self._open[: -self._most]]
            old += [one for one in self._open[-self._most :] if opened.used_s - one.used_s > IDLE_S]
            self._open = [one for one in self._open if one not in old]
        for one in old:
            one.close()

    def close(self) -> None:
        """Close all of the open logs."""
        with self._lock:
            left, self._open = self._open, []
        for one in left:
            one.close()


def _of_node(application: YarnApplication, name: str, length: int) -> LogCursor:
    answer = open_beginning(application, name, length)
    return LogCursor(application.id, name, driver_container(application), answer, length, answer.close)


def _of_storage(application: YarnApplication, name: str) -> LogCursor | None:
    """Open the aggregated log; return None if there is none (yet).

    Raises StorageError, ClusterError.
    """
    container = driver_container(application)
    with converting_format_errors(application.id), contextlib.ExitStack() as stack:
        effort = SearchLimit()  # for all files
        for url in list_aggregated_files(application.id, application.user, settings.yarn_settings()):
            file = stack.enter_context(for_url(url).open_read(url))
            if (found := find_in_aggregated_file(file, container, name, effort)) is not None:
                effort.remove_limit()  # each piece has a bounded length, and ``LogCursor.skip`` its own bound
                value, length = found
                return LogCursor(application.id, name, container, value, length, stack.pop_all().close)
    return None
