"""Files and directories of the project: content, listing, creation, deletion; modules imported from them; ``log``.

Paths of the user are resolved to URLs here.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import io
import json
import os
import posixpath
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hopsml.core import settings
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import FileStatus, FileSystem, for_url
from hopsml.storage.streams import spooled_writer

AnyPath = str | bytes | os.PathLike[str]


def project_name() -> str:
    """Return the project's name: ``HOPSML_PROJECT``, else the last part of ``project_path()``.

    Without any setting, when files are in the folder ``.hopsml`` of the working directory, it is the user's name.
    """
    last = urls.name(settings.project_url())
    return settings.project_name() if SETTINGS.project or last in ("", ".hopsml") else last


def project_user(project: str | None = None) -> str:
    """Return ``<project>__<user>``, for this project or another one."""
    user = settings.user_name()
    if project is None and "__" in user:
        return user
    return f"{project or project_name()}__{user.rpartition('__')[2]}"


def project_id() -> int:
    """Raise ArgumentError: only Hopsworks assigns such a number."""
    raise ArgumentError("project_id() is a number of Hopsworks; use project_name()")


def project_path(project: str | None = None, exclude_nn_addr: bool = False) -> str:
    """Return the root of the project with a slash at the end; ``exclude_nn_addr`` omits scheme and host."""
    url = settings.project_url(project) + "/"
    return urls.split(url)[2] if exclude_nn_addr else url


def abs_path(hdfs_path: AnyPath) -> str:
    """Return the full URL of a path; raise PathNotFound (an IOError) if it does not exist."""
    url = to_url(hdfs_path)
    for_url(url).status(url)
    return url


def get_plain_path(hdfs_path: AnyPath) -> str:
    """Return the path without scheme and host: ``/Projects/p/x``."""
    text = path_text(hdfs_path)
    return urls.split(urls.mirrored_url(text) or text)[2]


def to_url(path: AnyPath, project: str | None = None) -> str:
    """Return the URL for a path given by the user."""
    text = path_text(path)
    remote = urls.mirrored_url(text)
    if remote:
        _make_as_it_is_here(text, remote)
        return remote
    if urls.split(text)[0]:
        try:
            for_url(text)
        except ArgumentError as error:
            raise StorageError(str(error), text) from error  # existing code expects an IOError
        return text
    root = settings.project_url(project)
    if not text.startswith("/"):
        return urls.join(root, posixpath.normpath(text)) if text.strip("./") else root
    is_local = urls.is_local(root)
    # On a local project /Projects/p/x, as existing code has it, is in the project; other paths are the machine's.
    head = f"/Projects/{project or project_name()}"
    if is_local and (text == head or text.startswith(head + "/")):
        return root + text[len(head) :]
    return urls.scheme_and_authority(root) + text


def _make_as_it_is_here(local: str, remote: str) -> None:
    """Create a mirrored local folder on the store as well: mirroring copies files later, folders only when needed.

    An example is ``tensorboard.logdir()`` of a trial, in which nothing has been written yet.
    """
    if remote not in _made and os.path.isdir(local):
        for_url(remote).make_dirs(remote)
        _made.add(remote)


_made: set[str] = set()  # folders created so far; one that is deleted afterwards remains deleted


def path_text(path: AnyPath) -> str:
    """Return a path given as text, bytes or an object as text."""
    return os.fsdecode(path)


def local_absolute_path(path: AnyPath) -> str:
    """Return an absolute path of this machine; relative ones start at the working directory."""
    return os.path.abspath(urls.split(path_text(path))[2])


def copy_target(target: str, source: str) -> str:
    """Return the target, or the source's name in it if it is a directory."""
    found = status_or_none(target)
    return urls.join(target, urls.name(source)) if found and found.is_dir else target


def status_or_none(url: str) -> FileStatus | None:
    """Return the metadata of the file or directory at a URL; None if it does not exist."""
    try:
        return for_url(url).status(url)
    except PathNotFound:
        return None


_OF_PYTHON = ("time", "timeit", "capture", "prun")  # magics of a cell whose other lines are Python


def log(string: Any) -> None:
    """Print a text to standard output; inside a training function it goes to the worker's log."""
    print(string.decode(errors="replace") if isinstance(string, bytes) else string, flush=True)


def add_module(hdfs_path: AnyPath, project: str | None = None) -> str:
    """Make a ``.py`` or ``.ipynb`` file importable under its name; return the local path of the module.

    That path is on ``sys.path``, as is its folder. A module that was imported from there is reloaded.
    """
    url = to_url(hdfs_path, project)
    stem, ending = posixpath.splitext(urls.name(url))
    if ending not in (".py", ".ipynb") or not stem.isidentifier():
        raise ArgumentError(f"{url}: a module is a .py or .ipynb file whose name is a Python identifier")
    content = for_url(url).read_bytes(url)
    folder = _module_folder().name
    target = Path(folder, f"{stem}.py")
    target.write_bytes(content if ending == ".py" else _notebook_code(url, content))
    sys.path += [path for path in (folder, str(target)) if path not in sys.path]
    importlib.invalidate_caches()
    loaded = sys.modules.get(stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(target):
        importlib.reload(loaded)
    return str(target)


@functools.cache
def _module_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the process's folder for modules, which is deleted with the process."""
    return tempfile.TemporaryDirectory(prefix="hopsml-modules-")


def _notebook_code(url: str, content: bytes) -> bytes:
    """Return the code cells of a notebook as a module, without lines of magics."""
    try:
        cells = json.loads(content)["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{url}: not a notebook of format 4 ({error!r})") from error
    code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    return "\n".join(line for cell in code for line in [*_without_magic(cell), ""]).encode()


def _without_magic(cell: str) -> list[str]:
    """Return a cell's lines of Python.

    Only a line that begins a statement can be magic: ``% 3`` may continue an expression.
    """
    lines = cell.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and first[2:].split(" ")[0] not in _OF_PYTHON:
        return []  # a cell of another language
    kept, statement = list[str](), list[str]()
    for line in lines:
        if not statement and line.lstrip().startswith(("%", "!")):
            continue
        statement.append(line)
        if not _goes_on("\n".join(statement)):
            kept, statement = [*kept, *statement], []
    return kept + statement


def _goes_on(text: str) -> bool:
    """Return True if a statement continues in the next line: within brackets or a string, or after a backslash."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:  # an indentation that the preceding lines would explain
        pass
    return text.endswith("\\")


def ls(hdfs_path: AnyPath, recursive: bool = False, exclude_nn_addr: bool = False) -> list[str]:
    """Return the full paths of a directory's entries, or of the file itself.

    ``exclude_nn_addr`` omits scheme and host.
    """
    found = [entry.url for entry in _entries(to_url(hdfs_path), recursive)]
    return [urls.split(url)[2] for url in found] if exclude_nn_addr else found


def lsl(hdfs_path: AnyPath, recursive: bool = False, project: str | None = None) -> list[dict[str, Any]]:
    """Return one dict per entry that ``ls`` lists, with pydoop's keys: ``name, kind, size, last_mod, owner, ...``."""
    return [_as_dict(entry) for entry in _entries(to_url(hdfs_path, project), recursive)]


def glob(hdfs_path: AnyPath, recursive: bool = False, project: str | None = None) -> list[str]:
    """Return the full paths that match a pattern of ``* ? [...]``; with ``recursive`` also all paths below them."""
    pattern = to_url(hdfs_path, project)
    head, path = urls.scheme_and_authority(pattern), urls.split(pattern)[2]
    found = [head + ("/" if path.startswith("/") else "")]
    for part in path.strip("/").split("/"):
        found = [match for url in found for match in _matches(url, part)]
    if recursive:
        found += [entry.url for url in found if isdir(url) for entry in filesystem.walk(url)]
    return sorted(set(found))


def mkdir(hdfs_path: AnyPath, project: str | None = None) -> None:
    """Create a directory and its parents; an existing one is no error."""
    url = to_url(hdfs_path, project)
    for_url(url).make_dirs(url)


def rmr(hdfs_path: AnyPath, project: str | None = None) -> None:
    """Delete a file, or a directory with its content; raise PathNotFound if it does not exist."""
    delete(to_url(hdfs_path, project), recursive=True)


def delete(hdfs_path: AnyPath, recursive: bool = False) -> None:
    """Delete a file or an empty directory, with ``recursive`` also a full one; raise PathNotFound if absent."""
    url = to_url(hdfs_path)
    if not for_url(url).delete(url, recursive):
        raise PathNotFound(f"cannot delete {url}: there is no such file or directory", url)


def exists(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a file or directory at this path."""
    return filesystem.exists(to_url(hdfs_path, project))


def isdir(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a directory at this path."""
    found = status_or_none(to_url(hdfs_path, project))
    return found is not None and found.is_dir


def isfile(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a file, not a directory, at this path."""
    found = status_or_none(to_url(hdfs_path, project))
    return found is not None and not found.is_dir


def _entries(url: str, recursive: bool) -> Iterator[FileStatus]:
    """Yield the entries of a directory without temporary ones, or the file itself."""
    system = for_url(url)
    found = system.status(url)
    if not found.is_dir:
        yield found
    elif recursive:
        yield from (entry for entry in filesystem.walk(url) if not urls.is_temporary(entry.url))
    else:
        yield from (entry for entry in system.list_dir(url) if not urls.is_temporary(entry.url))


def _matches(url: str, pattern: str) -> list[str]:
    """Return the entries of ``url`` whose name matches one component of a pattern."""
    if not any(sign in pattern for sign in "*?["):
        below = urls.join(url, pattern) if pattern else url
        return [below] if filesystem.exists(below) else []
    if not isdir(url):
        return []
    hidden = pattern.startswith(".")
    names = (entry.name for entry in for_url(url).list_dir(url))
    return [urls.join(url, n) for n in names if fnmatch.fnmatchcase(n, pattern) and (hidden or n[0] != ".")]


def _as_dict(entry: FileStatus) -> dict[str, Any]:
    """Return the metadata of an entry with pydoop's keys."""
    return {
        "name": entry.url,
        "kind": "directory" if entry.is_dir else "file",
        "size": entry.length,
        "last_mod": int(entry.modified_s),
        "last_access": int(entry.accessed_s),
        "owner": entry.owner,
        "group": entry.group,
        "permissions": entry.permission,
        "replication": entry.replication,
        "block_size": entry.block_size,
    }


def dump(data: str | bytes, hdfs_path: AnyPath) -> None:
    """Write text (UTF-8) or bytes as a file; an existing one is replaced atomically."""
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"dump() writes str or bytes, not {type(data).__name__}; encode it first")
    url = to_url(hdfs_path)
    for_url(url).write_bytes(url, data.encode() if isinstance(data, str) else bytes(data))


def load(hdfs_path: AnyPath) -> bytes:
    """Return the content of a file as bytes.

    Raises PathNotFound (an IOError).
    """
    url = to_url(hdfs_path)
    return for_url(url).read_bytes(url)


def open_file(hdfs_path: AnyPath, project: str | None = None, flags: str = "rw", buff_size: int = 0) -> Any:
    """Open a file and return a file object.

    Args:
        hdfs_path: path of the file.
        project: name of another project than this one.
        flags: ``r``, ``w`` or ``a``, binary unless followed by ``t``. ``rw`` (the default) reads a file that exists and
            writes one that does not. Written content appears at close.
        buff_size: ignored; accepted for compatibility. Remote files are read in parts of about 1 MiB, and written to a
            local file that is uploaded at close.
    """
    url = to_url(hdfs_path, project)
    system = for_url(url)
    if flags == "rw":
        flags = "r" if filesystem.exists(url) else "w"
    kind, rest = flags[:1], flags[1:]
    if kind not in ("r", "w", "a") or rest not in ("", "b", "t"):
        raise ArgumentError(f"flags={flags!r}: 'r', 'w' or 'a', then nothing, 'b' or 't'; or 'rw'")
    if kind == "r":
        file: BinaryIO = system.open_read(url)
    elif kind == "w":
        file = system.open_write(url)
    else:
        file = _appender(system, url)
    if rest == "t":
        return io.TextIOWrapper(file, encoding="utf-8")
    return file


def _appender(system: FileSystem, url: str) -> BinaryIO:
    """Return a writer whose content is appended to a file at close."""
    return spooled_writer(lambda spooled: system.append_bytes(url, Path(spooled).read_bytes()))


class FileSystemHandle:
    """Handle with a few methods of pydoop's, as returned by ``get()`` and ``get_fs()``."""

    def open_file(self, path: AnyPath, flags: str = "r", **_: Any) -> Any:
        """Open a file as ``hdfs.open_file``, by default for reading."""
        return open_file(path, flags=flags)

    def exists(self, path: AnyPath) -> bool:
        """Return True if there is a file or directory at this path."""
        return exists(path)

    def delete(self, path: AnyPath, recursive: bool = True) -> bool:
        """Delete a path as ``hdfs.delete``, with its content; return False if it does not exist."""
        url = to_url(path)
        return for_url(url).delete(url, recursive)

    def create_directory(self, path: AnyPath) -> bool:
        """Create a directory and its parents, as ``hdfs.mkdir``; return True."""
        mkdir(path)
        return True

    def close(self) -> None:
        """Do nothing, as a handle holds no connection."""

    def __enter__(self) -> FileSystemHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def get() -> FileSystemHandle:
    """Return a handle on the project's store; the same as ``get_fs()``."""
    return FileSystemHandle()


def get_fs() -> FileSystemHandle:
    """Return a handle on the project's store; the same as ``get()``."""
    return FileSystemHandle()
