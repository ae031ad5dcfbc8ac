"""Driver's side of profile requests: pass them from the run's directory to an agent, and write its answer there."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.shared.protocol import TakeProfile
from hopsml.core.callbacks import immediate
from hopsml.errors import CoordinatorLost, StorageError
from hopsml.storage import profile_request
from hopsml.storage.profile_request import ProfileRequest
from hopsml.storage.run_dir import RunDir

Ask = Callable[[int, TakeProfile], object]  # requests a profile of the worker of a rank


class ProfileRequestHandler:
    """Handler of one run's profile requests, one at a time; ``handle_requests`` is for the run's thread."""

    def __init__(self, directory: RunDir, run_id: str, ask: Ask) -> None:
        self._directory, self._run_id, self._ask = directory, run_id, ask
        self._began = False
        self._under_way: tuple[ProfileRequest, str, float] | None = None  # with its path and deadline
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    @immediate
    def on_change(self, change: Change) -> None:
        """Queue an agent's answer to a request; called on the coordinator's thread."""
        if change.kind == "profile":
            self._answers.put((change.data.decode(), change.text))

    def handle_requests(self) -> None:
        """Start a new request, or complete the one under way; a storage error is ignored until the next call."""
        try:
            if self._under_way is not None:
                self._settle(*self._under_way)
            else:
                self._take_up(profile_request.read(self._directory))
        except (StorageError, CoordinatorLost):  # the latter if the run has just ended
            pass

    def give_up(self) -> None:
        """Complete the request under way, or mark it as failed, since the run has ended."""
        if self._under_way is None:
            return
        wish = self._under_way[0]
        try:
            self._settle(*self._under_way)
            if self._under_way is not None:
                profile_request.answer(self._directory, wish, "failed", "the run has ended meanwhile")
        except StorageError:
            pass

    def _take_up(self, wish: ProfileRequest | None) -> None:
        is_first, self._began = not self._began, True
        if wish is None or not wish.is_open:
            return
        if is_first:
            old = "it was asked for before this attempt at the run began; ask again"
            profile_request.answer(self._directory, wish, "failed", old)
            return
        path = profile_request.path_of(wish, time.time())
        until = time.monotonic() + wish.seconds + profile_request.PATIENCE_S
        self._under_way = wish, path, until
        profile_request.answer(self._directory, wish, "taking")
        asked = TakeProfile(self._run_id, -1, wish.id, wish.seconds, wish.format, wish.idle, path)
        self._ask(wish.rank, asked)

    def _settle(self, wish: ProfileRequest, path: str, until: float) -> None:
        problem = self._answer_to(wish)
        if problem is None and time.monotonic() > until:
            problem = f"the agent of rank {wish.rank} has not answered: it, or its worker, is frozen or gone"
        if problem is None:
            return
        profile_request.answer(self._directory, wish, "failed" if problem else "done", problem or path)
        self._under_way = None
        profile_request.trim(self._directory)

    def _answer_to(self, wish: ProfileRequest) -> str | None:
        """Return the agent's answer: an error, "" for success, None if there is none; the answer stays queued."""
        kept = None
        while not self._answers.empty():
            named, problem = self._answers.get()
            if named == wish.id:
                kept = (named, problem)
        if kept is not None:
            self._answers.put(kept)  # needed again if it cannot be written to storage
        return kept[1] if kept is not None else None
