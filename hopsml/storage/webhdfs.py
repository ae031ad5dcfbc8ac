"""``webhdfs://`` and ``swebhdfs://`` through HdfsCLI: HDFS by way of HTTP, through proxies and HttpFS."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from hopsml import redact, settings
from hopsml.errors import (
    ArgumentError,
    PathExists,
    PathNotFound,
    StorageError,
    StorageTimeout,
    StorageUnavailable,
)
from hopsml.storage import causes, hadoop_tokens, hadoop_web, leftovers, privacy, urls
from hopsml.storage.deadline import Steps
from hopsml.storage.filesystem import Capacity, FileStatus
from hopsml.storage.frames import CHUNK_BYTES
from hopsml.storage.streams import buffered_reader, spooled_writer

T = TypeVar("T")
_DEFAULT_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
_SEND_BYTES = 1 << 20
_MODES_KEPT = 256
_modes: dict[str, int] = {}  # of folders that decide for what lies in them; asked once a process


def create(url: str, timeout_s: float) -> WebHdfsFileSystem:
    """The file system for ``webhdfs://host:port`` or a name service of the Hadoop configuration."""
    for logger in ("urllib3", "requests", "hdfs"):  # they write down whole addresses, with the token in them
        redact.clean_log(logger)
    return WebHdfsFileSystem(url, timeout_s)


class WebHdfsFileSystem:
    """FileSystem by WebHDFS; each step runs in a thread that is abandoned when its deadline passes."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.scheme, self._authority, _ = urls.split(url)
        self.timeout_s = timeout_s
        self._url = url

    def status(self, url: str) -> FileStatus:
        """PathNotFound if there is nothing."""
        return _status(url, self._run("look at", url, lambda client: client.status(_path(url))))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Entries by name."""
        found = self._run("list", url, lambda client: client.list(_path(url), status=True))
        entries = [_status(urls.join(url, name), facts) for name, facts in found]
        return sorted(entries, key=lambda entry: entry.name)

    def read_bytes(self, url: str) -> bytes:
        """The whole file; its length is checked."""
        return b"".join(self._chunks(url, 0, self._file_length(url)))

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        there = self.status(url).length
        return b"".join(self._chunks(url, offset, max(0, min(length, there - offset))))

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Whole or not at all."""
        view = memoryview(data).cast("B")
        pieces = (bytes(view[at : at + _SEND_BYTES]) for at in range(0, len(view), _SEND_BYTES))
        with self._appearing(url, overwrite) as fresh:
            self._send(url, fresh, pieces)

    def append_bytes(self, url: str, data: bytes) -> None:
        """Add to the end of a file, made if missing."""
        try:
            self.status(url)
        except PathNotFound:
            return self.write_bytes(url, data)
        return self._send(url, url, iter([data]), append=True)

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """One local file, whole or not at all; its length is checked."""
        try:
            file = open(local, "rb")  # noqa: SIM115
        except OSError as error:
            raise causes.from_os_error("read", os.fspath(local), error) from error
        with file, self._appearing(url, overwrite) as fresh:
            self._send(url, fresh, iter(lambda: file.read(_SEND_BYTES), b""))
            if self.status(fresh).length != file.tell():
                raise StorageUnavailable(f"cannot write {url}: not all of {file.tell()} bytes arrived", url)

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """One file to a local path, whole or not at all; its length is checked."""
        length, target = self._file_length(url), os.path.abspath(local)
        fresh = Path(urls.temporary_sibling(target))
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            with open(fresh, "xb") as file:
                for piece in self._chunks(url, 0, length):
                    file.write(piece)
            os.replace(fresh, target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            if isinstance(error, StorageError):
                raise
            raise causes.from_os_error("write", target, error) from error

    def open_read(self, url: str) -> BinaryIO:
        """A seekable binary reader."""
        there = self._file_length(url)
        return buffered_reader(lambda offset, length: self.read_range(url, offset, length), there)

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """A binary writer by way of a local temporary file, uploaded when it is closed."""
        self._refuse_taken(url, overwrite)
        return spooled_writer(lambda spooled: self.upload(spooled, url, overwrite))

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """With parents, as open as what they lie in."""
        if mode is not None:
            self.make_dirs(urls.parent(url))  # which must not get the mode as well
        text = f"{privacy.of_folder(self._above(url)) if mode is None else mode:o}"
        self._run("make directory", url, lambda client: client.makedirs(_path(url), permission=text))

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """In one step of the NameNode."""
        # Without the option WebHDFS moves INTO an existing directory and says no more than "false" on
        # failure.
        option = "OVERWRITE" if overwrite else "NONE"
        self._run(
            f"rename {source} to",
            target,
            lambda client: client._rename(_path(source), destination=_path(target), renameoptions=option),
        )

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Whether there was something."""
        return bool(self._run("delete", url, lambda client: client.delete(_path(url), recursive=recursive)))

    def set_permission(self, url: str, mode: int) -> None:
        """As in ``0o755``."""
        text = f"{mode:o}"
        self._run("change the permission of", url, lambda client: client.set_permission(_path(url), text))

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """What is None stays. Only HDFS's superuser may change an owner."""
        self._run("change the owner of", url, lambda client: client.set_owner(_path(url), owner, group))

    def capacity(self, url: str) -> Capacity:
        """Of the whole HDFS."""
        return hadoop_web.capacity(url, self.timeout_s)

    def close(self) -> None:
        """A connection lives no longer than a call."""

    # ------------------------------------------------------------------ hands

    def _above(self, url: str) -> int:
        """The permission of the folder that decides how open a file is, of its run or the nearest there is."""
        folder = f"{urls.base(url)}{privacy.decisive(_path(url))}"
        while True:
            if folder not in _modes:
                try:
                    found = self.status(folder).permission
                except PathNotFound:
                    folder = urls.parent(folder)
                    continue
                while len(_modes) >= _MODES_KEPT:
                    _modes.pop(next(iter(_modes)), None)
                _modes[folder] = found
            return _modes[folder]

    def _file_length(self, url: str) -> int:
        found = self.status(url)
        if found.is_dir:
            raise PathExists(f"cannot read {url}: it is a directory, not a file", url)
        return found.length

    def _refuse_taken(self, url: str, overwrite: bool) -> None:
        with contextlib.suppress(PathNotFound):
            if self.status(url).is_dir:
                raise PathExists(f"cannot write {url}: it is a directory; choose another name", url)
            if not overwrite:
                raise PathExists(
                    f"cannot write {url}: it exists already; allow overwriting or choose another name", url
                )

    @contextlib.contextmanager
    def _appearing(self, url: str, overwrite: bool) -> Iterator[str]:
        self._refuse_taken(url, overwrite)
        fresh = urls.temporary_sibling(url)
        try:
            yield fresh
            self.rename(fresh, url, overwrite)
        except BaseException as error:
            # Whoever did not answer would not answer now, either.
            leftovers.discard(fresh, self.timeout_s, try_now=not isinstance(error, StorageTimeout))
            raise

    def _send(self, about: str, url: str, pieces: Iterator[bytes], append: bool = False) -> None:
        with Steps("write", about, self.timeout_s) as steps, self._causes("write", about):

            def body() -> Iterator[bytes]:
                for piece in pieces:
                    steps.touch()
                    yield piece
                steps.touch()

            permission = None if append else f"{privacy.of_file(self._above(url)):o}"
            with contextlib.closing(self._session()) as session:
                client = self._client(session)
                steps.run(
                    lambda: client.write(
                        _path(url), data=body(), overwrite=not append, append=append, permission=permission
                    )
                )

    def _chunks(self, url: str, offset: int, length: int) -> Iterator[bytes]:
        """Exactly ``length`` bytes, or StorageUnavailable: a short piece is not the end."""
        if not length:
            return
        got = 0
        with (
            Steps("read", url, self.timeout_s) as steps,
            self._causes("read", url),
            contextlib.closing(self._session()) as session,
            contextlib.ExitStack() as opened,
        ):
            reading = self._client(session).read(_path(url), offset=offset, length=length)
            source = steps.run(lambda: opened.enter_context(reading))
            while got < length and (piece := steps.run(lambda: source.read(CHUNK_BYTES))):
                got += len(piece)
                yield piece
        if got != length:
            raise StorageUnavailable(f"cannot read {url}: {got} of {length} bytes came", url)

    def _run(self, action: str, url: str, call: Callable[[Any], T]) -> T:
        with Steps(action, url, self.timeout_s) as steps, self._causes(action, url):

            def step() -> T:
                with contextlib.closing(self._session()) as session:
                    return call(self._client(session))

            return steps.run(step)

    @contextlib.contextmanager
    def _causes(self, action: str, url: str) -> Iterator[None]:
        """Ours for theirs, which are left out of the traceback: they quote addresses with the delegation token."""
        from hdfs import HdfsError

        try:
            yield
        except StorageError:
            raise
        except HdfsError as error:
            kind = str(getattr(error, "exception", "") or type(error).__name__)
            raise causes.from_text(action, url, kind, str(error)) from None
        except OSError as error:  # requests' errors are OSErrors
            raise causes.from_text(action, url, type(error).__name__, str(error)) from None
        except Exception as error:
            if type(error).__module__.startswith(("urllib3", "requests")):
                raise causes.from_text(action, url, type(error).__name__, str(error)) from None
            raise

    def _session(self) -> Any:
        import requests

        return requests.Session()

    def _client(self, session: Any) -> Any:
        """By a token if there is one, else a ticket if the cluster wants Kerberos, else the user's name."""
        import hdfs

        known = settings.hadoop_settings()
        address = self._addresses()
        token = hadoop_tokens.for_service(hadoop_tokens.from_environment(), self._authority)
        # Longer than the step's own deadline, which thus is what ends a call; this ends the abandoned thread.
        options = {"timeout": self.timeout_s + 1.0, "session": session}
        if token:
            redact.register("delegation_token", token.as_text())
            return hdfs.TokenClient(address, token.as_text(), **options)
        if known.get("hadoop.security.authentication") == "kerberos":
            try:
                from hdfs.ext.kerberos import KerberosClient
            except ImportError as error:
                raise ArgumentError(
                    f"{self._url}: the cluster wants Kerberos, and there is neither a delegation token nor "
                    "the package requests-kerberos; install hdfs[kerberos] or use hdfs://"
                ) from error
            return KerberosClient(address, **options)
        return hdfs.InsecureClient(address, user=settings.user_name(), **options)

    def _addresses(self) -> str:
        """HdfsCLI's form: web addresses of all NameNodes, joined by semicolons."""
        kind = "https" if self.scheme == "swebhdfs" else "http"
        known = settings.hadoop_settings()
        if f"dfs.ha.namenodes.{self._authority}" in known or not self._authority:
            return ";".join(f"{kind}://{address}" for address in hadoop_web.web_addresses(self._url))
        host, colon, port = self._authority.partition(":")
        return f"{kind}://{host}:{port if colon else _DEFAULT_PORTS[self.scheme]}"


def _path(url: str) -> str:
    return urls.split(url)[2]


def _status(url: str, facts: dict[str, Any]) -> FileStatus:
    is_dir = facts["type"] == "DIRECTORY"
    return FileStatus(
        url=url,
        is_dir=is_dir,
        length=0 if is_dir else facts["length"],
        modified_s=facts["modificationTime"] / 1000,
        owner=facts["owner"],
        group=facts["group"],
        permission=int(facts["permission"], 8),
        replication=facts["replication"],
        block_size=facts["blockSize"],
        accessed_s=facts["accessTime"] / 1000,
    )
