"""The dispatch of a search alone, with 512 simulated lanes and 100 000 trials: decisions per second, and memory."""

from __future__ import annotations

import gc
import heapq
import multiprocessing
import resource
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import psutil

from benchmarks.figures import Report, measured
from benchmarks.options import Options

LANES = 512
TRIALS = 100_000
QUICK_TRIALS = 10_000
STEPS = 3  # reports of a trial that is not stopped
STEP_S = 0.05  # average simulated time between two reports
MIN_TRIALS = 10  # default of the median rule
TIMEOUT_S = 300.0


def run(options: Options) -> Report:
    """Measure searches with and without an event log, each in a separate process."""
    trials = options.choose(TRIALS, QUICK_TRIALS)
    plain, kept, grown = [], [], []
    for _ in range(options.rounds_of(3, 1)):
        facts = _in_a_process(trials, journal=False)
        plain.append(facts["trials_per_s"])
        grown.append(facts["grown_mb"])
        kept.append(_in_a_process(trials, journal=True)["trials_per_s"])
        options.say(f"search_scale: {plain[-1]:.0f} trials dispatched a second, {kept[-1]:.0f} with a journal")
    return Report(
        [
            measured("search.dispatches_per_s_512", kept, "/s"),
            measured("search.dispatches_without_journal_per_s_512", plain, "/s"),
            measured("search.dispatch_memory_mb", grown, "MB"),
        ],
        [
            f"search_scale: {trials} trials on {LANES} simulated lanes, random search with median stopping, up to {STEPS} "
            "reports each; a dispatch is everything from asking for a trial until both are told of its end. The time is the "
            "processor's in Dispatch.handle and in making the journal's lines, which a thread writes (without journal: in "
            "Dispatch.handle alone); memory is what the process grew by"
        ],
    )


def _in_a_process(trials: int, journal: bool) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(theirs, trials, journal), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(TIMEOUT_S):
            raise RuntimeError(f"the simulated search was not over within {TIMEOUT_S:g} s")
        return dict(ours.recv())
    except EOFError:
        raise RuntimeError("the process of the simulated search has died: its error is above") from None
    finally:
        process.kill()
        process.join()


def _measure(pipe: Connection, trials: int, journal: bool) -> None:
    from hopsml.search.algorithms.median import MedianStop
    from hopsml.search.algorithms.random import RandomSearcher
    from hopsml.search.dispatch.spec import SearchSpec
    from hopsml.search.space.space import Searchspace

    space = Searchspace(
        lr=("LOGUNIFORM", [1e-4, 1e-1]), layers=("INTEGER", [1, 4]), act=("CATEGORICAL", ["relu", "gelu"])
    )
    RandomSearcher(space, seed=1).ask(0)  # imports what it needs
    searcher, stopper = RandomSearcher(space, seed=0), MedianStop(MIN_TRIALS)
    gc.collect()
    before = psutil.Process().memory_info().rss
    lanes = SimulatedLanes(SearchSpec(trials), searcher, stopper, journal)
    lanes.run()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    ledger = lanes.dispatch.ledger
    assert ledger.ended_count == trials and not ledger.counts()["failed"], ledger.counts()
    pipe.send({"trials_per_s": trials / lanes.spent_s, "grown_mb": grown / 1e6})


class SimulatedLanes:
    """Simulated lanes that carry out actions in virtual time; only the dispatch's decisions are timed."""

    def __init__(self, spec: Any, searcher: Any, stopper: Any, journal: bool) -> None:
        from random import Random

        from hopsml.search.dispatch.dispatch import Dispatch

        self.dispatch = Dispatch(spec, searcher, stopper)
        self.spent_s = 0.0
        self._journal = journal
        self._chance = Random(0)
        self._lanes: list[deque[tuple[int, int, dict[str, Any]]]] = [deque() for _ in range(LANES)]
        self._stopped: dict[int, str] = {}
        self._next: list[tuple[float, int, int, int]] = []  # time, lane, trial, step reported at that time

    def run(self) -> None:
        """Run until the search is over."""
        from hopsml.search.dispatch.events import AttemptBegan, LaneJoined

        for lane in range(LANES):
            self._tell(LaneJoined(lane), 0.0)
        while self._next:
            now, lane, number, step = heapq.heappop(self._next)
            if not self._lanes[lane] or self._lanes[lane][0][0] != number:
                continue
            _, attempt, config = self._lanes[lane][0]
            if step < 0:
                self._tell(AttemptBegan(number, attempt), now)
                self._go_on(now, lane, number, 0)
            else:
                self._step(now, lane, number, attempt, config, step)

    def _step(self, now: float, lane: int, number: int, attempt: int, config: dict[str, Any], step: int) -> None:
        from hopsml.search.dispatch.events import AttemptEnded, ValuesReported

        value = config["lr"] * (step + 1) * config["layers"]
        if number not in self._stopped and step < STEPS:
            self._tell(ValuesReported(number, attempt, step, value), now)
            self._go_on(now, lane, number, step + 1)
            return
        how = "stopped" if self._stopped.pop(number, "") else "finished"
        self._lanes[lane].popleft()
        if self._lanes[lane]:
            heapq.heappush(self._next, (now, lane, self._lanes[lane][0][0], -1))
        self._tell(AttemptEnded(number, attempt, how, value, value, "", STEP_S * step), now)

    def _go_on(self, now: float, lane: int, number: int, step: int) -> None:
        heapq.heappush(self._next, (now + self._chance.expovariate(1 / STEP_S), lane, number, step))

    def _tell(self, event: Any, now: float) -> None:
        from hopsml.search.dispatch import journal
        from hopsml.search.dispatch.events import AssignToLane, RequestTrialEnd

        began = time.thread_time()
        actions = self.dispatch.handle(event, now)
        facts = self.dispatch.take_facts()
        if self._journal:
            journal.fact_lines(facts)
        self.spent_s += time.thread_time() - began
        for action in actions:
            if isinstance(action, AssignToLane):
                queue = self._lanes[action.lane]
                queue.append((action.number, action.attempt, action.config))
                if len(queue) == 1:
                    heapq.heappush(self._next, (now, action.lane, action.number, -1))
            elif isinstance(action, RequestTrialEnd):
                if action.how == "withdraw":
                    self._withdraw(action.number, now)
                else:
                    self._stopped[action.number] = action.how

    def _withdraw(self, number: int, now: float) -> None:
        from hopsml.search.dispatch.events import AttemptEnded

        for queue in self._lanes:
            if len(queue) == 2 and queue[1][0] == number:
                _, attempt, _ = queue.pop()
                self._tell(AttemptEnded(number, attempt, "withdrawn"), now)
                return
