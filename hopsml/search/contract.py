"""What a searcher and a stopper must offer; every algorithm passes one contract suite (tests/search/test_contract.py).

Trials are known by their number, counted from 0 in the order in which they were asked for. A score is finite, and larger
is better: whoever drives a searcher turns the sign where the metric is minimised, and makes None of what is no number.
The same calls with the same seed give the same answers, also across ``state`` and ``restore``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

Config = dict[str, Any]  # name of a parameter -> value


class End(Enum):
    """In which way a trial ended."""

    COMPLETED = "completed"  # the function returned
    STOPPED = "stopped"  # pruned: the stopper ended it
    FAILED = "failed"  # it raised or its process died, in every attempt


@dataclass(frozen=True)
class Outcome:
    """The result of a trial. ``score``: of its return value, or of its last report if it was stopped; None: it has none."""

    end: End
    score: float | None = None
    step: int | None = None  # of the last report


class Wait(Enum):
    """Why ``Searcher.ask`` gives no configuration."""

    LATER = "later"  # ask again after the next tell: it needs a result first
    DONE = "done"  # there is no further configuration


@dataclass(frozen=True)
class Suggestion:
    """A configuration to try. ``parent``: the trial from whose newest checkpoint it starts, None for none."""

    config: Config
    parent: int | None = None


class Recalled(ABC):
    """Base of objects that are pickled as constructor arguments and ``state()``, so that unpicklable models need not be."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        """Keep the arguments, from which unpickling constructs the object again."""
        made = super().__new__(cls)
        made._made_with = positional, named
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _recall, (type(self), *self._made_with, self.state())

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that changed since construction, as JSON values, for ``restore``."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""


def _recall(kind: Any, positional: tuple[Any, ...], named: dict[str, Any], state: dict[str, Any]) -> Any:
    made = kind(*positional, **named)
    made.restore(state)
    return made


class Searcher(Recalled):
    """Proposes configurations. Constructed with the space, the algorithm's own arguments and ``seed``."""

    total: int | None = None  # how many trials there are, where the algorithm decides it (grid, Hyperband)

    @property
    def counts(self) -> bool:
        """Whether it ends after a number of configurations of its own, each of which may become several trials."""
        return False

    @abstractmethod
    def ask(self, number: int) -> Suggestion | Wait:
        """The configuration of trial ``number``, which counts as pending from now on. Numbers rise, without gaps.

        A number that was answered by LATER is asked for again.
        """

    @abstractmethod
    def tell(self, number: int, outcome: Outcome) -> None:
        """Learn the outcome of a trial that has ended; called once for each number."""

    def extend(self, configurations: int) -> bool:
        """The user wants this many more configurations. Returns whether more will come: one that ``counts`` answers True."""
        return False

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Learn from a trial that was not asked for, such as one of an earlier search; called before the first ``ask``."""

    def report(self, number: int, step: int, score: float) -> None:
        """Learn an intermediate score of a running trial; its steps rise from call to call."""


class Verdict(Enum):
    """A stopper's answer to a report."""

    CONTINUE = "continue"
    STOP = "stop"  # it ends here
    PAUSE = "pause"  # it frees its slot, and may be resumed from its newest checkpoint


@dataclass(frozen=True)
class Exploit:
    """The trial is to continue from another one's newest checkpoint with this configuration (population based training)."""

    source: int
    config: Config


class Stopper(Recalled):
    """Decides from intermediate scores which trials continue, pause or stop (early stopping, multi-fidelity)."""

    max_step: int | None = None  # at which a trial is complete, where the algorithm decides it

    def begin(self, number: int, config: Config) -> None:
        """A new trial begins; not called again when it is resumed."""

    @abstractmethod
    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        """Decide about a running trial at a report; its steps rise. One at or past ``max_step`` is answered by STOP."""

    @abstractmethod
    def end(self, number: int, outcome: Outcome) -> None:
        """A trial has ended, for whatever reason; called once for each number, also for paused ones that are given up."""

    def resume(self) -> int | None:
        """The paused trial that shall go on now, before any new one is begun; None when none may.

        It counts as running from this answer on.
        """
        return None

    def settle(self) -> int | None:
        """A paused trial that shall go on although nothing else is left to happen; None: paused ones are over.

        Asked for when no trial runs and the searcher gives no new one.
        """
        return None

    def wants(self) -> bool:
        """Whether new trials may begin; False while an algorithm with synchronised brackets completes one."""
        return True
