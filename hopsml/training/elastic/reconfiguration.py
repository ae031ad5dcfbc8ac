"""Reconfiguration of this worker's group in place: on a thread, when the agent reports failed or joining members.

In between, the training's own thread waits inside the collective call that met the loss, or has not reached its next
one; it only loses time. For joining workers it waits between two batches (``PausePoint``), and the chief broadcasts its
state, encoded as a commit, in parts of a few megabytes. Environment variables that were set when the process started
(TF_CONFIG, RANK, WORLD_SIZE) stay unchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.protocol import Pause, ReconfigureInPlace
from hopsml.cluster.shared.worker_events import WorkerReconfigurable, WorkerReconfigured
from hopsml.cluster.worker.context import CollectiveSeat, ReconfigurationPort, WorkerContext, current, set_current
from hopsml.errors import HopsmlError
from hopsml.training.elastic import commits
from hopsml.training.elastic.commits import ALIGNMENT, Snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hopsml.collective.group import Group


LABEL = "the state for a newcomer"
PART = 8 << 20  # bytes
REFORM_S = 2.0  # time limit for the remaining members to connect; the driver waits a little longer
LOOK_S = 1.0  # between two checks for a group that waits without a message from the agent
PATIENCE_S = 5.0  # in addition to the time within which the driver detects the loss of a whole machine


def allocate_buffer(size: int) -> NDArray[np.uint8]:
    """Return allocated memory for a state of about ``size`` bytes, aligned for the arrays in it.

    The memory is filled once, because the system allocates pages slowly on first use.
    """
    import numpy as np

    content = np.full(size + PART + ALIGNMENT, 0, np.uint8)
    return content[-content.ctypes.data % ALIGNMENT :]


def broadcast_state(group: Group, snapshot: Snapshot) -> None:
    """Send the chief's state to all other members; call it on the chief. Large arrays are not copied."""
    import numpy as np

    pieces = [np.frombuffer(piece, np.uint8) for piece in commits.encode(snapshot)]
    total = sum(piece.size for piece in pieces)
    group.broadcast(np.array([total], np.int64), name=LABEL)
    sent = np.empty(min(PART, total), np.uint8)
    for part in _parts(pieces):
        group.broadcast(part, name=LABEL, out=sent[: part.size])


def _parts(pieces: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Return the same bytes in parts of ``PART`` (the last may be smaller), as views where possible."""
    import numpy as np

    parts, waiting, size = list[Any](), list[Any](), 0
    for piece in pieces:
        begin = 0
        while begin < piece.size:
            taken = piece[begin : begin + PART - size]
            waiting, size, begin = [*waiting, taken], size + taken.size, begin + taken.size
            if size == PART:
                parts.append(waiting[0] if len(waiting) == 1 else np.concatenate(waiting))
                waiting, size = [], 0
    return [*parts, np.concatenate(waiting)] if waiting else parts


def receive_state(group: Group, into: NDArray[np.uint8] | None) -> Snapshot | None:
    """Take part in the broadcast of the chief's state; call it on every member but the chief.

    Args:
        group: the group of all members.
        into: on a joining worker, memory for the state, which is used if it is large enough; None on others.

    Returns:
        The chief's state on a joining worker, else None.

    Raises:
        ValueError: the chief runs another version of the format.
    """
    import numpy as np

    total = int(group.broadcast(np.zeros(1, np.int64), name=LABEL)[0])
    if into is None:
        passing = np.empty(min(PART, total), np.uint8)
    elif into.size < total:
        into = allocate_buffer(total)
    for begin in range(0, total, PART):
        size = min(PART, total - begin)
        part = passing[:size] if into is None else into[begin : begin + size]
        group.broadcast(part, name=LABEL, out=part)
    return commits.decode(into[:total].data) if into is not None else None


class PausePoint:
    """Wait condition opened once for each generation that has formed, in any order, by the threads that form them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened: dict[int, bool] = {}

    def announce_generation(self, generation: int, meets: bool) -> None:
        """Announce that the group continues as a generation.

        Args:
            generation: the generation that has formed.
            meets: True if the waiting threads must exchange the chief's state first.
        """
        with self._changed:
            self._opened[generation] = meets
            self._changed.notify_all()

    def wait_for_later_generation(self, generation: int) -> bool:
        """Wait for a generation later than ``generation``, in which the worker has paused.

        The first later generation that has formed here decides. On another member it may be a further one, which has
        the same ``meets``: the value does not change until every member has continued.

        Returns:
            True if the chief's state must be exchanged in the new generation.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(later > generation for later in self._opened))
            first = min(later for later in self._opened if later > generation)
            meets = self._opened[first]
            self._opened = {later: opened for later, opened in self._opened.items() if later >= first}
            return meets


def start_reconfiguration_thread(
    group: Group, port: ReconfigurationPort, reform: Callable[[WorkerContext], None], fixed: str = ""
) -> PausePoint:
    """Announce that the group can be reconfigured in place, and start the thread that does it.

    Args:
        group: this worker's group.
        port: source of the agent's messages, and destination of the results.
        reform: connects this worker with the others at the places given by the context; raises HopsmlError on
            failure.
        fixed: why no worker can join the group; "" if one can.

    Returns:
        The training's pause point.
    """
    pause_point = PausePoint()
    port.announce(WorkerReconfigurable(fixed))
    threading.Thread(target=_Watch(group, port, reform, pause_point).run, name="hopsml-mending", daemon=True).start()
    return pause_point


class _Watch:
    """Thread that handles the agent's messages about members."""

    def __init__(
        self, group: Group, port: ReconfigurationPort, reform: Callable[[WorkerContext], None], pause_point: PausePoint
    ) -> None:
        self._group, self._port, self._reform, self._pause_point = group, port, reform, pause_point
        self._waits_since: float | None = None

    def run(self) -> None:
        """Handle messages until the agent can send no more."""
        while not self._port.ended():
            word = self._port.take(LOOK_S)
            if isinstance(word, Pause):
                self._group.request_pause()
            elif word is not None:
                # On a further thread: another member may fail before the remaining ones have connected.
                threading.Thread(target=self._mend, args=(self._place(word), word.meets), daemon=True).start()
            else:
                self._look()

    def _place(self, word: ReconfigureInPlace) -> WorkerContext:
        """Set and return this worker's context in the new generation, before any call of that generation returns."""
        before = current()
        assert before is not None and before.collective is not None
        rank, local_rank = word.ranks_of(before.collective.addresses[before.rank])
        context = replace(
            before,
            generation=word.generation,
            rank=rank,
            local_rank=local_rank,
            world_size=len(word.collective),
            leader=word.leader,
            collective=CollectiveSeat(word.collective, word.collective_key),
            joins=False,
        )
        set_current(context)
        return context

    def _mend(self, context: WorkerContext, meets: bool) -> None:
        """Reconfigure the group for a new generation, and report the outcome to the agent."""
        problem = ""
        try:
            self._reform(context)
            self._pause_point.announce_generation(context.generation, meets)
        except (HopsmlError, OSError) as error:  # also raised when a newer message has replaced this one
            problem = str(error)
        step = context.commits.slots.progress if context.commits is not None else -1
        self._port.announce(WorkerReconfigured(context.generation, step, problem))

    def _look(self) -> None:
        """Report a group that waits although no loss has been reported: a single connection may have broken."""
        if not self._group.awaits_reform:
            self._waits_since = None
            return
        now, context = time.monotonic(), current()
        self._waits_since = now if self._waits_since is None else self._waits_since
        assert context is not None
        if now - self._waits_since > PATIENCE_S + (context.spec.group.silence_timeout_s or 0.0):
            self._waits_since = now
            lost = "a member" if self._group.lost_rank is None else f"rank {self._group.lost_rank}"
            self._port.announce(WorkerReconfigured(context.generation, problem=f"it can no longer reach {lost}"))
