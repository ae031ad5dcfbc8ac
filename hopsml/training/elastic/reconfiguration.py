"""Reconfiguration of this worker's group in place, on a thread, when the agent reports failed or joining members.

In between, the training's own thread waits inside the collective call that met the loss, or has not reached its next
one; it only loses time. For joining workers it waits between two batches (``pause_point.py``). Environment variables
that were set when the process started (TF_CONFIG, RANK, WORLD_SIZE) stay unchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hopsml.cluster.shared.protocol import Pause, ReconfigureInPlace
from hopsml.cluster.worker.context import CollectiveSeat, ReconfigurationPort, WorkerContext, current, set_current
from hopsml.errors import HopsmlError
from hopsml.training.elastic.pause_point import PausePoint

if TYPE_CHECKING:
    from hopsml.collective.group import Group

REFORM_S = 2.0  # time limit for the remaining members to connect; the driver waits a little longer
LOOK_S = 1.0  # between two checks for a group that waits without a message from the agent
PATIENCE_S = 5.0  # in addition to the time within which the driver detects the loss of a whole machine


def watch(
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
    port.announce("mendable", -1, -1, fixed)
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
                self._group.ask_pause()
            elif word is not None:
                # On a further thread: another member may fail before the remaining ones have connected.
                threading.Thread(target=self._mend, args=(self._place(word), word.meets), daemon=True).start()
            else:
                self._look()

    def _place(self, word: ReconfigureInPlace) -> WorkerContext:
        """Set and return this worker's context in the new generation, before any call of that generation returns."""
        before = current()
        assert before is not None and before.collective is not None
        rank, local_rank = word.place(before.collective.addresses[before.rank])
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
            self._pause_point.open(context.generation, meets)
        except (HopsmlError, OSError) as error:  # also raised when a newer message has replaced this one
            problem = str(error)
        step = context.commits.slots.progress if context.commits is not None else -1
        self._port.announce("mended", context.generation, step, problem)

    def _look(self) -> None:
        """Report a group that waits although no loss has been reported: a single connection may have broken."""
        if not self._group.waiting:
            self._waits_since = None
            return
        now, context = time.monotonic(), current()
        self._waits_since = now if self._waits_since is None else self._waits_since
        assert context is not None
        if now - self._waits_since > PATIENCE_S + (context.spec.group.silence_s or 0.0):
            self._waits_since = now
            lost = "a member" if self._group.lost_rank is None else f"rank {self._group.lost_rank}"
            self._port.announce("mended", context.generation, -1, f"it cannot reach {lost} any more")
