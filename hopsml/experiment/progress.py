"""Display of the progress of runs and searches: live in a notebook, plain lines anywhere else.

``ShownOutput`` filters a worker's output on a terminal: it limits floods, and omits the traceback that the error
has, and messages of TensorFlow that have no meaning for the user.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from hopsml.cluster.driver.run_state import Change, Observer, RunState
from hopsml.cluster.gang.events import Phase
from hopsml.core.callbacks import wait_until_writable
from hopsml.core.harmless_output import is_harmless
from hopsml.core.states import Lifecycle
from hopsml.core.tracebacks import ELSEWHERE
from hopsml.experiment.searches import state as searches
from hopsml.experiment.searches.state import SearchState
from hopsml.notebook import display
from hopsml.notebook.run_timeline import StepRate, TrainingProgress
from hopsml.notebook.style import rounded_duration
from hopsml.search.dispatch.journal import SearchSnapshot
from hopsml.search.metric import name_of
from hopsml.storage.run_dir import RunDir

FIRST_LINES = 200  # that may come in one burst
LINES_A_SECOND = 50.0  # sustained rate
LAST_LINES = 20  # of the omitted ones, shown after a flood
LONGEST = 4000  # characters; longer text without an end of line is cut into lines
OVER_S = 2.0  # seconds without a line after which a flood has ended
TELL_EVERY_S = 10.0  # between two summaries during a flood

_TRACEBACK = "Traceback (most recent call last):"
_LONGEST_TRACEBACK = 2000  # lines


class ShownOutput:
    """Filter of one rank's output: methods return the lines to show now; times are monotonic seconds."""

    def __init__(self, log: Callable[[], str]) -> None:
        """Create a filter; ``log`` returns the location of the whole output, for the summary of omitted lines."""
        self._log = log
        self._partial = ""
        self._credit, self._counted_s = float(FIRST_LINES), 0.0
        self._left_out = 0  # lines, of the present flood
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._came_s = self._printed_s = 0.0
        self._traceback: list[str] = []  # lines that the run's error may repeat
        self._ending = False

    def add_text(self, text: str, now_s: float) -> list[str]:
        """Process the next piece of the output, cut anywhere."""
        shown = self.flush_waiting(now_s)
        *lines, self._partial = (self._partial + text).replace("\r", "\n").split("\n")
        while len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial[:LONGEST]], self._partial[LONGEST:]
        for line in lines:
            if line.strip() and not is_harmless(line[:LONGEST].encode(errors="replace")):
                shown += self._line(line, now_s)
        return shown

    def flush_waiting(self, now_s: float) -> list[str]:
        """Process an event that is not output: return the lines that waited for more output."""
        shown = [] if self._ending else self._release(now_s)
        return shown + (self._flood_over() if self._left_out and now_s - self._came_s > OVER_S else [])

    def change_phase(self, ending: bool, now_s: float) -> list[str]:
        """Process a change of phase; with ``ending``, hold tracebacks back, as the run's error may repeat them."""
        self._ending = ending
        return self.flush_waiting(now_s)

    def remaining_lines(self, reported: str, now_s: float) -> list[str]:
        """Return the remaining lines.

        The traceback ``reported`` is omitted, as it is in the run's error for the caller, and so is the line behind it
        that names the file with all of its frames.
        """
        known = Counter(line for line in reported.splitlines() if line.strip())
        unreported = list(self._traceback)
        if known and known.keys() <= {*self._traceback, _TRACEBACK}:
            unreported = _without_last(unreported, known)
        self._traceback = []
        shown = [shown for line in (*unreported, self._partial) if line.strip() for shown in self._pass(line, now_s)]
        self._partial = ""
        return shown + (self._flood_over() if self._left_out else [])

    def _line(self, line: str, now_s: float) -> list[str]:
        if self._traceback or line.endswith(_TRACEBACK):
            self._traceback.append(line)
            return self._release(now_s) if len(self._traceback) > _LONGEST_TRACEBACK else []
        return self._pass(line, now_s)

    def _release(self, now_s: float) -> list[str]:
        lines, self._traceback = self._traceback, []
        return [shown for line in lines for shown in self._pass(line, now_s)]

    def _pass(self, line: str, now_s: float) -> list[str]:
        line = line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line) - LONGEST} characters more)"
        self._credit = min(FIRST_LINES, self._credit + (now_s - self._counted_s) * LINES_A_SECOND)
        self._counted_s = self._came_s = now_s
        if not self._left_out and self._credit >= 1:
            self._credit -= 1
            return [line]
        reported = []
        if not self._left_out:
            reported, self._printed_s = (
                ["... too much output for a terminal; its last lines follow at the end"],
                now_s,
            )
        elif now_s - self._printed_s >= TELL_EVERY_S:
            reported, self._printed_s = [self._summary()], now_s
        self._left_out += 1
        self._last.append(line)
        return reported

    def _flood_over(self) -> list[str]:
        left_out = self._left_out - len(self._last)
        shown = [*([self._summary(left_out)] if left_out else []), *self._last]
        self._left_out, self._credit = 0, float(FIRST_LINES)
        self._last.clear()
        return shown

    def _summary(self, left_out: int = 0) -> str:
        return f"... {left_out or self._left_out} lines are not shown; the whole output is in {self._log()}"


def _without_last(lines: list[str], known: Counter[str]) -> list[str]:
    """Return lines without the last occurrences of those of a traceback: an earlier one may have some in common."""
    left, kept = Counter(known), list[str]()
    for line in reversed(lines):
        ends_prompt = line.endswith(_TRACEBACK) and left[_TRACEBACK] > 0  # behind the prompt of an input()
        found = _TRACEBACK if ends_prompt else line
        if left[found] > 0:
            left[found] -= 1
            line = line.removesuffix(_TRACEBACK) if ends_prompt else ""
        if not line.startswith(ELSEWHERE):
            kept.append(line)
    return kept[::-1]


log = logging.getLogger(__name__)
Observing = TypeVar("Observing")

EVERY_S = 2.0  # seconds between two lines on progress, at least
PIECE = 1024  # characters: a pipe that accepts anything accepts so many at once (4096 bytes)
# Phases that are shown as a state.
_SPELLED = {Phase.RUNNING.value: Lifecycle.RUNNING, Phase.STOPPING.value: Lifecycle.CLOSING}
_ENDING = (Phase.SETTLING.value, Phase.STOPPING.value, *(phase.value for phase in Phase if phase.is_final))


def run_observer_maker() -> Callable[[RunState, str, str], Observer]:
    """Return a function that makes the progress observer of a run, from its state, name and directory.

    Raises:
        ArgumentError: HOPSML_PROGRESS has an unknown value.
    """
    live = display.is_live()

    def observer(state: RunState, name: str, run_dir: str) -> Observer:
        def display() -> Observer:
            from hopsml.notebook.display import RunDisplay

            return RunDisplay(state, name, run_dir).show()

        def lines() -> Observer:
            return RunLines(state.run_id, log=lambda: RunDir(run_dir).log_url(state.begun, 0))

        return _display_or_lines(live, display, lines, f"run {state.run_id}")

    return observer


def search_observer_adder() -> Callable[[SearchState], None]:
    """Return a function that adds a progress observer to a search's state; raises as ``run_observer_maker``."""
    live = display.is_live()

    def observe(state: SearchState) -> None:
        def display() -> searches.Observer:
            from hopsml.notebook.display import SearchDisplay

            return SearchDisplay(state.snapshot).show()

        def lines() -> searches.Observer:
            return SearchLines(state)

        state.observe(_display_or_lines(live, display, lines, f"search {state.run_id}"))

    return observe


def _display_or_lines(
    live: bool, display: Callable[[], Observing], lines: Callable[[], Observing], what: str
) -> Observing:
    if live:
        try:
            return display()
        except Exception:  # a failing display must not end a training
            log.warning("%s cannot be displayed, so progress is printed as lines", what, exc_info=True)
    return lines()


class _Lines:
    """Base class for printing lines about one run or search."""

    def __init__(self, run_id: str, stream: TextIO | None) -> None:
        self.run_id, self.stream = run_id, stream or sys.stderr
        self._last = ""
        self._printed_s = 0.0  # when progress was last printed, in monotonic seconds

    def _is_due(self, pause_s: float = EVERY_S) -> bool:
        """Return True if progress may be printed now, and count it as printed."""
        now = time.monotonic()
        if now - self._printed_s < pause_s:
            return False
        self._printed_s = now
        return True

    def _say(self, text: str) -> None:
        """Print a line, unless it is the same as the last one."""
        if text and text != self._last:
            self._last = text
            self._write(text)

    def _write(self, text: str) -> None:
        write_line(self.stream, f"hopsml {self.run_id}: {text}")


class RunLines(_Lines):
    """Observer that prints phases, the chief's reports (at most one in two seconds) and the chief's own output.

    ``log`` returns the location of the whole output; of a flood only the first and the last lines are printed.
    """

    def __init__(self, run_id: str, stream: TextIO | None = None, log: Callable[[], str] = lambda: "its log") -> None:
        super().__init__(run_id, stream)
        self._output = ShownOutput(log)
        self._rate = StepRate()
        self._progress: TrainingProgress | None = None

    def __call__(self, change: Change) -> None:
        """Print lines for a change of the run."""
        for line in self._of_output(change, time.monotonic()):
            write_line(self.stream, f"[rank 0] {line}")
        if change.kind == "phase":
            self._say(_SPELLED.get(change.text, change.text))
        elif change.kind in ("note", "skipped"):
            self._say(change.text)
        elif change.kind == "progress" and change.rank == 0 and change.step is not None:
            if self._progress is None or self._progress.unit != change.text:
                self._progress = TrainingProgress(change.step, change.total, change.text)
            self._progress.record(time.time(), change.step, change.total)
        elif change.kind == "report" and change.rank == 0:
            self._report(change)

    def _of_output(self, change: Change, now: float) -> list[str]:
        if change.kind == "log":
            return self._output.add_text(change.text, now)
        if change.kind == "phase":
            return self._output.change_phase(change.text in _ENDING, now)
        if change.kind == "closed":
            return self._output.remaining_lines(getattr(change.error, "remote_traceback", ""), now)
        return self._output.flush_waiting(now)

    def _report(self, change: Change) -> None:
        if change.step is not None:
            self._rate.record(change.time, change.step)
        if not self._is_due():
            return
        known = self._progress
        parts = [f"step {change.step}"] if change.step is not None else []
        if known is not None:
            parts = [f"{known.unit} {_done(known, change.step)} of {known.total}"]
        parts += [f"{rate:.1f} steps/s"] if (rate := self._rate.per_second()) else []
        parts += [f"{name} {_short(value)}" for name, value in change.metrics.items()]
        left = known.seconds_left(time.time()) if known is not None and known.done < known.total else None
        parts += [f"about {rounded_duration(left)} left"] if left is not None else []
        self._write("  ".join(parts))


def _done(known: TrainingProgress, step: int | None) -> int:
    """Return the number of steps done: a report's step if the unit is the step, else that of the last progress."""
    counts_likewise = known.unit == "step" and step is not None and known.done <= step <= known.total
    return step if counts_likewise and step is not None else known.done


class SearchLines(_Lines):
    """Observer that prints a search's progress: after each better value, else at most one line in two seconds."""

    def __init__(self, state: SearchState, stream: TextIO | None = None) -> None:
        super().__init__(state.run_id, stream)
        self._state = state
        self._best: float | None = None

    def __call__(self, what: str, facts: dict[str, Any]) -> None:
        """Print a line for a change of the search, if one is due."""
        if what in ("note", "phase", "skipped"):
            self._say(_SPELLED.get(facts["text"], facts["text"]))
        elif what == "settled":
            best = self._state.best["value"] if self._state.best else None
            better, self._best = best != self._best, best
            if self._is_due(EVERY_S / 4 if better else EVERY_S):
                self._say(search_line(self._state.snapshot()))
        elif what == "closed":
            self._say(f"{search_line(self._state.snapshot())}  {facts['state']}")


def search_line(view: SearchSnapshot) -> str:
    """Return the progress of a search in one line: trials, best trial, executors, remaining time."""
    planned = f" of {view.planned}" if view.planned is not None else ""
    counts = [f"{view.counts[name]} {name}" for name in ("running", "stopped", "failed") if view.counts.get(name)]
    parts = [f"trials {view.done}{planned}" + (f" ({', '.join(counts)})" if counts else "")]
    if view.best is not None:
        config = ", ".join(f"{name}={_short(value)}" for name, value in view.best["config"].items())
        config = config if len(config) <= 100 else config[:99] + "…"
        parts.append(f"best {name_of(view.metric)} {view.best['value']:.6g}  {config}")
    if view.ended is None:
        parts.append(f"slots busy {view.busy} of {view.executors}")
        left, outlook = view.seconds_left(), view.outlook()
        if left is not None:
            parts.append(f"{'at most' if outlook is None or outlook.seconds > left else 'about'} {_time(left)} left")
    else:
        parts.append(f"duration {_time(view.now - view.began)}")
    return "  ".join(parts)


def write_line(stream: TextIO, line: str) -> None:
    """Write a line to the stream, waiting for the device outside of its lock, which the program's exit needs."""
    text = f"{line}\n"
    for start in range(0, len(text), PIECE):
        wait_until_writable(stream)
        stream.write(text[start : start + PIECE])
        stream.flush()


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
