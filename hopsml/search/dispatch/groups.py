"""Allocation of slots to trials that are distributed trainings of different sizes, without starvation.

First come, first served, with back-filling (EASY: Mu'alem & Feitelson 2001, IEEE TPDS 12(6), section 2): the head of
the queue has a reservation at the time at which enough slots will be free if every running trial takes as long as
trials of its size took on average. A trial behind it may start before it where that does not move the reservation: it
ends before that time, or uses slots that the head does not need. Averages may be wrong: once the time that was first
reserved has passed, trials that start before the head get only slots that it does not need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopsml.search.contract import End
from hopsml.search.dispatch.ask_tell import Supply
from hopsml.search.dispatch.events import Action, FormGroup, ResizeGroup
from hopsml.search.dispatch.ledger import TrialPhase, TrialState
from hopsml.search.dispatch.spec import SearchSpec

AHEAD = 8  # length of the queue: number of trials requested to find one that fits
STEADY_S = 5.0  # time without a change of the slots before an elastic trial begins with fewer than its full size


@dataclass(slots=True)
class GroupState:
    """Distributed trial that holds slots.

    ``size`` is its number of workers now; ``wish`` is the number that it may have.
    """

    trial: TrialState
    size: int
    wish: int  # number of workers that it may have


@dataclass(frozen=True)
class Reservation:
    """Estimated start of the first trial in the queue.

    ``at`` is monotonic time in seconds, never later than first reserved; ``extra`` is the number of slots that remain
    free then.
    """

    at: float
    extra: int


class Groups:
    """Allocator of slots to distributed trials of different sizes, with the queue of those that wait for slots."""

    def __init__(self, spec: SearchSpec, supply: Supply) -> None:
        self._spec = spec
        self._supply = supply
        self._ask_tell = supply.ask_tell
        self.count = 0
        self.used = 0
        self.groups: dict[int, GroupState] = {}
        self._line: list[tuple[TrialState, int, int]] = []  # trial, size, minimum
        self._means: dict[int, tuple[int, float]] = {}  # size -> number of trials, sum of their durations in seconds
        self._promised: tuple[int, float] | None = None  # trial number of the queue's head, first reserved time
        self._changed_at = float("-inf")
        self._size_seen = 0
        self._wake_at = float("inf")

    @property
    def slots_held(self) -> int:
        """Number of slots that the search has, free ones included."""
        return self.count

    @property
    def width(self) -> int:
        """Number of trials that fit at the same time."""
        return max(1, self.count // max(1, self._size_seen))

    @property
    def free(self) -> int:
        """Number of slots that no group holds; below 0 if slots failed that groups still count."""
        return self.count - self.used

    def slots_wanted(self) -> int:
        """Return the number of slots that the search could use now, including those that it has."""
        left, most = self._ask_tell.trials_left, self._spec.max_lanes
        size = max(1, self._size_seen)
        further = len(self._supply.ready) + len(self._ask_tell.ledger.paused) + (left or 0)
        useful = self.used + sum(size for _, size, _ in self._line) + further * size
        useful += sum(max(0, group.wish - group.size) for group in self.groups.values())
        if left is None:
            useful = max(useful, self.count + size)
        return useful if most is None else min(useful, most)

    # ---------------------------------------------------------------------------------------- what happens

    def slots(self, count: int, now: float) -> None:
        """Set the number of slots that the search has."""
        if count != self.count:
            self.count, self._changed_at = count, now

    def began(self, trial: TrialState, now: float) -> None:
        """Record that the training has begun: its duration counts from ``now``."""
        trial.since = now

    def promote(self, trial: TrialState) -> None:
        """Raise the number of workers that the trial may have to what ``promoted_workers`` allows at its step.

        A trial without a group is ignored.
        """
        group = self.groups.get(trial.number)
        if group is not None:
            group.wish = max(group.wish, self._spec.promoted_size(trial.step))

    def free_place(self, trial: TrialState, seconds: float | None) -> None:
        """Free the group's slots.

        Args:
            trial: the trial that has ended.
            seconds: its duration, for later estimates; None: not representative.
        """
        group = self.groups.pop(trial.number, None)
        if group is None:
            return
        self.used -= group.size
        if seconds is not None:
            count, total = self._means.get(group.size, (0, 0.0))
            self._means[group.size] = count + 1, total + seconds

    def empty_queue(self) -> list[TrialState]:
        """Empty the queue of trials that wait for slots, and return them in order."""
        trials = [trial for trial, _, _ in self._line]
        self._line.clear()
        return trials

    @property
    def queued_count(self) -> int:
        """Number of trials that wait for slots."""
        return len(self._line)

    def wake_at(self) -> float:
        """Return the time at which the slots count as steady, if an elastic trial waits for that.

        Returns:
            Monotonic time in seconds; infinity if none waits.
        """
        return self._wake_at

    @property
    def needs_trials(self) -> bool:
        """True if slots are free and no trial waits for them."""
        return self.free > 0 and not self._line

    # ---------------------------------------------------------------------------------------- what follows

    def fill(self, now: float) -> list[Action]:
        """Start as many groups as fit the free slots, and let elastic ones grow into the remaining slots."""
        actions: list[Action] = []
        self._wake_at = float("inf")
        if not self._size_seen:
            self._append(self._supply.next(), actions)  # ``slots_wanted`` needs one trial's size
        while self.free > 0 and not self._ask_tell.alike.is_hopeless(self.width):
            self._gather(actions)
            reservation = self._reservation(now)
            action = self._form_one(reservation, now) or self._grow_one(reservation)
            if action is not None:
                actions.append(action)
            elif not self._look_ahead(reservation, actions):
                break
        return actions

    def _gather(self, actions: list[Action]) -> None:
        """Put trials that ran before in front of new ones, but behind a head that has its reservation."""
        while len(self._line) < AHEAD and (trial := self._supply.next_returning()):
            # After the head, whose reservation must not move, and after those that ran before, in their order.
            known = [index for index, (other, _, _) in enumerate(self._line) if other.attempt or index == 0]
            self._append(trial, actions, known[-1] + 1 if known else 0)

    def _append(self, trial: TrialState | None, actions: list[Action], at: int | None = None) -> bool:
        if trial is None:
            return False
        try:
            size, minimum = self._size_of(trial)
        except Exception as error:  # noqa: BLE001 the function is the user's: its fault is the trial's, not the search's
            text = f"workers_per_trial of {trial.config}: {type(error).__name__}: {error}"
            actions.append(self._ask_tell.end(trial, End.FAILED, None, error=text, fault=True))
            return True
        self._size_seen = max(self._size_seen, size)
        if at is None:
            self._line.append((trial, size, minimum))
        else:
            self._line.insert(at, (trial, size, minimum))
        return True

    def _size_of(self, trial: TrialState) -> tuple[int, int]:
        assert self._spec.size_of is not None
        size, minimum = self._spec.size_of(trial.config)
        if not (isinstance(size, int) and isinstance(minimum, int) and 1 <= minimum <= size):
            raise ValueError(f"({size!r}, {minimum!r}) is no size and minimum: whole numbers, 1 <= minimum <= size")
        most = self._spec.max_lanes
        if most is not None and minimum > most:  # it would wait forever, and the search with it
            raise ValueError(f"a trial of {minimum} workers, and the search has {most} slots at most")
        return size, minimum

    def _target(self, size: int, minimum: int, now: float) -> int | None:
        """Return the number of slots with which the first in the queue begins.

        None: it cannot begin with the present slots, or not yet.
        """
        if size <= self.count:
            return size
        if minimum > self.count:
            return None
        if now < (steady_at := self._changed_at + STEADY_S):
            self._wake_at = steady_at
            return None
        return self.count

    def _reservation(self, now: float) -> Reservation | None:
        """Return the reservation of the first in the queue.

        Its time is infinity if the trial cannot begin; None if durations are unknown.
        """
        if not self._line:
            return Reservation(float("inf"), self.free)
        target = self._target(*self._line[0][1:], now)
        if target is None:
            return Reservation(float("inf"), self.free)
        ends = []
        for group in self.groups.values():
            mean = self._mean(group.size)
            if mean is None:
                return None
            ends.append((max(now, group.trial.since + mean), group.size))
        free, at = self.free, now
        for end, size in sorted(ends):
            if free >= target:
                break
            at, free = end, free + size
        head = self._line[0][0].number
        if self._promised is None or self._promised[0] != head:
            self._promised = head, at
        return self._kept(Reservation(at, free - target), self._promised[1], target, now)

    def _kept(self, reservation: Reservation, promised: float, target: int, now: float) -> Reservation:
        """Return the reservation, never later than promised.

        After that time the slots of trials that began since then count against the extra ones.
        """
        if now <= promised:
            return replace(reservation, at=min(reservation.at, promised))
        # The estimate was wrong: trials that began since then may hold the head's slots, so they reduce the extra ones.
        begun_since = sum(group.size for group in self.groups.values() if group.trial.since > promised)
        return Reservation(promised, min(reservation.extra, self.count - target - begun_since))

    def _mean(self, size: int) -> float | None:
        count, total = self._means.get(size, (0, 0.0))
        return total / count if count else None

    def _form_one(self, reservation: Reservation | None, now: float) -> FormGroup | None:
        if not self._line:
            return None
        target = self._target(*self._line[0][1:], now)
        if target is not None and target <= self.free:
            return self._form(0, target, now)
        for index in range(1, len(self._line)):
            size = self._line[index][1]
            if reservation and size <= self.free and self._fits_before(size, reservation, now):
                return self._form(index, size, now)
        return None

    def _fits_before(self, size: int, reservation: Reservation, now: float) -> bool:
        if reservation.at == float("inf"):
            return True
        mean = self._mean(size)
        return size <= reservation.extra or (mean is not None and now + mean <= reservation.at)

    def _form(self, index: int, size: int, now: float) -> FormGroup:
        trial, wish, minimum = self._line.pop(index)
        wish = max(wish, self._spec.promoted_size(trial.step))
        size = max(size, min(wish, self.free)) if not self._line else size  # more than it needs only if no trial waits
        self.groups[trial.number] = GroupState(trial, size, wish)
        self.used += size
        trial.attempt += 1
        trial.since = now
        self._ask_tell.ledger.move(trial, TrialPhase.PLACED)
        least, most = min(minimum, size), max(size, wish, *(workers for _, workers in self._spec.promoted_workers))
        return FormGroup(trial.number, trial.attempt, trial.config, size, least, trial.resume_from, trial.step, most)

    def _grow_one(self, reservation: Reservation | None) -> ResizeGroup | None:
        """Add free slots to the best running trial that may have more workers, but none that the head needs."""
        if self._line:
            spare = min(self.free, reservation.extra) if reservation else 0
        else:
            spare = self.free
        if spare <= 0:
            return None
        wishing = [g for g in self.groups.values() if g.wish > g.size and g.trial.phase is TrialPhase.RUNNING]
        if not wishing:
            return None
        best = max(wishing, key=lambda group: (self._score(group.trial), -group.trial.number))
        grown = min(best.wish, best.size + spare)
        self.used += grown - best.size
        best.size = grown
        return ResizeGroup(best.trial.number, grown)

    def _score(self, trial: TrialState) -> float:
        score = self._ask_tell.ledger.score(trial.value)
        return float("-inf") if score is None else score

    def _look_ahead(self, reservation: Reservation | None, actions: list[Action]) -> bool:
        """Request one more trial from the searcher, which may fit before the first in the queue.

        Returns True if there was one.
        """
        if self._line and (reservation is None or len(self._line) >= AHEAD):
            return False
        return self._append(self._ask_tell.next_trial(), actions)
