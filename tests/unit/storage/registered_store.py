"""Store of fsspec that a program registers itself, with an answer whose length is configured."""

from __future__ import annotations

from typing import Any

from fsspec import AbstractFileSystem


class RegisteredFileSystem(AbstractFileSystem):
    """File system that implements ``info`` only."""

    protocol = "registered"

    def __init__(self, length: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.length = length

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": self.length}
