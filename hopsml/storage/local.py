"""File system of the local disk, by bare paths and ``file://`` URLs."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hopsml.core import ownership
from hopsml.core.platforms import descriptor_path
from hopsml.errors import PathExists, PathNotFound, PermissionRefused, StorageError
from hopsml.storage import causes, durable, privacy, trust, urls, waiting
from hopsml.storage.filesystem import FileStatus, FileSystem, StoreCapacity, check_length
from hopsml.storage.streams import spooled_writer


def create(url: str, timeout_s: float) -> LocalFileSystem:
    """Return the file system for bare paths and ``file://``; ``timeout_s`` has no effect here."""
    return LocalFileSystem(timeout_s)


@waiting.count_calls_as_waits
class LocalFileSystem(FileSystem):
    """FileSystem on this machine's disks, without a deadline, since the kernel serves it.

    When a call returns, the data that it has written is on the disk (``durable``), with its name and its folders.
    """

    scheme = "file"

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; PathNotFound if there is none."""
        with _causes("look at", url), trust.pinned_path(_path(url)) as path:
            return _status(url, os.stat(path))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory by name.

        An entry that disappears during the call is left out, as is a link that leads out of a confined project.
        """
        found = []
        with _causes("list", url), trust.pinned_path(_path(url)) as folder:
            for entry in sorted(os.listdir(folder)):
                with (
                    contextlib.suppress(FileNotFoundError, PermissionRefused),
                    trust.pinned_path(os.path.join(_path(url), entry)) as path,
                ):
                    found.append(_status(urls.join(url, entry), os.stat(path)))
        return found

    def read_bytes(self, url: str, most: int | None = None) -> bytes:
        """Return the whole content of one file; StorageError if it has more than ``most`` bytes."""
        with _causes("read", url), open(_path(url), "rb", opener=trust.opener) as file:
            length = os.fstat(file.fileno()).st_size
            trust.check_read_length(_path(url), length)
            check_length(url, length, most)
            return file.read()

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        with _causes("read", url), open(_path(url), "rb", opener=trust.opener) as file:
            file.seek(offset)
            return file.read(length)

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Write a file, completely or not at all; missing parents are created."""
        with _causes("write", url), self._appearing(url, overwrite) as fresh:
            Path(fresh).write_bytes(data)

    def append_bytes(self, url: str, data: bytes) -> None:
        """Append to a file, which is created if missing."""
        with _causes("append to", url):
            self.make_dirs(urls.parent(url))
            with open(_path(url), "ab", opener=open_with_folder_permission) as file:
                is_new = not file.tell()
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                durable.sync_directory_entry(_path(url))

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """Copy one local file to ``url``, completely or not at all; missing parents are created."""
        with (
            _causes(f"copy {os.fspath(local)} to", url),
            open(local, "rb", opener=trust.opener) as source,
            self._appearing(url, overwrite) as fresh,
        ):
            shutil.copyfile(descriptor_path(source.fileno()), fresh)

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """Copy one file to a local path, completely or not at all; an existing file is replaced."""
        with _causes("copy", url):
            _not_a_directory(url, "read")
            with (
                open(_path(url), "rb", opener=trust.opener) as source,
                self._appearing(os.path.abspath(local), True) as fresh,
            ):
                shutil.copyfile(descriptor_path(source.fileno()), fresh)

    def open_read(self, url: str) -> BinaryIO:
        """Open one file for reading in binary mode."""
        with _causes("read", url):
            return open(_path(url), "rb", opener=trust.opener)

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """Return a binary writer; the file appears when it is closed, and not at all if its ``with`` block fails."""
        if not overwrite and os.path.exists(_path(url)):
            raise PathExists(f"cannot write {url}: it already exists; allow overwriting or choose another name", url)
        return spooled_writer(lambda spooled: self.upload(spooled, url, overwrite))

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """Create a directory with its parents, each with the permission of the folder above it.

        With a ``mode``, an existing directory must belong to this user.
        """
        with _causes("make directory", url):
            path = _path(url)
            is_new = make_dirs(path)
            if mode is not None and is_new:
                os.chmod(path, mode)
            elif mode is not None and os.stat(path).st_uid != os.geteuid():
                raise PathExists(
                    f"cannot make directory {url}: it already exists, and belongs to another user; choose another name",
                    url,
                )

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Rename a file or directory atomically.

        Without ``overwrite`` a concurrently created file is never replaced.
        """
        self._rename(_path(source), _path(target), overwrite, target)

    def _rename(self, old: str, new: str, overwrite: bool, target: str) -> None:
        with _causes(f"rename {old} to", target):
            if overwrite:
                os.replace(old, new)
            elif os.path.isdir(old):
                if os.path.lexists(new):  # a directory with entries that is created now still makes os.rename fail
                    raise PathExists(
                        f"cannot rename {old} to {target}: the target already exists; choose another name", target
                    )
                os.rename(old, new)
            else:
                _rename_exclusively(old, new)
            durable.sync_directory_entry(new)
            if os.path.dirname(old) != os.path.dirname(new):
                durable.sync_directory_entry(old)

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Delete a file, an empty directory, or with ``recursive`` a full one; False if there was none."""
        path = _path(url)
        with _causes("delete", url):
            try:
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path) if recursive else os.rmdir(path)
                else:
                    os.unlink(path)
            except FileNotFoundError:
                return False
            return True

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``, as in ``0o755``."""
        with _causes("change the permission of", url):
            os.chmod(_path(url), mode)

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """Change owner and group by names of this machine's users and groups; None leaves one unchanged."""
        with _causes("change the owner of", url):
            try:
                if owner is not None:
                    shutil.chown(_path(url), user=owner)
                if group is not None:
                    shutil.chown(_path(url), group=group)
            except LookupError as error:
                raise PathNotFound(
                    f"cannot change the owner of {url}: {error}; use a user and a group of this machine", url
                ) from error

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the disk that holds ``url``."""
        with _causes("measure", url):
            usage = shutil.disk_usage(_path(url))
            return StoreCapacity(usage.total, usage.used)

    @contextlib.contextmanager
    def _appearing(self, url: str, overwrite: bool) -> Iterator[str]:
        """Yield a fresh temporary path, which is renamed to ``url`` if the block succeeds, and removed if it fails."""
        self.make_dirs(urls.parent(url))
        if os.path.isdir(_path(url)):
            raise PathExists(f"cannot write {url}: it is a directory; choose another name", url)
        parent, name = os.path.split(_path(url))
        with trust.pinned_path(parent or ".") as folder:
            fresh = os.path.join(folder, os.path.basename(urls.temporary_sibling(name)))
            try:
                os.close(open_with_folder_permission(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                yield fresh
                durable.sync_file(fresh)
                self._rename(fresh, os.path.join(folder, name), overwrite, url)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
                raise


def open_with_folder_permission(path: str, flags: int) -> int:
    """Open a regular file as ``confinement.opener`` does; a new one gets the permission of its folder.

    So no user can read it who cannot read the folder; the umask narrows it further.
    """
    return trust.opener(path, flags, privacy.new_file_mode(os.stat(os.path.dirname(path) or ".").st_mode))


def make_dirs(path: str) -> bool:
    """Create a directory with its parents, each with the permission of the folder above it.

    Returns:
        True if ``path`` itself was created.
    """
    missing, above = [], path.rstrip("/") or "/"
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above) or "."
    mode = privacy.new_folder_mode(os.stat(above).st_mode) if missing else 0
    made = False
    for folder in reversed(missing):
        try:
            os.mkdir(folder, mode)
            durable.sync_directory_entry(folder)
            made = True
        except FileExistsError:  # another process was faster, or it is a file
            if not os.path.isdir(folder):
                raise
            made = False
    return made


def _rename_exclusively(old: str, new: str) -> None:
    """Rename a file to a name that must be free; of several callers one succeeds."""
    try:
        os.link(old, new)  # fails where the name is taken, unlike rename
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        os.close(os.open(new, os.O_CREAT | os.O_EXCL))  # a disk without hard links: create the name exclusively first
        os.replace(old, new)
    else:
        os.unlink(old)


def _path(url: str) -> str:
    return urls.split(url)[2]


def _not_a_directory(url: str, action: str) -> None:
    if os.path.isdir(_path(url)):
        raise PathExists(f"cannot {action} {url}: it is a directory, not a file", url)


@contextlib.contextmanager
def _causes(action: str, url: str) -> Iterator[None]:
    """Convert OSError into the StorageError of its cause."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):  # already converted
            raise
        raise causes.from_os_error(action, url, error) from error


def _status(url: str, facts: os.stat_result) -> FileStatus:
    is_dir = stat.S_ISDIR(facts.st_mode)
    return FileStatus(
        url=url,
        is_dir=is_dir,
        length=0 if is_dir else facts.st_size,
        modified_s=facts.st_mtime,
        owner=ownership.name_of_user(facts.st_uid),
        group=_group_name(facts.st_gid),
        permission=stat.S_IMODE(facts.st_mode),
        replication=0 if is_dir else 1,
        block_size=facts.st_blksize,
        accessed_s=facts.st_atime,
    )


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
