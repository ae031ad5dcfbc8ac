"""All calls to searcher and stopper; each is recorded as a fact, from which an interrupted search is replayed.

A fact is a tuple of JSON values: what was asked, begun, reported, interrupted, resumed or ended, and what the searcher and
stopper answered. Facts hold no decision of the dispatch (which lane, when): a journal stays readable when those change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.search.contract import Config, End, Exploit, Outcome, Searcher, Stopper, Suggestion, Verdict, Wait
from hopsml.search.dispatch.events import Settled
from hopsml.search.dispatch.ledger import Ledger, TrialPhase, TrialState, as_json
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.config_json import marked

Fact = tuple[Any, ...]
# Two messages are the same error although they name their own numbers and addresses.
_PARTICULAR = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


class NeverStop(Stopper):
    """A stopper that stops no trial: used where a search has none."""

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Always ``CONTINUE``."""
        return Verdict.CONTINUE

    def end(self, number: int, outcome: Outcome) -> None:
        """Does nothing: no trial is compared with another."""

    def state(self) -> dict[str, Any]:
        """Empty: there is no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Does nothing: there is no state."""


class Futility:
    """Detects a search that cannot succeed: counts its first failures for as long as all have the same error.

    A typo in the function must not burn a thousand trials; but one success, or two kinds of failure, and no conclusion is
    drawn any more: then it may be the configurations.
    """

    def __init__(self) -> None:
        self.count = 0
        self.error = ""
        self._shape = ""
        self._mixed = False

    def failed(self, error: str) -> None:
        """Count a trial that has failed for good. Numbers in ``error`` do not make it another error."""
        shape = _PARTICULAR.sub("#", error)
        if self._mixed or (self.count and shape != self._shape):
            self.mixed()
            return
        self.count += 1
        self._shape, self.error = shape, self.error or error

    def mixed(self) -> None:
        """A trial has given a value: failures are no longer counted."""
        self._mixed, self.count = True, 0

    def hopeless(self, lanes: int) -> bool:
        """Whether all trials so far failed with the same error, at least 3 and twice as many as ``lanes``."""
        return self.count >= 3 and self.count >= 2 * lanes

    def state(self) -> dict[str, Any]:
        """The counts as JSON values, for ``restore``."""
        return {"count": self.count, "error": self.error, "mixed": self._mixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another instance's ``state()``."""
        self.count, self.error, self._mixed = state["count"], state["error"], state["mixed"]
        self._shape = _PARTICULAR.sub("#", self.error)


class AskTell:
    """Keeps searcher, stopper and ledger in step: all calls to the first two go through here and are recorded as facts."""

    def __init__(self, spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None) -> None:
        self.spec = spec
        self.searcher = searcher
        self.stopper = stopper or NeverStop()
        self.ledger = Ledger(spec.direction)
        self.alike = Futility()
        self.extra = 0  # trials that the user added
        self.done = False  # the searcher has no more
        self.later = False  # the searcher waits for a result
        self.differing: list[int] = []  # trials for which the searcher, replayed, suggests something else than ran
        self._facts: list[Fact] = []
        known = [count for count in (spec.num_trials, searcher.total) if count is not None]
        self._planned = min(known) if known else None

    def take_facts(self) -> list[Fact]:
        """Facts since the last call; the caller must write them to the journal before it acts upon them."""
        facts, self._facts = self._facts, []
        return facts

    @property
    def limit(self) -> int | None:
        """Total number of trials of the search; None: until the searcher has no more."""
        return None if self._planned is None else self._planned + self.extra

    @property
    def left(self) -> int | None:
        """How many new trials the searcher may still be asked for; None: unbounded."""
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

    def ask(self) -> TrialState | None:
        """The next new trial; None: the searcher has none (``done``), or none before a running one has ended (``later``)."""
        if self.done or self.later or self.left == 0 or not self.stopper.wants():
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
        """Create a trial and count it with the stopper at once, before that is asked whether it wants another one."""
        trial = self.ledger.add(config, parent)
        self.stopper.begin(trial.number, config)
        return trial

    # ---------------------------------------------------------------------------------------- what trials do

    def begin(self, trial: TrialState, attempt: int) -> None:
        """Record that the user's function was called for this attempt of the trial."""
        trial.attempt = attempt
        trial.begun += 1
        self.ledger.move(trial, TrialPhase.RUNNING)
        self._facts.append(("begin", trial.number, attempt))

    def report(self, trial: TrialState, step: int, value: float, checkpoint: bool) -> Verdict | Exploit:
        """Record a metric value of a new, higher step; the stopper's verdict is returned and kept in ``trial.asked``."""
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

    def again(self, trial: TrialState, kind: str, error: str, seconds: float) -> None:
        """Record that an attempt of ``seconds`` ended, but not the trial. ``kind``: failed | lost (its slot went away)."""
        trial.seconds += seconds
        trial.error = error
        if kind == "failed":
            trial.tries += 1
        else:
            trial.lost += 1
        self._facts.append(("again", trial.number, kind, error, seconds))
        self._part_over(trial, TrialPhase.PAUSED if trial.asked == "pause" else TrialPhase.READY)

    def _part_over(self, trial: TrialState, phase: TrialPhase) -> None:
        # What the stopper decided while the attempt ran takes effect now that it is over.
        if trial.exploit is not None:
            trial.config, trial.resume_from = dict(trial.exploit.config), trial.exploit.source
            phase = TrialPhase.READY
        elif trial.wanted:
            phase = TrialPhase.READY
        trial.asked, trial.exploit, trial.wanted = "", None, False
        self.ledger.move(trial, phase)

    def resume(self, settle: bool = False) -> TrialState | None:
        """The paused trial that the stopper resumes now, or None. ``settle``: nothing runs, and no new trial is to come."""
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
    ) -> Settled:
        """End the trial for good; searcher and stopper are told, once. ``fault``: all trials may share this error."""
        trial.seconds += seconds
        if end is End.FAILED and trial.number in self.ledger.placed:
            trial.tries += 1  # the last attempt; those before it were counted by ``again``
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
        return Settled(trial.number, end, value, outputs, error, trial.seconds, outcome.step)

    # ---------------------------------------------------------------------------------------- all at once

    def state(self) -> dict[str, Any]:
        """Searcher, stopper and ledger for ``restore``; as JSON values, but for those of configurations."""
        return {
            "trials": [as_json(trial) for trial in self.ledger.trials],
            "extra": self.extra,
            "done": self.done,
            "alike": self.alike.state(),
            "searcher": self.searcher.state(),
            "stopper": self.stopper.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state()`` of another one, whose searcher and stopper were constructed with the same arguments."""
        for fields in state["trials"]:
            self.ledger.restore(fields)
        self.extra, self.done = state["extra"], state["done"]
        self.alike.restore(state["alike"])
        self.searcher.restore(state["searcher"])
        self.stopper.restore(state["stopper"])

    # ---------------------------------------------------------------------------------------- saying it again

    def repeat(self, fact: Sequence[Any]) -> None:
        """Replay one fact of the journal with the same calls to searcher and stopper; nothing runs, no new fact results."""
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
        """Repeat an ``ask``; the configuration that ran then counts, whatever would be suggested today."""
        answer = self.searcher.ask(number)
        if isinstance(answer, Suggestion) and _same(answer.config, config):
            config = dict(answer.config)
        else:
            self.differing.append(number)
        self._add(config, parent)

    def _repeat_of(self, trial: TrialState, kind: str, rest: list[Any]) -> None:
        if kind == "begin":
            self.begin(trial, *rest)
        elif kind == "report":
            step, value, verdict, checkpoint = rest
            again, before = self.report(trial, step, value, checkpoint), _verdict(verdict)
            if marked(_as_json(again)) != marked(verdict):  # the verdict that was given counts, not today's
                trial.asked, trial.exploit = "", None
                self._apply_verdict(trial, before)
        elif kind == "rest":
            self.rest(trial, *rest)
        elif kind == "again":
            self.again(trial, *rest)
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
    """Whether both are the same configuration; ``written`` has been through JSON."""
    return bool(marked(suggested) == marked(written))
