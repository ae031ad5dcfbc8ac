"""Selection of the files of a folder that are uploaded as a job's code, with the reason for each that is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hopsml.errors import ArgumentError

_OF_TOOLS = {".git", ".hopsml", ".venv", "__pycache__", "node_modules", ".ipynb_checkpoints", ".mypy_cache"}
_HIDDEN, _TOOLS, _COMPILED = "hidden folders", "folders of tools", "compiled Python"
_ELSEWHERE, _NOWHERE, _AROUND = "links out of the folder", "links to nothing", "links to a folder that they lie in"
_SPECIAL, _UNNAMEABLE = "neither files nor folders", "names that are not UTF-8"


@dataclass
class UploadSelection:
    """Files by their path in the zip, empty folders, and the paths that are left out, by reason."""

    files: dict[str, Path] = field(default_factory=dict)
    empty_folders: list[str] = field(default_factory=list)
    folders: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, name: str, reason: str) -> None:
        """Record a path that is not uploaded, with the reason."""
        shown = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in name)
        self.left_out.setdefault(reason, []).append(shown)


def select_files(folder: Path, most_files: int, most_folders: int, most_depth: int) -> UploadSelection:
    """Select the files and folders below a folder; links are followed if their targets lie below it.

    Raises:
        ArgumentError: there are more files or folders than the limits allow, or they lie deeper.
    """
    found, root = UploadSelection(), folder.resolve()
    _Walk(folder, root, found, (most_files, most_folders, most_depth)).below(root, "", (root,))
    found.files = dict(sorted(found.files.items(), key=lambda item: PurePosixPath(item[0])))
    return found


@dataclass(frozen=True)
class _Walk:
    """Traversal of a folder that collects the files to upload."""

    folder: Path  # as shown in messages
    root: Path
    found: UploadSelection
    limits: tuple[int, int, int]

    def below(self, place: Path, above: str, inside: tuple[Path, ...]) -> None:
        """Add the content of a folder; ``inside``: real paths of the folder and of those above it."""
        before = len(self.found.files) + len(self.found.empty_folders)
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            name = f"{above}{entry.name}"
            reason = self._take(Path(entry.path), name, inside)
            if reason:
                self.found.leave_out(name, reason)
        if above and len(self.found.files) + len(self.found.empty_folders) == before:
            self.found.empty_folders.append(above)

    def _take(self, path: Path, name: str, inside: tuple[Path, ...]) -> str:
        """Add a file, or the content of a folder; return the reason if it is left out."""
        try:
            real, mode = path.resolve(strict=True), path.stat().st_mode
        except (OSError, RuntimeError):  # links that form a cycle raise them as well
            return _NOWHERE
        if not real.is_relative_to(self.root):
            return _ELSEWHERE
        if _OF_TOOLS & {path.name, *real.relative_to(self.root).parts}:
            return _TOOLS
        if not _is_utf8(path.name):
            return _UNNAMEABLE
        if stat.S_ISDIR(mode):
            if path.name.startswith("."):
                return _HIDDEN
            if real in inside:
                return _AROUND
            self.found.folders += 1
            self._check(f"{name}/")
            self.below(real, f"{name}/", (*inside, real))
            return ""
        if not stat.S_ISREG(mode):
            return _SPECIAL
        if path.name.endswith(".pyc"):
            return _COMPILED
        self.found.files[name] = real
        self._check(name)
        return ""

    def _check(self, name: str) -> None:
        """Raise ArgumentError if the files, folders or depth exceed the limits."""
        files, folders, depth = self.limits
        why = (
            f"more than {files} files" if len(self.found.files) > files
            else f"more than {folders} folders" if self.found.folders > folders
            else f"{name[:100]!r}, which lies deeper than {depth} folders" if name.count("/") > depth
            else ""
        )  # fmt: skip
        if why:
            raise ArgumentError(
                f"code {self.folder} has {why}; store data elsewhere, and name a folder that contains only code"
            )


def _is_utf8(name: str) -> bool:
    """Return True if a file name can be encoded as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def left_out_text(left_out: Mapping[str, list[str]]) -> str:
    """Return the list of left-out paths, as shown to the user; "" if nothing is left out."""
    return "; ".join(f"{reason}: {', '.join(names)}" for reason, names in left_out.items())
