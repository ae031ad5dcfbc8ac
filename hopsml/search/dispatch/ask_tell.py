"""All calls to searcher and stopper, each recorded as an event (fact) from which an interrupted search is replayed.

A fact is a tuple of JSON values: a trial was suggested, begun, reported, interrupted, resumed or ended, with the
results of searcher and stopper. Facts hold no decision of the dispatch (which lane, when), so an event log stays
readable when those rules change.

``Supply`` chooses the next trial: retries first, then paused trials that the stopper resumes, then new ones.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.search.contract import Config, End, Exploit, Outcome, Searcher, Stopper, Suggestion, Verdict, Wait
from hopsml.search.dispatch.events import TrialSettled
from hopsml.search.dispatch.ledger import Ledger, TrialPhase, TrialState, as_json
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.parameter import to_json_value

Fact = tuple[Any, ...]
# Numbers and addresses in a message, which do not make two messages different errors.
_PARTICULAR = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


class NeverStop(Stopper):
    """Stopper that stops no trial: used where a search has none."""

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Return ``Verdict.CONTINUE`` at every report."""
        return Verdict.CONTINUE

    def end(self, number: int, outcome: Outcome) -> None:
        """Do nothing: no trial is compared with another."""

    def state(self) -> dict[str, Any]:
        """Return an empty dict: there is no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


class Futility:
    """Detector of a search that cannot succeed: counts its first failures while all have the same error.

    A typo in the function must not waste a thousand trials. After one success, or two kinds of failure, counting ends
    for good: the configurations may then be the cause.
    """

    def __init__(self) -> None:
        self.count = 0
        self.error = ""
        self._shape = ""
        self._mixed = False

    def failed(self, error: str) -> None:
        """Count a trial that failed in every attempt; numbers in ``error`` do not make it a different error."""
        shape = _PARTICULAR.sub("#", error)
        if self._mixed or (self.count and shape != self._shape):
            self.mixed()
            return
        self.count += 1
        self._shape, self.error = shape, self.error or error

    def mixed(self) -> None:
        """Stop counting failures for good: a trial has returned a value, or errors differ."""
        self._mixed, self.count = True, 0

    def is_hopeless(self, lanes: int) -> bool:
        """Return True if all trials so far failed with the same error.

        At least 3 trials, and twice as many as ``lanes``, must have failed.
        """
        return self.count >= 3 and self.count >= 2 * lanes

    def state(self) -> dict[str, Any]:
        """Return the counts as JSON values, for ``restore``."""
        return {"count": self.count, "error": self.error, "mixed": self._mixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another instance's ``state()``."""
        self.count, self.error, self._mixed = state["count"], state["error"], state["mixed"]
        self._shape = _PARTICULAR.sub("#", self.error)


class AskTell:
    """Wrapper of searcher, stopper and ledger through which all calls to the first two are made and recorded."""

    def __init__(self, spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None) -> None:
        self.spec = spec
        self.searcher = searcher
        self.stopper = stopper or NeverStop()
        self.ledger = Ledger(spec.direction)
        self.alike = Futility()
        self.extra = 0  # number of trials that the user added
        self.done = False  # True if the searcher has no more configurations
        self.later = False  # True while the searcher waits for a result
        self.differing: list[int] = []  # trials for which the replayed searcher suggests another configuration
        self._facts: list[Fact] = []
        known = [count for count in (spec.num_trials, searcher.total) if count is not None]
        self._planned = min(known) if known else None

    def take_facts(self) -> list[Fact]:
        """Return the facts since the last call; the caller must write them to the event log before it acts on them."""
        facts, self._facts = self._facts, []
        return facts

    @property
    def limit(self) -> int | None:
        """Total number of trials of the search; None: until the searcher has no more."""
        return None if self._planned is None else self._planned + self.extra

    @property
    def trials_left(self) -> int | None:
        """Number of new trials that may still be requested from the searcher; None: unbounded."""
        if self.done:
            return 0
        return None if self._planned is None else max(0, self._planned + self.extra - len(self.ledger.trials))

    def extend(self, trials: int) -> None:
        """Raise the number of trials of the search by ``trials``, at the user's request."""
        self.extra += trials
        if self.searcher.extend(trials):
            self.done = False
        self._facts.append(("extend", trials))

    # ---------------------------------------------------------------------------------------- new trials

    def next_trial(self) -> TrialState | None:
        """Return the next new trial; None if there is none now.

        Either the searcher has no more (``done``), needs the result of a running one (``later``), the number of trials
        is reached, or the stopper wants none.
        """
        if self.done or self.later or self.trials_left == 0 or not self.stopper.wants():
            return None
        number = len(self.ledger)
        answer = self.searcher.ask(number)
        if isinstance(answer, Suggestion):
            self._facts.append(("ask", number, answer.config, answer.parent))
            return self._add(dict(answer.config), answer.parent)
        self.later = answer is Wait.LATER
        if answer is Wait.DONE:
            self.done = True
            self._facts.append(("done",))
        return None

    def _add(self, config: Config, parent: int | None) -> TrialState:
        """Create a trial and register it with the stopper at once, before ``Stopper.wants`` is called again."""
        trial = self.ledger.add(config, parent)
        self.stopper.begin(trial.number, config)
        return trial

    # ---------------------------------------------------------------------------------------- events of trials

    def record_begin(self, trial: TrialState, attempt: int) -> None:
        """Record that the user's function was called for this attempt of the trial."""
        trial.attempt = attempt
        trial.begun += 1
        self.ledger.move(trial, TrialPhase.RUNNING)
        self._facts.append(("begin", trial.number, attempt))

    def report(self, trial: TrialState, step: int, value: float, checkpoint: bool) -> Verdict | Exploit:
        """Record a metric value of a new, higher step, and return the stopper's verdict.

        A verdict other than CONTINUE is also stored in ``trial.asked`` (and ``trial.exploit``).

        Args:
            trial: the running trial.
            step: step of the report.
            value: value of the metric, as the function reported it.
            checkpoint: True if a checkpoint exists from which the trial can continue.
        """
        trial.step, trial.value = step, value
        if checkpoint:
            trial.resume_from = trial.number
        score = self.ledger.score(value)
        assert score is not None
        self.searcher.report(trial.number, step, score)
        verdict = self.stopper.report(trial.number, step, score)
        self._apply_verdict(trial, verdict)
        self._facts.append(("report", trial.number, step, value, _as_json(verdict), checkpoint))
        return verdict

    def record_late(self, trial: TrialState, step: int, value: float) -> None:
        """Record a report that came after the trial was requested to end, about which the stopper is not asked."""
        trial.late_step = step
        self._facts.append(("report", trial.number, step, value, None, False))

    def _apply_verdict(self, trial: TrialState, verdict: Verdict | Exploit) -> None:
        if isinstance(verdict, Exploit):
            trial.asked, trial.exploit = "pause", verdict
        elif verdict is not Verdict.CONTINUE:
            trial.asked = verdict.value

    def rest(self, trial: TrialState, seconds: float) -> None:
        """Record that the trial has paused as requested, after an attempt of ``seconds``."""
        trial.seconds += seconds
        self._facts.append(("rest", trial.number, seconds))
        self._part_over(trial, TrialPhase.PAUSED)

    def record_attempt_end(self, trial: TrialState, kind: str, error: str, seconds: float) -> None:
        """Record that an attempt ended, but not the trial.

        Args:
            trial: the trial.
            kind: "failed", or "lost" where its slot failed.
            error: cause, one line.
            seconds: duration of the attempt.
        """
        trial.seconds += seconds
        trial.error = error
        if kind == "failed":
            trial.tries += 1
        else:
            trial.lost += 1
        self._facts.append(("again", trial.number, kind, error, seconds))
        self._part_over(trial, TrialPhase.PAUSED if trial.asked == "pause" else TrialPhase.READY)

    def _part_over(self, trial: TrialState, phase: TrialPhase) -> None:
        # Decisions of the stopper during the attempt take effect when it has ended.
        if trial.exploit is not None:
            trial.config, trial.resume_from = dict(trial.exploit.config), trial.exploit.source
            phase = TrialPhase.READY
        elif trial.wanted:
            phase = TrialPhase.READY
        trial.asked, trial.exploit, trial.wanted, trial.late_step = "", None, False, -1
        self.ledger.move(trial, phase)

    def resume(self, settle: bool = False) -> TrialState | None:
        """Return the paused trial that the stopper resumes now, or None.

        Args:
            settle: True if nothing runs and no new trial will come: calls ``Stopper.settle`` instead of ``resume``.

        Raises:
            ValueError: the stopper returned the number of a trial that does not exist.
        """
        number = self.stopper.settle() if settle else self.stopper.resume()
        if number is None:
            if settle:
                self._facts.append(("settle",))
            return None
        trial = self.ledger.get(number)
        if trial is None:
            raise ValueError(f"the stopper wants to resume trial {number}: there are {len(self.ledger)}")
        self._facts.append(("resume", number, settle))
        self._wake(trial)
        return trial

    def _wake(self, trial: TrialState) -> None:
        if trial.phase is TrialPhase.PAUSED:
            self.ledger.move(trial, TrialPhase.READY)
        elif trial.phase is not TrialPhase.OVER:
            trial.wanted = True

    def end(
        self,
        trial: TrialState,
        end: End,
        value: float | None,
        outputs: Any = None,
        error: str = "",
        seconds: float = 0.0,
        fault: bool = False,
    ) -> TrialSettled:
        """End the trial for good, and pass its outcome once to searcher and stopper.

        Args:
            trial: the trial.
            end: way in which it ended.
            value: final value of the metric; None: it has none.
            outputs: what the function returned, as JSON values.
            error: cause of the failure, one line.
            seconds: duration of the last attempt.
            fault: True if all trials may share this error (see ``Futility``).
        """
        trial.seconds += seconds
        if end is End.FAILED and trial.number in self.ledger.placed:
            trial.tries += 1  # the last attempt; those before it were counted by ``record_attempt_end``
        if end is End.COMPLETED:  # what it returned is of its last step
            trial.step = max(trial.step, trial.late_step)
        trial.value, trial.outputs, trial.error = value, outputs, error
        trial.asked, trial.exploit, trial.wanted = "", None, False
        self.ledger.close(trial, end)
        outcome = self.ledger.outcome(trial)
        self.stopper.end(trial.number, outcome)
        self.searcher.tell(trial.number, outcome)
        self.later = False
        if fault:
            self.alike.failed(error)
        elif end is not End.STOPPED or value is not None:
            self.alike.mixed()
        self._facts.append(("end", trial.number, end.value, value, outputs, error, seconds, fault))
        return TrialSettled(trial.number, end, value, outputs, error, trial.seconds, outcome.step)

    # ---------------------------------------------------------------------------------------- whole state

    def state(self) -> dict[str, Any]:
        """Return searcher, stopper and ledger for ``restore``.

        All are JSON values, except values in configurations.
        """
        return {
            "trials": [as_json(trial) for trial in self.ledger.trials],
            "extra": self.extra,
            "done": self.done,
            "alike": self.alike.state(),
            "searcher": self.searcher.state(),
            "stopper": self.stopper.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another instance's ``state()``.

        Its searcher and stopper must have been constructed with the same arguments.
        """
        for fields in state["trials"]:
            self.ledger.restore(fields)
        self.extra, self.done = state["extra"], state["done"]
        self.alike.restore(state["alike"])
        self.searcher.restore(state["searcher"])
        self.stopper.restore(state["stopper"])

    # ---------------------------------------------------------------------------------------- replay

    def repeat(self, fact: Sequence[Any]) -> None:
        """Replay one fact of the event log with the same calls to searcher and stopper.

        Nothing runs, and no new fact results.
        """
        kind, *rest = fact
        if kind == "ask":
            self._ask_again(*rest)
        elif kind == "done":
            self.searcher.ask(len(self.ledger))
            self.done = True
        elif kind == "settle":
            self.stopper.settle()
        elif kind == "extend":
            self.extend(rest[0])
        else:
            self._repeat_of(self.ledger.trials[rest[0]], kind, rest[1:])
        self._facts.clear()

    def _ask_again(self, number: int, config: Config, parent: int | None) -> None:
        """Repeat an ``ask``; the configuration that ran then counts, even if another one would be suggested now."""
        answer = self.searcher.ask(number)
        if isinstance(answer, Suggestion) and _same(answer.config, config):
            config = dict(answer.config)
        else:
            self.differing.append(number)
        self._add(config, parent)

    def _repeat_of(self, trial: TrialState, kind: str, rest: list[Any]) -> None:
        if kind == "begin":
            self.record_begin(trial, *rest)
        elif kind == "report":
            step, value, verdict, checkpoint = rest
            if verdict is None:
                self.record_late(trial, step, value)
                return
            again, before = self.report(trial, step, value, checkpoint), _verdict(verdict)
            if to_json_value(_as_json(again)) != to_json_value(verdict):  # the recorded verdict counts, not the new one
                trial.asked, trial.exploit = "", None
                self._apply_verdict(trial, before)
        elif kind == "rest":
            self.rest(trial, *rest)
        elif kind == "again":
            self.record_attempt_end(trial, *rest)
        elif kind == "resume":
            if rest[0]:
                self.stopper.settle()
            else:
                self.stopper.resume()
            self._wake(trial)
        else:
            self.end(trial, End(rest[0]), *rest[1:])


def _as_json(verdict: Verdict | Exploit) -> Any:
    return [verdict.source, verdict.config] if isinstance(verdict, Exploit) else verdict.value


def _verdict(written: Any) -> Verdict | Exploit:
    return Verdict(written) if isinstance(written, str) else Exploit(*written)


def _same(suggested: Config, written: Config) -> bool:
    """Return True if both are the same configuration; ``written`` has been through JSON."""
    return bool(to_json_value(suggested) == to_json_value(written))


class ReadyQueue:
    """First-in-first-out queue that can skip trials of one lane, in time independent of its length."""

    def __init__(self) -> None:
        self._queues: dict[int | None, deque[tuple[int, TrialState]]] = {}  # lane to avoid -> (position, trial)
        self._last = 0
        self._first = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_trial(self, trial: TrialState, first: bool = False) -> None:
        """Append a trial, or put it before all others.

        ``first`` is for a trial that had been assigned already.
        """
        queue = self._queues.setdefault(trial.avoid, deque())
        self._count += 1
        if first:
            self._first -= 1
            queue.appendleft((self._first, trial))
        else:
            self._last += 1
            queue.append((self._last, trial))

    def take_trial(self, lane: int | None = None) -> TrialState | None:
        """Remove and return the first trial that may run on ``lane``; None if there is none.

        Args:
            lane: number of the lane; None: any lane.
        """
        turns = [(queue[0][0], key) for key, queue in self._queues.items() if lane is None or key != lane]
        if not turns:
            return None
        _, key = min(turns, key=lambda turn: turn[0])
        queue = self._queues[key]
        _, trial = queue.popleft()
        if not queue:
            del self._queues[key]
        self._count -= 1
        return trial

    def drain(self) -> list[TrialState]:
        """Remove and return all trials, in order."""
        entries = sorted((entry for queue in self._queues.values() for entry in queue), key=lambda entry: entry[0])
        self._queues.clear()
        self._count = 0
        return [trial for _, trial in entries]


class Supply:
    """Source of the next trial for a free lane or group."""

    def __init__(self, ask_tell: AskTell) -> None:
        self.ask_tell = ask_tell
        self.ready = ReadyQueue()

    def next_returning(self, lane: int | None = None) -> TrialState | None:
        """Return the next trial that ran before and continues, by retry or resume; None if there is none.

        Args:
            lane: number of the lane that will run it; None: any lane.
        """
        trial = self.ready.take_trial(lane)
        while trial is None:
            trial = self.ask_tell.resume()
            if trial is None or trial.phase is TrialPhase.OVER:
                return None
            if trial.phase is not TrialPhase.READY:
                trial = None  # it has not paused yet, and is queued again when it has
            elif lane is not None and trial.avoid == lane:
                self.ready.add_trial(trial)  # another lane may run it
                trial = None
        return trial

    def next(self, lane: int | None = None) -> TrialState | None:
        """Return the next trial: one that ran before, else a new one; None if there is none at present.

        Args:
            lane: number of the lane that will run it; None: any lane.
        """
        return self.next_returning(lane) or self.ask_tell.next_trial()
