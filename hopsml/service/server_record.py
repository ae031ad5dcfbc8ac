"""Record of the running server in its state folder, for this user's commands, and the server's own token.

<state>/client.json   address and token; removed when the server ends, but not when it is killed
<state>/own-token     the token of the servers of this state folder, which hold the shared lock of the file
<state>/port          the last port

Nobody but this user can read the first two. Whoever takes the port of a server that was killed may be sent its token,
for instance by a browser. So no server accepts the token of one that has ended: the next one replaces it, unless other
servers of the same state folder, with the same database, still use it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from hopsml.core import file_locks, settings

if TYPE_CHECKING:
    from hopsml.service.store.accounts import Tokens

log = logging.getLogger("hopsml.service")

RECORD = "client.json"
_TOKEN, _PORT = "own-token", "port"
_PAUSE_S = 0.05
_MOST_BYTES = 1000


class JobServerRecord(NamedTuple):
    """Content of the record.

    Attributes:
        address: URL of the server.
        token: Its own token.
        certificate: File with its TLS certificate; empty without TLS.
    """

    address: str
    token: str
    certificate: str = ""


def read(state: Path) -> JobServerRecord | None:
    """Return the record of a state folder; None if there is none, or if it is invalid."""
    try:
        known = json.loads((state / RECORD).read_text())
        return JobServerRecord(str(known["address"]), str(known["token"]), str(known.get("certificate", "")))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(state: Path, record: JobServerRecord) -> None:
    """Write the record, in a file that only this user can read, and the port. Raises OSError."""
    fresh = state / f"{RECORD}.{os.getpid()}"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({name: value for name, value in record._asdict().items() if value}, file)
    fresh.rename(state / RECORD)
    (state / _PORT).write_text(str(_port(record)))


def remove(state: Path, record: JobServerRecord) -> None:
    """Remove the record of a server that ends, unless another server has replaced it."""
    if read(state) == record:
        with contextlib.suppress(OSError):
            (state / RECORD).unlink()


def last_port(state: Path) -> int:
    """Return the last port of the servers of a state folder; 0 if it is unknown."""
    try:
        return int((state / _PORT).read_text())
    except (OSError, ValueError):
        known = read(state)  # of an earlier version
        return 0 if known is None else _port(known)


def _port(record: JobServerRecord) -> int:
    """Return the port of a server; 0 if its address has none."""
    try:
        return urlsplit(record.address).port or 0
    except ValueError:
        return 0


class OwnToken:
    """Administrator's token of the servers of one state folder: new if no other server of the folder is running.

    Attributes:
        value: The token.
        is_shared: True if another server used it at the start of this one.
    """

    def __init__(self, state: Path, tokens: Tokens) -> None:
        """Replace the token of servers that have ended.

        Args:
            state: The state folder.
            tokens: Tokens of the server's database.

        Raises:
            OSError: The file cannot be written.
            StoreError: The database is unavailable.
        """
        self._tokens, user = tokens, settings.login_name()
        self._file = os.open(state / _TOKEN, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self.is_shared = not self._lock()
            if not self.is_shared:
                known = self._read() or getattr(read(state), "token", "")  # the record: of an earlier version
                self._write(tokens.renew_own(known, user, time.time()))
            # A server that starts or ends at this moment has the exclusive lock, and may replace the token.
            while not self._lock(shared=True):
                time.sleep(_PAUSE_S)
            self.value = self._read()
            if tokens.caller(self.value, time.time()) is None:  # revoked, or of another database
                self.value = tokens.renew_own("", user, time.time())
                self._write(self.value)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """End the validity of the token, unless another server uses it. Raises StoreError."""
        try:
            if self._lock():
                self._tokens.expire_own(self._read(), time.time())
        finally:
            os.close(self._file)

    def _lock(self, shared: bool = False) -> bool:
        """Try to lock the file; a file system without locks counts as if another server used the token."""
        try:
            return file_locks.try_lock(self._file, shared)
        except OSError as error:
            if shared:
                log.warning("the token of the server's user is kept, as its file cannot be locked: %s", error)
            return shared

    def _read(self) -> str:
        """Return the token in the file; empty if there is none."""
        return os.pread(self._file, _MOST_BYTES, 0).decode("ascii", "replace")

    def _write(self, token: str) -> None:
        """Replace the token in the file; all have the same length."""
        os.pwrite(self._file, token.encode(), 0)
