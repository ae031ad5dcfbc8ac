"""Log files of a run or trial: listed by generation and rank, read in pieces, and deleted where there are very many.

The first generation's and the newest are retained.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

import msgspec

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

PIECE_BYTES = 4 << 20
KEPT_GENERATIONS = 50  # newest generations whose logs are retained; those between the first and them are deleted
QUIET_S = 3600.0  # seconds without a change after which a log counts as ended
_OF_TRIAL = "output.log"
_NAME = re.compile(r"g(\d+)-rank(\d+)\.log")
_OF_GENERATION = re.compile(r"g(\d+)-rank(\d+)\.(?:log|system\.jsonl)")


class LogFile(msgspec.Struct, frozen=True):
    """A log file of a run or trial.

    Attributes:
        name: Name of the file.
        url: URL of the file.
        generation: Generation of the group that printed it.
        rank: Rank of the worker; None for the log of a trial in a trial slot (lane).
        bytes: Length of the file when it was listed.
    """

    name: str
    url: str
    generation: int
    rank: int | None
    bytes: int


def list_logs(directory: RunDir) -> list[LogFile]:
    """List all logs by generation and rank; the list is empty if nothing was printed. Raises StorageError."""
    found = []
    for folder in (directory.logs, directory.url):
        try:
            entries = for_url(folder).list_dir(folder)
        except PathNotFound:
            continue
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and folder == directory.logs:
                found.append(LogFile(entry.name, entry.url, int(match[1]), int(match[2]), entry.length))
            elif entry.name == _OF_TRIAL:
                found.append(LogFile(entry.name, entry.url, 0, None, entry.length))
    return sorted(found, key=lambda log: (log.generation, -1 if log.rank is None else log.rank))


def logs_of_rank(directory: RunDir, rank: int, generation: int | None = None) -> list[LogFile]:
    """Return the logs of this rank, the oldest first; ``generation``: of that one alone."""
    return [log for log in list_logs(directory) if log.rank == rank and generation in (None, log.generation)]


def read_rank_logs(directory: RunDir, rank: int, generation: int | None = None) -> Iterator[bytes]:
    """Yield the logs' content, with a separator line between generations.

    Args:
        directory: the run directory.
        rank: the worker's rank.
        generation: its generation; None: all.

    Raises:
        ArgumentError: there is no such log.
    """
    logs = logs_of_rank(directory, rank, generation)
    if not logs:
        wanted = f"rank {rank}" + (f" of generation {generation}" if generation is not None else "")
        raise ArgumentError(f"run {directory.run_id} has no log of {wanted}; {_other_logs(directory, rank)}")
    for log in logs:
        if len(logs) > 1:
            yield f"==> rank {rank}, generation {log.generation} <==\n".encode()
        last = b""
        for last in read_from_offset(log.url):
            yield last
        if len(logs) > 1 and last and not last.endswith(b"\n"):
            yield b"\n"


def _other_logs(directory: RunDir, rank: int) -> str:
    """Return which logs a run has, as the end of an error message: of other ranks, or generations of this rank.

    If it has none, those of the runs within it.
    """
    if logs := list_logs(directory):
        of_rank = {log.generation for log in logs if log.rank == rank}
        what = "of this rank are of generation" if of_rank else "are of rank"
        numbers = of_rank or {log.rank for log in logs if log.rank is not None}
        which = f"{what} {_ranges(numbers)}, in" if numbers else "are in"
        return f"its logs {which} {directory.logs}"
    system, within = for_url(directory.url), []
    with contextlib.suppress(PathNotFound):
        folders = [entry.url for entry in system.list_dir(directory.url) if entry.is_dir]
        within = [url for url in folders if list_logs(RunDir(url))]
    if within:
        return f"the runs within it have logs: hopsml runs logs '{within[0]}'" + f", and {len(within) - 1} more" * (
            len(within) > 1
        )
    return (
        f"none of its workers has printed anything; hopsml runs status {directory.run_id} shows its state and its error"
    )


def _ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, those that follow each other as a range: "0 to 3, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)


def surplus_log_names(files: Iterable[tuple[str, float]], begun: int, kept: int = KEPT_GENERATIONS) -> list[str]:
    """Return the logs and samples to delete, so that any number of recoveries leaves a bounded number of files.

    Args:
        files: Name and time of the last change, in seconds, of each file in a run's folder of logs.
        begun: The generation in which the present processes started; processes of earlier ones have ended.
        kept: Number of the newest generations whose files are retained, in addition to the first one's.

    Returns:
        Names of files of the generations between. If a group continues in the same processes, files that were changed
        within an hour of the newest change of all are not included, nor the other file of the same worker.
    """
    workers: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for name, changed_s in files:
        if found := _OF_GENERATION.fullmatch(name):
            workers.setdefault((int(found[1]), int(found[2])), []).append((name, changed_s))
    generations = sorted({generation for generation, _ in workers})
    between = set(generations[1:-kept])
    newest_s = max((changed_s for each in workers.values() for _, changed_s in each), default=0.0)
    return sorted(
        name
        for (generation, _), each in workers.items()
        if generation in between and (generation < begun or newest_s - max(at for _, at in each) > QUIET_S)
        for name, _ in each
    )


def delete_surplus_logs(directory: RunDir, begun: int, kept: int | None = None) -> int:
    """Delete the files of a run's logs that ``surplus_log_names`` chooses, and return their number. Raises StorageError."""
    system = for_url(directory.logs)
    try:
        entries = system.list_dir(directory.logs)
    except PathNotFound:
        return 0
    files = ((urls.name(entry.url), entry.modified_s) for entry in entries)
    names = surplus_log_names(files, begun, KEPT_GENERATIONS if kept is None else kept)
    for name in names:
        system.delete(urls.join(directory.logs, name))
    return len(names)


def read_from_offset(url: str, offset: int = 0, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the content from byte ``offset`` to the present end in pieces, since a log may be larger than the memory.

    Nothing is yielded for a file that does not exist yet. Raises StorageError.
    """
    system = for_url(url)
    while True:
        try:
            piece = system.read_range(url, offset, piece_bytes)
        except PathNotFound:
            return
        if not piece:
            return
        yield piece
        offset += len(piece)
