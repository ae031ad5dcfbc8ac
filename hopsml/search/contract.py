"""Interfaces of searchers and stoppers; every algorithm passes one contract suite (tests/unit/search/test_contract.py).

Trials are identified by their number, counted from 0 in the order in which they were requested. A score is finite, and
larger is better: the caller negates the metric where it is minimised, and passes None where it is not a finite number.
The same calls with the same seed return the same results, also across ``state`` and ``restore``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hopsml.core.newer_python import Self

Config = dict[str, Any]  # name of a parameter -> value


class End(Enum):
    """Way in which a trial ended."""

    COMPLETED = "completed"  # the function returned
    STOPPED = "stopped"  # pruned: the stopper ended it
    FAILED = "failed"  # it raised or its process died, in every attempt


@dataclass(frozen=True)
class Outcome:
    """Result of a trial that has ended.

    ``score`` is that of its return value, or of its last report if it was stopped; None if it has none.
    """

    end: End
    score: float | None = None
    step: int | None = None  # step of the last report


class Wait(Enum):
    """Reason why ``Searcher.ask`` returns no configuration."""

    LATER = "later"  # a result is needed first: call ``ask`` again after the next ``tell``
    DONE = "done"  # there is no further configuration


@dataclass(frozen=True)
class Suggestion:
    """Configuration to try next, with the trial from whose newest checkpoint it starts (None for none)."""

    config: Config
    parent: int | None = None


class Recalled(ABC):
    """Base of objects that are pickled as constructor arguments and ``state()``.

    So models that cannot be pickled need not be part of the pickle.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        """Create the object and store the constructor's arguments, from which unpickling constructs it again."""
        made = super().__new__(cls)
        made._made_with = positional, named
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _recall, (type(self), *self._made_with, self.state())

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that changed since construction, as JSON values, for ``restore``."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""


def _recall(kind: Any, positional: tuple[Any, ...], named: dict[str, Any], state: dict[str, Any]) -> Any:
    made = kind(*positional, **named)
    made.restore(state)
    return made


class Searcher(Recalled):
    """Algorithm that suggests configurations; constructed with the space, its own arguments and ``seed``."""

    total: int | None = None  # number of trials, where the algorithm decides it (grid, Hyperband)

    @property
    def counts(self) -> bool:
        """True if the searcher itself limits the number of configurations, each of which may become several trials."""
        return False

    @abstractmethod
    def ask(self, number: int) -> Suggestion | Wait:
        """Return the configuration of trial ``number``, which counts as pending from now on.

        Numbers rise, without gaps. A number for which ``Wait.LATER`` was returned is requested again.
        """

    @abstractmethod
    def tell(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of a trial that has ended; called once for each number."""

    def extend(self, configurations: int) -> bool:
        """Raise the number of configurations by ``configurations``, at the user's request.

        Only a searcher whose ``counts`` is True can do so.

        Returns:
            True if the searcher will suggest more configurations.
        """
        return False

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial that this searcher did not suggest, such as one of an earlier search.

        Called before the first ``ask``.
        """

    def report(self, number: int, step: int, score: float) -> None:
        """Record an intermediate score of a running trial; its steps rise from call to call."""


class Verdict(Enum):
    """Decision of a stopper about a trial that has reported."""

    CONTINUE = "continue"
    STOP = "stop"  # it ends here
    PAUSE = "pause"  # it frees its slot, and may be resumed from its newest checkpoint


@dataclass(frozen=True)
class Exploit:
    """Decision that the trial continues from another one's newest checkpoint with this configuration.

    Used by population based training; ``source`` is the other trial's number.
    """

    source: int
    config: Config


class Stopper(Recalled):
    """Algorithm that decides from intermediate scores which trials continue, pause or stop.

    Used for early stopping and multi-fidelity search.
    """

    max_step: int | None = None  # step at which a trial is complete, where the algorithm decides it

    def advice(self, trials: int) -> str:
        """Return a hint for the user if its arguments do not suit a search of so many trials; empty if they do."""
        return ""

    def begin(self, number: int, config: Config) -> None:
        """Register a new trial; not called again when the trial is resumed."""

    @abstractmethod
    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        """Decide about a running trial at a report; its steps rise from call to call.

        At or past ``max_step`` the result is ``Verdict.STOP``.
        """

    @abstractmethod
    def end(self, number: int, outcome: Outcome) -> None:
        """Record that a trial has ended, for whatever reason.

        Called once for each number, also for paused trials that are ended without being resumed.
        """

    def resume(self) -> int | None:
        """Return the paused trial to be resumed now, before any new one begins; None if there is none.

        The trial counts as running from this call on.
        """
        return None

    def settle(self) -> int | None:
        """Return a paused trial to be resumed although nothing else can happen; None ends all paused trials.

        Called when no trial runs and the searcher suggests no new one.
        """
        return None

    def wants(self) -> bool:
        """Return True if new trials may begin.

        False while an algorithm with synchronised brackets completes one.
        """
        return True
