"""Has this worker's group go on, in this process, when members are lost or come: on a thread, when the agent says so.

The training's own thread waits meanwhile inside the collective call that met a loss, or has not come to its next one; it
notices nothing but the time. For newcomers it waits between two batches (``pause_point.py``). What was exported when the
process began (TF_CONFIG, RANK, WORLD_SIZE) stays as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hopsml.cluster.shared.protocol import Mend, Pause
from hopsml.cluster.worker.context import CollectiveSeat, MendPort, WorkerContext, current, set_current
from hopsml.errors import HopsmlError
from hopsml.training.elastic.pause_point import PausePoint

if TYPE_CHECKING:
    from hopsml.collective.group import Group

REFORM_S = 2.0  # for those that are left to find each other; the driver waits a little longer
LOOK_S = 1.0  # between two looks whether the group waits for word that does not come
PATIENCE_S = 5.0  # beyond the time in which the driver notices the loss of a whole machine


def watch(group: Group, port: MendPort, reform: Callable[[WorkerContext], None], fixed: str = "") -> PausePoint:
    """Say that the group can go on with other members, and from now on have it do so. Returns the training's pause point.

    ``reform`` connects this worker with the others, where the context says; it raises HopsmlError where it cannot.
    ``fixed``: why no newcomer can come into the group.
    """
    pause_point = PausePoint()
    port.announce("mendable", -1, -1, fixed)
    threading.Thread(target=_Watch(group, port, reform, pause_point).run, name="hopsml-mending", daemon=True).start()
    return pause_point


class _Watch:
    def __init__(
        self, group: Group, port: MendPort, reform: Callable[[WorkerContext], None], pause_point: PausePoint
    ) -> None:
        self._group, self._port, self._reform, self._pause_point = group, port, reform, pause_point
        self._waits_since: float | None = None

    def run(self) -> None:
        """Until the agent has nothing more to say."""
        while not self._port.ended():
            word = self._port.take(LOOK_S)
            if isinstance(word, Pause):
                self._group.ask_pause()
            elif word is not None:
                # Beside this thread: another one may be lost before those that are left have found each other.
                threading.Thread(target=self._mend, args=(self._place(word), word.meets), daemon=True).start()
            else:
                self._look()

    def _place(self, word: Mend) -> WorkerContext:
        """What this worker is in the generation that begins; known before any call of it returns."""
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
        problem = ""
        try:
            self._reform(context)
            self._pause_point.open(context.generation, meets)
        except (HopsmlError, OSError) as error:  # also where a newer word has taken the place of this one
            problem = str(error)
        step = context.commits.slots.progress if context.commits is not None else -1
        self._port.announce("mended", context.generation, step, problem)

    def _look(self) -> None:
        """Say that the group waits where nobody else seems to know of a loss: a connection may have broken by itself."""
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
