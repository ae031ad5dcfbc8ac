"""Folder of a stage's files; each is a complete attempt at a partition, or does not exist."""

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
    """Folder of a stage, in which tasks on the same machine write as well (``native/spark_push``)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, file: str) -> Path:
        """Return the path of an attempt's file. Raises ValueError for any other name."""
        if not _FILE.fullmatch(file):
            raise ValueError(f"{file!r} is none of this stage's files")
        return self._folder / file

    @contextlib.contextmanager
    def keeping(self, file: str) -> Iterator[BinaryIO]:
        """Open a file for writing, which gets its name once the context ends without an error.

        Args:
            file: path of an attempt's file in the folder.

        Raises:
            ValueError: the name is not that of an attempt's file.
            OSError: the file cannot be written; the message names the host and the folder.
        """
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
        """Delete the attempts that a settled table does not list; a table that is not settled deletes nothing."""
        if not table.is_settled:
            return
        counting = {self._folder / one.file(table.name) for one in table.partitions}
        for path in self._folder.glob(file_of(table.name, "*", "*")):
            if path not in counting:
                path.unlink(missing_ok=True)
