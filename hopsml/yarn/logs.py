"""The log of an application's driver, read as it grows; in cluster mode it is what its first container printed.

A NodeManager serves the log of a container while that runs and until the log is aggregated; afterwards it lies in HDFS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopsml.errors import ClusterError, ClusterUnavailable, StorageError
from hopsml.yarn import aggregated, tfile, web
from hopsml.yarn.resource_manager import TIMEOUT_S, YarnApplication

PART_BYTES = 4 << 20  # what is read at once: a log that grows faster is not followed byte by byte
_SLACK_BYTES = 4096  # for what is written between two requests
_TRIES = 3
_PAGE = re.compile(r"(https?://[^/]+)/.*/(container_\w+)")
_LENGTH = re.compile(rb"^LogLength:\s*(\d+)\s*$", re.MULTILINE)
_BEGIN = b"LogContents:\n"
_RUNNING = b"belongs to a running container"


@dataclass(frozen=True)
class LogPart:
    """Some of a log file of one container; ``offset`` and ``end`` are bytes of the file.

    ``offset`` is above the one that was asked for where the log has grown by more than is read at once.
    """

    container: str
    data: bytes
    offset: int
    complete: bool  # the file ends here and will not grow any more

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
    page = _PAGE.match(application.am_log_url)
    if page is None:
        return None
    address, container = page.groups()
    try:
        part = _from_node(address, container, name, offset, limit, timeout_s)
    except ClusterUnavailable:
        if not application.over:
            raise
        part = None  # the node may be gone for good; what it has aggregated is in HDFS
    if part is not None or not application.over:
        return part
    try:
        found = aggregated.read(application.id, application.user, container, name, offset, limit)
    except tfile.FormatError as error:
        raise ClusterError(
            f"the aggregated log of {application.id} cannot be read here ({error}); `yarn logs -applicationId "
            f"{application.id}` does"
        ) from error
    if found is None:
        return None
    data, length = found
    start = max(0, length + offset) if offset < 0 else min(offset, length)
    return LogPart(container, data, start, complete=start + len(data) >= length)


def tail(application: YarnApplication, name: str = "stdout", limit: int = 8192) -> str:
    """The last bytes of a log as text; empty where it cannot be had."""
    try:
        part = read(application, name, offset=-limit, limit=limit)
    except (ClusterError, StorageError):
        return ""
    return part.text if part is not None else ""


def _from_node(address: str, container: str, name: str, offset: int, limit: int, timeout_s: float) -> LogPart | None:
    """By the NodeManager's REST API, which gives so many of the first or of the last bytes, with the length of the file."""
    url = f"{address}/ws/v1/node/containers/{container}/logs/{name}"
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
    return LogPart(container, data[begin - start :], begin, complete=not running)


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
