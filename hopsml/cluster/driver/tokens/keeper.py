"""Thread of the driver that keeps the delegation tokens of all processes of an application valid."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.driver.coordinator import Coordinator
from hopsml.cluster.driver.tokens import plan
from hopsml.cluster.driver.tokens.sources import FoundTokens, TokenSource, TokenSourceError
from hopsml.cluster.shared import protocol
from hopsml.core import file_locks, redact
from hopsml.core.delegation_tokens import Credentials, OwnTokenFile
from hopsml.errors import CoordinatorLost

log = logging.getLogger(__name__)

TICK_S = 1.0
FIRST_S = 30.0  # that the start of an application waits for its first tokens
PREFIX, LOCK = "hopsml-tokens-", "lock"  # of the folder of each driver, and its locked file


class TokenKeeper:
    """Keeper of an application's tokens: obtains them, gives them to the agents, and to this process by a file."""

    def __init__(self, source: TokenSource, ship: Callable[[Credentials], None], tell: Callable[[str], None]) -> None:
        """Prepare the keeper; ``start`` starts its thread.

        Args:
            source: where tokens come from.
            ship: called with the tokens that agents are to use; empty: those with which they were started.
            tell: called with texts for the user.
        """
        self._source, self._ship, self._tell = source, ship, tell
        self._state = plan.TokenState(source.obtains, source.extends, source.is_backed)
        self._found: FoundTokens | None = None
        self._stopping, self._first = threading.Event(), threading.Event()
        self._folder, self._lock = _own_folder()
        self._file = OwnTokenFile(self._folder)
        self._thread = threading.Thread(target=self._run, name="hopsml-tokens", daemon=True)

    @property
    def notice(self) -> str:
        """Text for the user of a run that starts now: a lasting failure, or until when HDFS can be used; "" for nothing."""
        return plan.notice(self._state)

    def start(self) -> None:
        """Start the thread, and wait until it has tried for the first time, but at most ``FIRST_S`` seconds."""
        self._thread.start()
        self._first.wait(FIRST_S)

    def close(self) -> None:
        """End the thread, and let this process use the tokens that it was given."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(TICK_S * 5)
        self._file.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step(plan.TimePassed(time.time()))
            except Exception:
                log.warning("delegation tokens were not distributed", exc_info=True)
            self._first.set()
            self._stopping.wait(TICK_S)

    def _step(self, event: plan.Event) -> None:
        """Pass an event to the plan, and carry out the actions."""
        self._state, actions = plan.step(self._state, event)
        for action in actions:
            match action:
                case plan.ObtainTokens():
                    self._step(self._obtained())
                case plan.ShipTokens():
                    assert self._found is not None
                    self._give(self._found.credentials)
                case plan.WithdrawTokens():
                    self._withdraw()
                case plan.TellUser():
                    self._tell(action.text)

    def _obtained(self) -> plan.Event:
        try:
            self._found = found = self._source.find()
        except TokenSourceError as error:
            return plan.ObtainFailed(time.time(), str(error))
        except Exception as error:
            log.warning("delegation tokens could not be obtained", exc_info=True)
            return plan.ObtainFailed(time.time(), redact.text(f"{type(error).__name__}: {error}"))
        return plan.TokensObtained(
            time.time(), found.mark, found.life_s, found.longest_s, found.ticket_s, found.missing
        )

    def _withdraw(self) -> None:
        """Let all processes use the tokens with which they were started; this one only if it was given some."""
        if self._file.is_given_tokens:
            self._give(Credentials())
        elif not self._stopping.is_set():
            self._ship(Credentials())

    def _give(self, credentials: Credentials) -> None:
        try:
            self._file.replace(credentials)
        except OSError as error:
            log.warning("the driver's own delegation tokens could not be replaced: %s", error)
        if not self._stopping.is_set():
            self._ship(credentials)


def _own_folder() -> tuple[Path, int]:
    """Create a private folder and lock it; return both. Folders of killed drivers are deleted: their tokens may be valid."""
    parent = Path(tempfile.gettempdir())
    file_locks.delete_abandoned_folders(parent, f"{PREFIX}*", LOCK)
    return file_locks.make_locked_folder(parent, LOCK, PREFIX)


def keep_tokens(source: TokenSource, coordinator: Coordinator) -> TokenKeeper:
    """Start the keeper of this process's tokens and of those of a coordinator's agents."""

    def ship(credentials: Credentials) -> None:
        with contextlib.suppress(CoordinatorLost):
            coordinator.give_tokens(protocol.DelegationTokens(credentials.encode()))

    def tell(text: str) -> None:
        log.info("%s", text)
        with contextlib.suppress(CoordinatorLost):
            coordinator.note(text)

    keeper = TokenKeeper(source, ship, tell)
    keeper.start()
    return keeper
