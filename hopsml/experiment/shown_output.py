"""What a terminal shows of a worker's output: no flood, and no traceback that the run's error says again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

FIRST_LINES = 200  # that may come at once
LINES_A_SECOND = 50.0  # that may come for ever
LAST_LINES = 20  # of what was left out, shown when it is over
LONGEST = 4000  # characters; what is longer without an end of line is cut into lines
OVER_S = 2.0  # so long without a line, and a flood is over
TELL_EVERY_S = 10.0  # while one goes on

_TRACEBACK = "Traceback (most recent call last):"
_LONGEST_TRACEBACK = 2000  # lines


class ShownOutput:
    """One rank's. Every method returns the lines to be shown now; times are seconds of a clock that only goes forward."""

    def __init__(self, log: Callable[[], str]) -> None:
        """``log``: where the whole output is, asked when something has been left out."""
        self._log = log
        self._partial = ""
        self._credit, self._counted_s = float(FIRST_LINES), 0.0
        self._left_out = 0  # lines, of the flood that goes on
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._came_s = self._told_s = 0.0
        self._traceback: list[str] = []  # that may be told by the run's error
        self._ending = False

    def text(self, text: str, now_s: float) -> list[str]:
        """Some more of the output, however it was cut."""
        shown = self.other(now_s)
        *lines, self._partial = (self._partial + text).replace("\r", "\n").split("\n")
        while len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial[:LONGEST]], self._partial[LONGEST:]
        for line in lines:
            if line.strip():
                shown += self._line(line, now_s)
        return shown

    def other(self, now_s: float) -> list[str]:
        """Something else has happened: what had to wait for more output is shown."""
        shown = [] if self._ending else self._release(now_s)
        return shown + (self._flood_over() if self._left_out and now_s - self._came_s > OVER_S else [])

    def phase(self, ending: bool, now_s: float) -> list[str]:
        """``ending``: a worker may have failed, and what it says of that may be the run's error."""
        self._ending = ending
        return self.other(now_s)

    def end(self, told: str, now_s: float) -> list[str]:
        """The rest. ``told``: the traceback that is in the run's error, which who waits for the run will see."""
        known = {line for line in told.splitlines() if line.strip()}
        kept = [line.removesuffix(_TRACEBACK) for line in self._traceback]  # behind the prompt of an input(), say
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
