"""Multi-fidelity search for functions that report nothing while they run: configurations are repeated with more budget.

A stopper's rule decides between short trials instead of parts of one long trial: a configuration that would continue to
the next rung is suggested again, with the step of that rung as the hyper-parameter ``budget``. So a rule is written
once for both forms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.random import RandomSearcher
from hopsml.search.contract import Config, End, Exploit, Outcome, Searcher, Suggestion, Verdict, Wait
from hopsml.search.space.space import Searchspace

BUDGET = "budget"  # name of the hyper-parameter, as in Maggy


class PromotionRule(Protocol):
    """Part of a stopper's interface that is used here; configurations are its trials, budgets its steps."""

    max_step: int | None

    def begin(self, number: int, config: Config) -> None:
        """Register a new configuration; see ``Stopper.begin``."""
        ...

    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        """Decide about a configuration at the end of a trial; see ``Stopper.report``."""
        ...

    def next_step(self, number: int) -> int:
        """Return the budget of the configuration's next trial."""
        ...

    def end(self, number: int, outcome: Outcome) -> None:
        """Record that no further trial of the configuration will run; see ``Stopper.end``."""
        ...

    def resume(self) -> int | None:
        """Return the configuration to be tried again now, or None; see ``Stopper.resume``."""
        ...

    def settle(self) -> int | None:
        """Return a configuration to be tried again although no trial runs, or None; see ``Stopper.settle``."""
        ...

    def wants(self) -> bool:
        """Return True if new configurations may begin; see ``Stopper.wants``."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that changed since construction, as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance with the same arguments."""
        ...


class BudgetSearcher(Searcher):
    """Searcher that repeats configurations of another searcher with the budgets that a rule grants.

    The inner searcher receives a configuration's outcome when it is not promoted at once, and the scores of its later
    trials through ``report``.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        rule: decides which configurations get a larger budget.
        searcher: suggests the configurations; None: random search.
        configurations: number of configurations; None: unlimited.
        hand_over: start a trial from the checkpoint of the one before, for functions that count earlier steps as part
            of their budget.

    Raises:
        ArgumentError: the space has a parameter ``budget``.
    """

    def __init__(
        self,
        space: Searchspace,
        seed: int | None,
        rule: PromotionRule,
        searcher: Searcher | None = None,
        configurations: int | None = None,
        hand_over: bool = False,
    ) -> None:
        if BUDGET in space:
            raise ArgumentError(
                f"the search space has a parameter {BUDGET!r}, which this search sets itself; remove it"
            )
        self.space, self.hand_over, self.configurations = space, hand_over, configurations
        self._rule = rule
        self._searcher = searcher or RandomSearcher(space, seed)
        self._configs: list[Config] = []
        self._last: dict[int, int] = {}  # configuration -> its last trial
        self._running: dict[int, tuple[int, int]] = {}  # trial -> configuration, budget
        self._going_on: deque[int] = deque()  # configurations that the rule promoted at once
        self._told: set[int] = set()  # live configurations whose outcome was passed to the searcher
        self._exhausted = False
        self.says_budget = True  # True if BUDGET is added to a trial's configuration

    @property
    def counts(self) -> bool:
        """True if the number of configurations is limited; a repetition with another budget is not counted."""
        return self.configurations is not None

    def extend(self, configurations: int) -> bool:
        """Raise the number of configurations; returns False, without effect, if it is unlimited."""
        if self.configurations is None:
            return False
        self.configurations += configurations
        return True

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the next trial, promoted configurations first.

        ``Wait.LATER`` while the rule or the searcher needs a result first.
        """
        found: int | Wait | None = self._going_on.popleft() if self._going_on else self._rule.resume()
        if found is None:
            found = self._new()
        if isinstance(found, Wait) and not self._running:  # no running trial can change the rule's decision
            settled = self._rule.settle()
            found = Wait.DONE if settled is None else settled
        if isinstance(found, Wait):
            return Wait.LATER if self._running else found
        budget = self._rule.next_step(found)
        parent = self._last.get(found) if self.hand_over else None
        self._running[number] = (found, budget)
        self._last[found] = number
        told = {BUDGET: budget} if self.says_budget else {}
        return Suggestion({**self._configs[found], **told}, parent)

    def _new(self) -> int | Wait:
        """Return the number of a new configuration; LATER or DONE if there is none."""
        member = len(self._configs)
        if self._exhausted or member == self.configurations:
            return Wait.DONE
        if not self._rule.wants():
            return Wait.LATER
        answer = self._searcher.ask(member)
        if not isinstance(answer, Suggestion):
            self._exhausted = answer is Wait.DONE
            return answer
        self._configs.append(dict(answer.config))
        self._rule.begin(member, answer.config)
        return member

    def tell(self, number: int, outcome: Outcome) -> None:
        """Pass the score at this budget to the rule, which decides on the next budget.

        A trial without a score ends the configuration.
        """
        member, budget = self._running.pop(number)
        if outcome.score is None:
            self._end(member, Outcome(End.FAILED, step=budget))
            return
        self._searcher.report(member, budget, outcome.score)
        verdict = self._rule.report(member, budget, outcome.score)
        if verdict is Verdict.CONTINUE:
            self._going_on.append(member)
        elif verdict is Verdict.PAUSE:
            self._say(member, Outcome(End.STOPPED, outcome.score, budget))
        else:
            complete = budget == self._rule.max_step
            self._end(member, Outcome(End.COMPLETED if complete else End.STOPPED, outcome.score, budget))

    def _say(self, member: int, outcome: Outcome) -> None:
        if member not in self._told:
            self._told.add(member)
            self._searcher.tell(member, outcome)

    def _end(self, member: int, outcome: Outcome) -> None:
        self._rule.end(member, outcome)
        self._say(member, outcome)
        self._told.discard(member)
        self._last.pop(member, None)

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search; one with less than the largest budget counts as stopped."""
        step = config.get(BUDGET, outcome.step)
        whole = step is None or self._rule.max_step is None or step >= self._rule.max_step
        end = End.STOPPED if outcome.end is End.COMPLETED and not whole else outcome.end
        self._searcher.learn(
            {name: value for name, value in config.items() if name != BUDGET}, Outcome(end, outcome.score, step)
        )

    def state(self) -> dict[str, Any]:
        """Return rule, inner searcher and configurations as JSON values, for ``restore``."""
        return {
            "rule": self._rule.state(),
            "searcher": self._searcher.state(),
            "configs": [self.space.encode(config) for config in self._configs],
            "last": [list(pair) for pair in self._last.items()],
            "running": [[number, *pair] for number, pair in self._running.items()],
            "going_on": list(self._going_on),
            "told": sorted(self._told),
            "exhausted": self._exhausted,
            "configurations": self.configurations,
            "says_budget": self.says_budget,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._rule.restore(state["rule"])
        self._searcher.restore(state["searcher"])
        self._configs = [self.space.decode(config) for config in state["configs"]]
        self._last = {member: number for member, number in state["last"]}
        self._running = {number: (member, budget) for number, member, budget in state["running"]}
        self._going_on = deque(state["going_on"])
        self._told = set(state["told"])
        self._exhausted = state["exhausted"]
        self.configurations = state["configurations"]
        self.says_budget = state.get("says_budget", True)
