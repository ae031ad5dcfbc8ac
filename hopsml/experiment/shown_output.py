"""Filter for a worker's output on a terminal: limits floods, and omits the traceback that the error has; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

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
        self._came_s = self._told_s = 0.0
        self._traceback: list[str] = []  # lines that the run's error may repeat
        self._ending = False

    def text(self, text: str, now_s: float) -> list[str]:
        """Process the next piece of the output, cut anywhere."""
        shown = self.other(now_s)
        *lines, self._partial = (self._partial + text).replace("\r", "\n").split("\n")
        while len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial[:LONGEST]], self._partial[LONGEST:]
        for line in lines:
            if line.strip():
                shown += self._line(line, now_s)
        return shown

    def other(self, now_s: float) -> list[str]:
        """Process an event that is not output: return the lines that waited for more output."""
        shown = [] if self._ending else self._release(now_s)
        return shown + (self._flood_over() if self._left_out and now_s - self._came_s > OVER_S else [])

    def phase(self, ending: bool, now_s: float) -> list[str]:
        """Process a change of phase; with ``ending``, hold tracebacks back, as the run's error may repeat them."""
        self._ending = ending
        return self.other(now_s)

    def end(self, told: str, now_s: float) -> list[str]:
        """Return the remaining lines; omit the traceback ``told``, which is in the run's error for the caller."""
        known = {line for line in told.splitlines() if line.strip()}
        kept = [line.removesuffix(_TRACEBACK) for line in self._traceback]  # after the prompt of an input()
        if known and known <= {*self._traceback, _TRACEBACK}:
            kept = [line for line in kept if line not in known]
        else:
            kept = self._traceback
        self._traceback = []
        shown = [shown for line in (*kept, self._partial) if line.strip() for shown in self._pass(line, now_s)]
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
        told = []
        if not self._left_out:
            told, self._told_s = (
                ["... too much output for a terminal; the last lines of it follow when it is over"],
                now_s,
            )
        elif now_s - self._told_s >= TELL_EVERY_S:
            told, self._told_s = [self._summary()], now_s
        self._left_out += 1
        self._last.append(line)
        return told

    def _flood_over(self) -> list[str]:
        left_out = self._left_out - len(self._last)
        shown = [*([self._summary(left_out)] if left_out else []), *self._last]
        self._left_out, self._credit = 0, float(FIRST_LINES)
        self._last.clear()
        return shown

    def _summary(self, left_out: int = 0) -> str:
        return f"... {left_out or self._left_out} lines are left out; all of the output is in {self._log()}"
