"""FUSE file system that loses unsynced data at a simulated power failure, served by a separate process.

All processes see every write at once. After ``cut_power`` only durable data remains:

- the content of a file at its last ``fsync``; a file that was never synced is empty;
- the names in a folder at the last ``fsync`` of that folder, including renames and deletions.

That is the minimum that POSIX guarantees, and less than most file systems retain. It needs /dev/fuse and the right to
mount, but no library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_MOST_WRITE = 1 << 17
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTRIBUTES, _ENTRY = struct.Struct("<6Q10I"), struct.Struct("<4Q2I")
_SETATTR, _IO = struct.Struct("<IIQQQQQQIIIIIIII"), struct.Struct("<QQIIQII")
_SYNCED_WRITE = os.O_SYNC | os.O_DSYNC


class LossyDisk:
    """Mounted disk, created by ``mounted``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._start()

    def _start(self, command: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.lossy_disk", str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self._expect("mounted")

    def _expect(self, answer: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != answer:
            self._process.wait()
            pytest.skip(f"a FUSE file system cannot be mounted here: {line}")

    def cut_power(self) -> None:
        """Discard all unsynced data. Processes that have files of the disk open must have ended."""
        assert self._process.stdin is not None
        self._process.stdin.write("cut\n")
        self._process.stdin.flush()
        self._expect("mounted")

    def close(self) -> None:
        """Unmount the disk, and end its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[LossyDisk]:
    """Mount an empty disk at ``folder``, which is created; skip the test if it cannot be mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a disk that loses unsynced data needs /dev/fuse")
    folder.mkdir()
    disk = LossyDisk(folder)
    try:
        yield disk
    finally:
        disk.close()


# ------------------------------------------------------------------------------------------ in the disk's process


@dataclass(eq=False)
class _Node:
    number: int
    mode: int
    uid: int = 0
    gid: int = 0
    data: bytearray = field(default_factory=bytearray)  # of a link its target
    entries: dict[bytes, _Node] = field(default_factory=dict)
    links: int = 1
    modified: float = field(default_factory=time.time)
    durable_data: bytes = b""
    durable_entries: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def sync(self) -> None:
        self.durable_data, self.durable_entries = bytes(self.data), dict(self.entries)


class _Disk:
    """File tree, with a handler for each request of the kernel."""

    def __init__(self) -> None:
        self.root = _Node(1, stat.S_IFDIR | 0o777)
        self.nodes = {1: self.root}
        self._last = 1
        self._handlers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup, 3: self.getattr, 4: self.setattr, 5: self.readlink, 6: self.symlink, 8: self.mknod,
            9: self.mkdir, 10: self.unlink, 11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open,
            15: self.read, 16: self.write, 17: self.statfs, 18: self.nothing, 20: self.fsync, 25: self.nothing,
            26: self.init, 27: self.open, 28: self.readdir, 29: self.nothing, 30: self.fsync, 35: self.create,
            38: self.nothing, 45: self.rename2,
        }  # fmt: skip

    def forget_unsynced(self) -> None:
        self.nodes, pending = {1: self.root}, [self.root]
        while pending:
            node = pending.pop()
            node.data, node.entries = bytearray(node.durable_data), dict(node.durable_entries)
            if stat.S_ISLNK(node.mode):
                node.durable_data = bytes(node.data)
            for child in node.entries.values():
                if child.number not in self.nodes:
                    self.nodes[child.number] = child
                    pending.append(child)

    def answer(self, request: bytes) -> bytes | None:
        _, opcode, unique, number, self._uid, self._gid, *_ = _IN.unpack_from(request)
        if opcode in (2, 36, 42):  # forget, interrupt, batch forget: these have no answer
            return None
        handler, code, body = self._handlers.get(opcode), 0, b""
        try:
            if handler is None:
                raise OSError(errno.ENOSYS, "")
            body = handler(number, request[_IN.size :])
        except OSError as error:
            code = -(error.errno or errno.EIO)
        return _OUT.pack(_OUT.size + len(body), code, unique) + body

    # -- handlers: arguments are a node's number and the rest of the request; they return the body of the answer

    def init(self, number: int, rest: bytes) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<4I", rest)
        big_writes = 1 << 5
        return struct.pack("<4I2H2I2HI7I", 7, 31, readahead, big_writes, 12, 9, _MOST_WRITE, 1, 0, 0, 0, *[0] * 7)

    def nothing(self, number: int, rest: bytes) -> bytes:
        return b""

    def lookup(self, number: int, rest: bytes) -> bytes:
        return self._entry(self._child(number, _names(rest)[0]))

    def getattr(self, number: int, rest: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self.nodes[number])

    def setattr(self, number: int, rest: bytes) -> bytes:
        valid, _, _, size, _, _, modified, _, _, _, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(rest)
        node = self.nodes[number]
        if valid & 1:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        if valid & 2:
            node.uid = uid
        if valid & 4:
            node.gid = gid
        if valid & 8:
            node.data[:] = node.data[:size].ljust(size, b"\0")
            node.modified = time.time()
        if valid & 32:
            node.modified = time.time() if valid & 256 else float(modified)
        return self.getattr(number, b"")

    def readlink(self, number: int, rest: bytes) -> bytes:
        return bytes(self.nodes[number].data)

    def symlink(self, number: int, rest: bytes) -> bytes:
        name, target = _names(rest)[:2]
        node = self._made(number, name, stat.S_IFLNK | 0o777)
        node.data, node.durable_data = bytearray(target), target
        return self._entry(node)

    def mknod(self, number: int, rest: bytes) -> bytes:
        mode, _, umask, _ = struct.unpack_from("<4I", rest)
        return self._entry(self._made(number, _names(rest[16:])[0], mode & ~umask))

    def mkdir(self, number: int, rest: bytes) -> bytes:
        mode, umask = struct.unpack_from("<2I", rest)
        return self._entry(self._made(number, _names(rest[8:])[0], stat.S_IFDIR | (mode & ~umask)))

    def create(self, number: int, rest: bytes) -> bytes:
        _, mode, umask, _ = struct.unpack_from("<4I", rest)
        node = self._made(number, _names(rest[16:])[0], stat.S_IFREG | stat.S_IMODE(mode & ~umask))
        return self._entry(node) + self.open(node.number, b"")

    def unlink(self, number: int, rest: bytes) -> bytes:
        name = _names(rest)[0]
        self._child(number, name).links -= 1
        del self.nodes[number].entries[name]
        return b""

    def rmdir(self, number: int, rest: bytes) -> bytes:
        if self._child(number, _names(rest)[0]).entries:
            raise OSError(errno.ENOTEMPTY, "")
        return self.unlink(number, rest)

    def rename(self, number: int, rest: bytes) -> bytes:
        return self._renamed(number, struct.unpack_from("<Q", rest)[0], 0, *_names(rest[8:])[:2])

    def rename2(self, number: int, rest: bytes) -> bytes:
        target_folder, flags, _ = struct.unpack_from("<QII", rest)
        return self._renamed(number, target_folder, flags, *_names(rest[16:])[:2])

    def _renamed(self, number: int, target_folder: int, flags: int, old: bytes, new: bytes) -> bytes:
        node, folder = self._child(number, old), self.nodes[target_folder]
        replaced = folder.entries.get(new)
        if flags & ~1:
            raise OSError(errno.EINVAL, "")
        if replaced is not None and flags & 1:
            raise OSError(errno.EEXIST, "")
        if replaced is not None and replaced.entries:
            raise OSError(errno.ENOTEMPTY, "")
        if replaced is not None:
            replaced.links -= 1
        del self.nodes[number].entries[old]
        folder.entries[new] = node
        return b""

    def link(self, number: int, rest: bytes) -> bytes:
        node, name = self.nodes[struct.unpack_from("<Q", rest)[0]], _names(rest[8:])[0]
        if name in self.nodes[number].entries:
            raise OSError(errno.EEXIST, "")
        self.nodes[number].entries[name] = node
        node.links += 1
        return self._entry(node)

    def open(self, number: int, rest: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def read(self, number: int, rest: bytes) -> bytes:
        _, offset, size, *_ = _IO.unpack_from(rest)
        return bytes(self.nodes[number].data[offset : offset + size])

    def write(self, number: int, rest: bytes) -> bytes:
        _, offset, size, _, _, flags, _ = _IO.unpack_from(rest)
        node, piece = self.nodes[number], rest[_IO.size : _IO.size + size]
        if offset > len(node.data):
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset : offset + size] = piece
        node.modified = time.time()
        if flags & _SYNCED_WRITE:
            node.sync()
        return struct.pack("<II", size, 0)

    def fsync(self, number: int, rest: bytes) -> bytes:
        self.nodes[number].sync()
        return b""

    def statfs(self, number: int, rest: bytes) -> bytes:
        return struct.pack("<5Q4I6I", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0, *[0] * 6)

    def readdir(self, number: int, rest: bytes) -> bytes:
        _, offset, size, *_ = _IO.unpack_from(rest)
        found = b""
        entries = [(b".", self.nodes[number]), (b"..", self.root), *self.nodes[number].entries.items()]
        for place, (name, node) in enumerate(entries[offset:], offset + 1):
            one = struct.pack("<QQII", node.number, place, len(name), stat.S_IFMT(node.mode) >> 12) + name
            one = one.ljust(-(-len(one) // 8) * 8, b"\0")
            if len(found) + len(one) > size:
                break
            found += one
        return found

    # -- nodes

    def _child(self, number: int, name: bytes) -> _Node:
        node = self.nodes[number].entries.get(name)
        if node is None:
            raise OSError(errno.ENOENT, "")
        return node

    def _made(self, number: int, name: bytes, mode: int) -> _Node:
        if name in self.nodes[number].entries:
            raise OSError(errno.EEXIST, "")
        self._last += 1
        node = self.nodes[self._last] = _Node(self._last, mode, self._uid, self._gid)
        self.nodes[number].entries[name] = node
        return node

    def _attributes(self, node: _Node) -> bytes:
        seconds, rest = int(node.modified), int(node.modified % 1 * 1e9)
        times = (*[seconds] * 3, *[rest] * 3)
        size = len(node.data)
        head = (node.number, size, -(-size // 512), *times)
        return _ATTRIBUTES.pack(*head, node.mode, max(node.links, 0), node.uid, node.gid, 0, 4096, 0)

    def _entry(self, node: _Node) -> bytes:
        return _ENTRY.pack(node.number, 0, 0, 0, 0, 0) + self._attributes(node)


def _names(rest: bytes) -> list[bytes]:
    return rest.split(b"\0")


def _mount(folder: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if _LIBC.mount(b"lossy", folder.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


def _unmount(folder: str, device: int) -> None:
    _LIBC.umount2(folder.encode(), _DETACH)
    os.close(device)


def main() -> None:
    """Serve until the end of the input; each line of it simulates a power failure."""
    folder, disk = sys.argv[1], _Disk()
    try:
        device = _mount(folder)
    except OSError as error:
        print(error, flush=True)
        return
    print("mounted", flush=True)
    while True:
        readable, _, _ = select.select([device, 0], [], [])
        if 0 in readable:
            line = os.read(0, 100)
            _unmount(folder, device)
            if not line:
                return
            disk.forget_unsynced()
            device = _mount(folder)
            print("mounted", flush=True)
            continue
        try:
            request = os.read(device, _MOST_WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:  # it was unmounted
                return
            continue
        answer = disk.answer(request)
        if answer is not None:
            with contextlib.suppress(FileNotFoundError):  # the process that sent the request was killed
                os.write(device, answer)


if __name__ == "__main__":
    main()
