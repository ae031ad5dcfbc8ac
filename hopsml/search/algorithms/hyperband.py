"""Hyperband: Li et al. 2018, "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18.

Brackets of synchronous successive halving (algorithm 1), from the one that begins with many trials of few steps to the
one that begins with a few trials of all steps, and then again from the first. While a bracket waits for the last trial
of a rung, the next bracket begins.

All members of a bracket run to the first rung; when the last one has reached it, the best continue to the next (lines 3
to 10). Members are identified by a number: trials that pause and continue (``Hyperband``), or configurations that are
tried again with a greater budget (``HyperbandSearcher``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.asha import Rung, check_ladder, halvings
from hopsml.search.algorithms.budgets import BudgetSearcher
from hopsml.search.contract import Config, Outcome, Searcher, Stopper, Verdict
from hopsml.search.space.space import Searchspace


def bracket_sizes(halvings: int, of: int, factor: int) -> tuple[int, ...]:
    """Return the number of members of each rung of a bracket, first and last rung included.

    Args:
        halvings: number of halvings in this bracket.
        of: number of halvings in the bracket that has most of them (s_max of the paper).
        factor: reduction factor.
    """
    count = -(-(of + 1) * factor**halvings // (halvings + 1))  # rounded up, in integers
    return tuple(count // factor**level for level in range(halvings + 1))


class Bracket:
    """Selection of the members of a bracket that continue to the next rung.

    A member is running, waiting at a rung, or over. The decision about a member is made as soon as no further arrival
    can change it: the outcome is that of the definition, but some members need not wait. A member that is over before
    it reaches a rung leaves fewer to choose from; as many continue as planned, or all.

    Args:
        sizes: number of members of each rung; one that reaches the last rung is complete.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.joined = 0  # members so far, ended ones included
        self._rungs = [Rung() for _ in self.sizes[:-1]]
        self._entered = [0] * len(self.sizes)  # number of members that were ever sent to each rung
        self._heading = [0] * len(self.sizes)  # number of members that run towards it now
        self._running: dict[int, int] = {}  # member -> its next rung
        self._waiting: dict[int, int] = {}  # member -> rung at which it waits

    @property
    def expected(self) -> int:
        """Number of members that may still join before the first rung is full."""
        return max(self.sizes[0] - self.joined, 0)

    def join(self, member: int) -> None:
        """Add a member, which runs to the first rung."""
        self.joined += 1
        self._send(member, 0)

    def _send(self, member: int, level: int) -> None:
        self._running[member] = level
        self._entered[level] += 1
        self._heading[level] += 1

    def level(self, member: int) -> int:
        """Return the next rung of a running member, counted from 0."""
        return self._running[member]

    def record_arrival(self, member: int, score: float) -> bool | None:
        """Record that a running member has reached its rung, and decide about it if possible.

        Returns:
            True if it is promoted at once, False if it is not promoted, None if this is undecided and it waits.
        """
        level = self._running.pop(member)
        self._heading[level] -= 1
        self._rungs[level].add(member, score)
        fate = self._fate(member, level)
        if fate:
            self._send(member, level + 1)
        elif fate is None:
            self._waiting[member] = level
        return fate

    def remove_member(self, member: int) -> None:
        """Remove a member that is over; if it waited at a rung, its place there is open to the next best."""
        if member in self._waiting:
            self._rungs[self._waiting.pop(member)].remove(member)
        elif member in self._running:
            self._heading[self._running.pop(member)] -= 1

    def close(self) -> None:
        """Accept no further member: scale all rungs to the present members, with at least one on each rung."""
        if self.expected:
            share = self.joined / self.sizes[0]
            self.sizes = [max(int(size * share), 1) for size in self.sizes]
            self.sizes[0] = self.joined

    def promote(self) -> int | None:
        """Return the best waiting member that may continue, and mark it running; None if there is none.

        Higher rungs come first.
        """
        for level in reversed(range(len(self._rungs))):
            for member in self._rungs[level].best(self.sizes[level + 1] - self._outstanding(level)):
                if self._waiting.get(member) == level:
                    del self._waiting[member]
                    self._send(member, level + 1)
                    return member
        return None

    @property
    def is_complete(self) -> bool:
        """True if the bracket is complete.

        No member runs, none will join, and no waiting one will be promoted.
        """
        if self._running or self.expected:
            return False
        return not any(self._waiting_among_best(level) for level in range(len(self._rungs)))

    def _waiting_among_best(self, level: int) -> int:
        best = self._rungs[level].best(self.sizes[level + 1])
        return sum(self._waiting.get(member) == level for member in best)

    def _fate(self, member: int, level: int) -> bool | None:
        """Return True or False if a member at a rung continues or not; None if that depends on later arrivals."""
        rank, places = self._rungs[level].rank(member), self.sizes[level + 1]
        if rank >= places:
            return False
        return True if rank + self._outstanding(level) < places else None

    def _outstanding(self, level: int) -> int:
        """Return the greatest number of members that may still reach a rung."""
        if level == 0:
            return self._heading[0] + self.expected
        if self._outstanding(level - 1):
            return self._heading[level] + max(self.sizes[level] - self._entered[level], 0)
        return self._heading[level] + self._waiting_among_best(level - 1)

    def state(self) -> dict[str, Any]:
        """Return the whole bracket as JSON values, for ``restored``."""
        return {
            "sizes": list(self.sizes),
            "joined": self.joined,
            "entered": list(self._entered),
            "rungs": [rung.state() for rung in self._rungs],
            "running": [list(pair) for pair in self._running.items()],
            "waiting": [list(pair) for pair in self._waiting.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Bracket:
        """Return a bracket made from another one's ``state()``."""
        bracket = cls(state["sizes"])
        bracket.joined = state["joined"]
        bracket._entered = list(state["entered"])
        bracket._rungs = [Rung.restored(rung) for rung in state["rungs"]]
        bracket._running = {member: level for member, level in state["running"]}
        for level in bracket._running.values():
            bracket._heading[level] += 1
        bracket._waiting = {member: level for member, level in state["waiting"]}
        return bracket


class Ladders:
    """Sizes and steps of the brackets of Hyperband, in order.

    The rungs of a bracket are ``max_step`` divided by ``factor`` once, twice and so on, rounded down.

    Args:
        min_step: smallest step of a rung.
        max_step: step of the last rung.
        factor: reduction factor.
        count: number of brackets; None: unlimited.
    """

    def __init__(self, min_step: int, max_step: int, factor: int, count: int | None = None) -> None:
        self.count = count
        most = halvings(min_step, max_step, factor)
        halved = range(most, -1, -1)  # number of halvings in each bracket
        self._sizes = [bracket_sizes(times, most, factor) for times in halved]
        self._steps = [tuple(max_step // factor**left for left in range(times, -1, -1)) for times in halved]
        self._round = sum(sizes[0] for sizes in self._sizes)

    def sizes(self, bracket: int) -> tuple[int, ...]:
        """Return the number of configurations that reach each rung of this bracket, first rung first."""
        return self._sizes[bracket % len(self._sizes)]

    def steps(self, bracket: int) -> tuple[int, ...]:
        """Return the step of each rung of this bracket; that of the last rung is ``max_step``."""
        return self._steps[bracket % len(self._steps)]

    def first(self, bracket: int) -> int:
        """Return the number of the first configuration of this bracket: the count of those in all brackets before."""
        rounds, rest = divmod(bracket, len(self._sizes))
        return rounds * self._round + sum(sizes[0] for sizes in self._sizes[:rest])

    def bracket_of(self, number: int) -> int:
        """Return the bracket, counted from 0, to which the configuration ``number`` belongs."""
        rounds, rest = divmod(number, self._round)
        bracket = rounds * len(self._sizes)
        while rest >= self.sizes(bracket)[0]:
            rest -= self.sizes(bracket)[0]
            bracket += 1
        return bracket

    @property
    def configurations(self) -> int | None:
        """Number of configurations that begin in all brackets; None: unlimited."""
        return None if self.count is None else self.first(self.count)

    @property
    def trials(self) -> int | None:
        """Number of trials if each rung of a configuration is a separate trial; None: unlimited."""
        return None if self.count is None else sum(sum(self.sizes(bracket)) for bracket in range(self.count))


def ladders_of(
    min_step: int, max_step: int | None, factor: int, count: int | None, names: tuple[str, str, str]
) -> Ladders:
    """Return the brackets for a user's arguments, after validation.

    Args:
        min_step: smallest step of a rung.
        max_step: step of the last rung.
        factor: reduction factor.
        count: number of brackets; None: unlimited.
        names: names of the first three arguments in the user's interface, for messages.

    Raises:
        ArgumentError: a missing or invalid value.
    """
    if max_step is None:
        among = "searcher_args" if names[1] == "max_budget" else "stopper_args"
        raise ArgumentError(
            f"{names[1]} is missing: Hyperband divides it among the rungs; say {names[1]}=81, for example, which stands in "
            f'{among}={{"{names[1]}": 81}} where you name the algorithm'
        )
    check_ladder(min_step, max_step, factor, names)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ArgumentError(f"n_iterations={count!r}: how many brackets, 1 or more, was expected; None: without end")
    return Ladders(min_step, max_step, factor, count)


class Hyperband(Stopper):
    """Hyperband stopper: brackets of synchronous successive halving, from many short trials to few long ones.

    ``total`` is the number of trials of all brackets.

    Args:
        max_step: step at which a trial is complete; required.
        min_step: smallest step of a rung.
        reduction_factor: one trial in so many continues at each rung.
        n_iterations: number of brackets; None: until the search has had its trials.
        overlap: False: a bracket begins only when the one before is complete, so that a model can use all its results;
            slots are idle in between.

    Raises:
        ArgumentError: a missing or invalid value.
    """

    def __init__(
        self,
        max_step: int | None = None,
        min_step: int = 1,
        reduction_factor: int = 3,
        n_iterations: int | None = None,
        overlap: bool = True,
    ) -> None:
        names = ("min_step", "max_step", "reduction_factor")
        self._ladders = ladders_of(min_step, max_step, reduction_factor, n_iterations, names)
        self.max_step, self.overlap = max_step, overlap
        self.total = self._ladders.configurations
        self._clear()

    def _clear(self) -> None:
        self._begun = 0
        self._newest = -1  # the bracket of the last trial that began
        self._brackets: dict[int, Bracket] = {}  # unfinished brackets by number
        self._bracket_of: dict[int, int] = {}  # live trial -> bracket
        self._verdicts: dict[int, Verdict] = {}  # live trial -> its last verdict

    def begin(self, number: int, config: Config) -> None:
        """Assign a new trial to a bracket by its number alone, so that the order of begins does not matter."""
        place = self._ladders.bracket_of(number)
        if place not in self._brackets:
            self._brackets[place] = Bracket(self._ladders.sizes(place))
        self._begun += 1
        self._newest = max(self._newest, place)
        self._brackets[place].join(number)
        self._bracket_of[number] = place
        self._verdicts[number] = Verdict.CONTINUE

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Compare the trial at its first report at or past a rung.

        One that passes several rungs at once must be good enough at each.
        """
        place = self._bracket_of[number]
        steps = self._ladders.steps(place)
        while self._verdicts[number] is Verdict.CONTINUE:
            bracket = self._brackets[place]
            if step < steps[bracket.level(number)]:
                break
            self._verdicts[number] = self._judge(number, bracket, score, last=len(steps) - 1)
            if step >= steps[-1] and self._verdicts[number] is Verdict.PAUSE:  # complete without the last rung
                bracket.remove_member(number)
                self._verdicts[number] = Verdict.STOP
            self._forget_if_over(place)
        return self._verdicts[number]

    def _judge(self, number: int, bracket: Bracket, score: float, last: int) -> Verdict:
        if bracket.level(number) == last:
            return Verdict.STOP
        fate = bracket.record_arrival(number, score)
        if fate is None:
            return Verdict.PAUSE
        return Verdict.CONTINUE if fate else Verdict.STOP

    def next_step(self, number: int) -> int:
        """Return the step of the next rung of a running trial."""
        place = self._bracket_of[number]
        return self._ladders.steps(place)[self._brackets[place].level(number)]

    def end(self, number: int, outcome: Outcome) -> None:
        """Remove an ended trial from its bracket, whose other trials no longer wait for it."""
        place = self._bracket_of.pop(number)
        del self._verdicts[number]
        if place in self._brackets:
            self._brackets[place].remove_member(number)
            self._forget_if_over(place)

    def _forget_if_over(self, place: int) -> None:
        if self._brackets[place].is_complete:  # trials that are paused in it are never resumed
            del self._brackets[place]

    def resume(self) -> int | None:
        """Return the paused trial to be promoted, oldest bracket and highest rung first; None if there is none."""
        for place in sorted(self._brackets):
            number = self._brackets[place].promote()
            if number is not None:
                self._verdicts[number] = Verdict.CONTINUE
                return number
        return None

    def settle(self) -> int | None:
        """Close brackets that no further trial can fill, at their present size.

        Returns:
            The paused trial to be resumed, or None.
        """
        for place, bracket in list(self._brackets.items()):
            bracket.close()
            self._forget_if_over(place)
        return self.resume()

    def wants(self) -> bool:
        """Return False after the last bracket.

        Without ``overlap`` also while the newest bracket is full and not complete.
        """
        if self.total is not None and self._begun >= self.total:
            return False
        newest = self._brackets.get(self._newest)
        return self.overlap or newest is None or newest.expected > 0

    def state(self) -> dict[str, Any]:
        """Return brackets and trials as JSON values, for ``restore``."""
        return {
            "begun": self._begun,
            "newest": self._newest,
            "brackets": [[place, bracket.state()] for place, bracket in self._brackets.items()],
            "trials": [[number, place, self._verdicts[number].value] for number, place in self._bracket_of.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._clear()
        self._begun, self._newest = state["begun"], state["newest"]
        self._brackets = {place: Bracket.restored(bracket) for place, bracket in state["brackets"]}
        self._bracket_of = {number: place for number, place, _ in state["trials"]}
        self._verdicts = {number: Verdict(verdict) for number, _, verdict in state["trials"]}


class HyperbandSearcher(BudgetSearcher):
    """Hyperband over repeated trials, which receive their budget as the hyper-parameter ``budget``.

    Maggy's pruner: ``n_iterations`` brackets of budgets from ``min_budget`` to ``max_budget``; ``total`` trials in all.
    With ``searcher=Bohb(space)`` it is BOHB.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        min_budget: smallest budget.
        max_budget: largest budget; required.
        eta: reduction factor.
        n_iterations: number of brackets; None: unlimited.
        searcher: suggests the configurations; None: random search.
        hand_over: start a trial from the checkpoint of the configuration's previous trial.
        num_trials: greatest number of configurations; the last bracket continues with those that it has. None:
            unlimited.

    Raises:
        ArgumentError: a missing or invalid value.
    """

    def __init__(
        self,
        space: Searchspace,
        seed: int | None = None,
        min_budget: int = 1,
        max_budget: int | None = None,
        eta: int = 3,
        n_iterations: int | None = None,
        searcher: Searcher | None = None,
        hand_over: bool = False,
        num_trials: int | None = None,
    ) -> None:
        ladders = ladders_of(min_budget, max_budget, eta, n_iterations, ("min_budget", "max_budget", "eta"))
        rule = Hyperband(max_budget, min_budget, eta, n_iterations)
        configurations = min((count for count in (rule.total, num_trials) if count is not None), default=None)
        super().__init__(space, seed, rule, searcher=searcher, configurations=configurations, hand_over=hand_over)
        self.total = ladders.trials if configurations == rule.total else None
