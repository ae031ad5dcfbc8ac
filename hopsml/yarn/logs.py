"""The log of an application's driver, read as it grows; in cluster mode it is what its first container printed.

A NodeManager serves the log of a container while that runs and until the log is aggregated; afterwards it lies in HDFS.
"""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from hopsml import settings
from hopsml.errors import ArgumentError, ClusterError, ClusterUnavailable, PathNotFound, StorageError
from hopsml.storage import filesystem, urls
from hopsml.yarn import tfile, web
from hopsml.yarn.resource_manager import TIMEOUT_S, YarnApplication

PART_BYTES = 4 << 20  # what is read at once: a log that grows faster is not followed byte by byte
_SLACK_BYTES = 4096  # for what is written between two requests
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
    """Some of a log file of one container; ``offset`` and ``end`` are bytes of the file.

    ``offset`` is above the one that was asked for where the log has grown by more than is read at once.
    """

    container: str
    data: bytes
    offset: int
    complete: bool  # the file ends here and will not grow any more
    length: int  # of the whole file, as far as it has been written

    @property
    def end(self) -> int:
        """Offset in bytes at which the next part begins."""
        return self.offset + len(self.data)

    @property
    def text(self) -> str:
        """The bytes as text; what is no UTF-8 is replaced."""
        return self.data.decode(errors="replace")


def read(
    application: YarnApplication,
    name: str = "stdout",
    offset: int = 0,
    limit: int = PART_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> LogPart | None:
    """The log file ``name`` (stdout, stderr) of the driver's container from ``offset`` on; below 0: from the end.

    In cluster mode stdout has what the script prints, its traceback too, and stderr has Spark's own lines. None where
    there is no log: the container has not started yet, or it is over and its log not yet (or never) aggregated.
    Raises ClusterUnavailable (nobody answers), ClusterError and StorageError.
    """
    part = of_node(application, name, offset, limit, timeout_s)
    if part is not None or not application.over or not (container := container_of(application)):
        return part
    with told_apart(application.id):
        found = aggregated(application.id, application.user, container, name, offset, limit)
    if found is None:
        return None
    data, length = found
    start = max(0, length + offset) if offset < 0 else min(offset, length)
    return LogPart(container, data, start, complete=start + len(data) >= length, length=length)


def of_node(
    application: YarnApplication, name: str, offset: int, limit: int, timeout_s: float = TIMEOUT_S
) -> LogPart | None:
    """What the driver's NodeManager has of it, as ``read``; None as well where that is gone with its application."""
    page = _PAGE.match(application.am_log_url)
    if page is None:
        return None
    try:
        return _from_node(page[1], page[2], name, offset, limit, timeout_s)
    except ClusterUnavailable:
        if not application.over:
            raise
        return None  # the node may be gone for good; what it has aggregated is in HDFS


def container_of(application: YarnApplication) -> str:
    """The driver's container; "" before it has one."""
    page = _PAGE.match(application.am_log_url)
    return page[2] if page is not None else ""


@contextlib.contextmanager
def told_apart(application_id: str) -> Iterator[None]:
    """Raise ClusterError where an aggregated log is of a kind that is not read here."""
    try:
        yield
    except tfile.FormatError as error:
        raise ClusterError(
            f"the aggregated log of {application_id} cannot be read here ({error}); `yarn logs -applicationId "
            f"{application_id}` does"
        ) from error


def tail(application: YarnApplication, name: str = "stdout", limit: int = 8192) -> str:
    """The last bytes of a log as text; empty where it cannot be had."""
    try:
        part = read(application, name, offset=-limit, limit=limit)
    except (ClusterError, StorageError):
        return ""
    return part.text if part is not None else ""


def _from_node(address: str, container: str, name: str, offset: int, limit: int, timeout_s: float) -> LogPart | None:
    """By the NodeManager's REST API, which gives so many of the first or of the last bytes, with the length of the file."""
    url = _address(address, container, name)
    wanted = -offset if offset < 0 else _SLACK_BYTES
    for _ in range(_TRIES):
        wanted = min(wanted, limit)
        try:
            answer = web.request(f"{url}?size=-{wanted}", timeout_s)
        except web.NoAnswer as error:
            raise ClusterUnavailable(f"the NodeManager of {container} does not answer: {error}") from error
        parsed = parse(answer, wanted)
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


def begun(application: YarnApplication, name: str, length: int, timeout_s: float = TIMEOUT_S) -> BinaryIO:
    """The first ``length`` bytes of a log of the driver's node, as they come: to be closed by the caller.

    Raises ClusterUnavailable.
    """
    page = _PAGE.match(application.am_log_url)
    assert page is not None  # it was read before
    with contextlib.ExitStack() as stack:
        try:
            answer = web.opened(f"{_address(page[1], page[2], name)}?size={length}", timeout_s)
            stack.enter_context(answer)
            while (line := answer.readline(_SLACK_BYTES)) != _BEGIN:
                if not line:
                    raise web.NoAnswer(f"{page[2]}: the answer has no log")
        except (OSError, http.client.HTTPException) as error:
            raise ClusterUnavailable(f"the NodeManager of {page[2]} does not answer: {error}") from error
        stack.pop_all()
        return answer


def parse(answer: web.Answer, wanted: int) -> tuple[bytes, int, bool] | None:
    """The last ``wanted`` bytes of the log, its length, whether its container runs; None where the node has no log."""
    if answer.status in (404, 410):
        return None
    head, begin, rest = answer.body.partition(_BEGIN)
    length = _LENGTH.search(head)
    if answer.status != 200 or not begin or length is None:
        said = " ".join(answer.text.split())[:200]
        raise ClusterError(f"the NodeManager does not give the log: HTTP {answer.status} {said}")
    count = min(wanted, int(length[1]))
    return rest[:count], int(length[1]), _RUNNING in rest[count:]


def aggregated(
    application_id: str, user: str, container: str, name: str, offset: int, limit: int
) -> tuple[bytes, int] | None:
    """Up to ``limit`` bytes from ``offset`` (negative: from the end) of one file of a container, and its whole length.

    None where it is not there (yet). Raises StorageError, and tfile.FormatError for a format that is not read here.
    """
    for url in aggregated_files(application_id, user, settings.yarn_settings()):
        with _store(url).open_read(url) as file:
            found = within(file, container, name, offset, limit)
        if found is not None:
            return found
    return None


def aggregated_files(application_id: str, user: str, known: Mapping[str, str]) -> Iterator[str]:
    """The files of an application that is over, one for each node, where NodeManagers put them.

    ``<dir>/<user>/bucket-logs-tfile/<nnnn>/<application>/<node>``; from Hadoop 2 ``<dir>/<user>/logs/<application>/<node>``.
    """
    folder = known.get("yarn.nodemanager.remote-app-log-dir", _DEFAULT_DIR)
    if not urls.base(folder):
        folder = (settings.default_fs() or "") + folder
    bucket = f"{int(application_id.rpartition('_')[2]) % _BUCKETS:04d}"
    for kind in _entries(urls.join(folder, user)):
        for candidate in (urls.join(kind, bucket, application_id), urls.join(kind, application_id)):
            yield from (url for url in _entries(candidate) if not url.endswith(".tmp"))  # .tmp: being written


def within(file: BinaryIO, container: str, name: str, offset: int, limit: int) -> tuple[bytes, int] | None:
    """The same from one aggregated file."""
    found = begun_within(file, container, name)
    if found is None:
        return None
    value, length = found
    start = max(0, length + offset) if offset < 0 else min(offset, length)
    value.skip(start)
    return value.read(min(limit, length - start)), length


def begun_within(file: BinaryIO, container: str, name: str) -> tuple[tfile.Value, int] | None:
    """A log of an aggregated file from its beginning, and its length: nothing may be read beyond that.

    There is a record for each container, in it for each log its name, length and bytes.
    """
    for key, value in tfile.records(file):
        if key[2:].decode(errors="replace") != container:
            continue
        while size := value.read(2):
            found = value.read(int.from_bytes(size, "big")).decode(errors="replace")
            text = value.read(int.from_bytes(value.read(2), "big"))
            if not text.isdigit() or len(text) > _MOST_DIGITS:
                raise tfile.FormatError(f"the length of the log {found!r:.80} is no number: {text!r:.80}")
            length = int(text)
            if found == name:
                return value, length
            value.skip(length)
    return None


def _entries(url: str) -> list[str]:
    try:
        return [entry.url for entry in _store(url).list_dir(url)]
    except PathNotFound:
        return []


def _store(url: str) -> filesystem.FileSystem:
    """Where aggregated logs lie. ClusterError for a store that nothing here speaks."""
    try:
        return filesystem.for_url(url)
    except ArgumentError as error:
        raise ClusterError(f"the aggregated log cannot be read from here: {error}") from error
