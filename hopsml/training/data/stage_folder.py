"""The files of a stage: each an attempt at a partition, whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hopsml.training.data.frame_log import FrameTable, file_of

_FILE = re.compile(r"data-(\w+)/\d+-\d+\.arrow")  # as frame_log.py names them


class StageFolder:
    """A folder of one process, beside which tasks on the same machine write as well (``native/spark_push``)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, file: str) -> Path:
        """Of an attempt's file, and of nothing else. Raises ValueError for another name."""
        if not _FILE.fullmatch(file):
            raise ValueError(f"{file!r} is none of this stage's files")
        return self._folder / file

    @contextlib.contextmanager
    def keeping(self, file: str) -> Iterator[BinaryIO]:
        """A file to write to, which is there under its name once all went well. Raises ValueError, OSError in words."""
        path = self.path_of(file)
        part = path.with_suffix(".arrow.part")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as content:
                yield content
            part.rename(path)
        except OSError as error:
            where = f"{socket.gethostname()} cannot keep the rows of {path.parent.name} in {path.parent}"
            raise OSError(error.errno, f"{where}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def keep_only(self, table: FrameTable) -> None:
        """Delete what was tried, and does not count; a table that is not settled does not say that."""
        if not table.is_settled:
            return
        counting = {self._folder / one.file(table.name) for one in table.partitions}
        for path in self._folder.glob(file_of(table.name, "*", "*")):
            if path not in counting:
                path.unlink(missing_ok=True)
