"""What a person reads while a run goes on: the live display in a notebook, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from hopsml.cluster.driver.run_state import Change, Observer, RunState
from hopsml.cluster.gang.gang import Phase
from hopsml.experiment.shown_output import ShownOutput
from hopsml.experiment.terminal import write_line
from hopsml.notebook import frontend
from hopsml.notebook.story import Progress
from hopsml.notebook.style import about
from hopsml.states import State
from hopsml.storage.run_dir import RunDir

log = logging.getLogger(__name__)

REPORT_EVERY_S = 2.0
_SPELLED = {
    Phase.RUNNING.value: State.RUNNING,
    Phase.STOPPING.value: State.CLOSING,
}  # phases that are no more than a state
_ENDING = (Phase.SETTLING.value, Phase.STOPPING.value, *(phase.value for phase in Phase if phase.is_final))
NO_NAME = "no-name"  # the default of ``name=``, which is the predecessor's


def teller() -> Callable[[RunState, str, str], Observer]:
    """Who will tell a person of a run, given its state, the name that the caller gave it, and its directory.

    Raises ArgumentError for a HOPSML_PROGRESS that is not known.
    """
    return _display if frontend.is_live() else _lines


def _display(state: RunState, name: str, run_dir: str) -> Observer:
    from hopsml.notebook.display import RunDisplay

    try:
        return RunDisplay(state, state.run_id if name == NO_NAME else name, run_dir).show()
    except Exception:  # a display must not harm a training
        log.warning("run %s cannot be displayed, so its progress is printed", state.run_id, exc_info=True)
        return _lines(state, name, run_dir)


def _lines(state: RunState, name: str, run_dir: str) -> Observer:
    return LineProgress(state.run_id, log=lambda: RunDir(run_dir).log(state.generation, 0))


class LineProgress:
    """An observer that prints phases, the chief's reports (at most one in two seconds) and the chief's own output.

    ``log``: where the whole of that output is; of a flood only the first and the last lines are printed.
    """

    def __init__(self, run_id: str, stream: TextIO | None = None, log: Callable[[], str] = lambda: "its log") -> None:
        self.run_id = run_id
        self.stream = stream or sys.stderr
        self._output = ShownOutput(log)
        self._last = ("", "")
        self._reported = 0.0
        self._step: tuple[int, float] | None = None
        self._rate = 0.0
        self._progress: Progress | None = None

    def __call__(self, change: Change) -> None:
        self._show(self._of_output(change, time.monotonic()))
        if change.kind == "phase":
            self._say("phase", _SPELLED.get(change.text, change.text))
        elif change.kind in ("note", "skipped"):
            self._say(change.kind, change.text)
        elif change.kind == "progress" and change.rank == 0 and change.step is not None:
            if self._progress is None or self._progress.unit != change.text:
                self._progress = Progress(change.step, change.total, change.text)
            self._progress.tell(time.time(), change.step, change.total)
        elif change.kind == "report" and change.rank == 0:
            self._report(change)

    def _of_output(self, change: Change, now: float) -> list[str]:
        if change.kind == "log":
            return self._output.text(change.text, now)
        if change.kind == "phase":
            return self._output.phase(change.text in _ENDING, now)
        if change.kind == "closed":
            return self._output.end(getattr(change.error, "remote_traceback", ""), now)
        return self._output.other(now)

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self._write(f"[rank 0] {line}")

    def _say(self, kind: str, text: str) -> None:
        if (kind, text) != self._last:
            self._last = (kind, text)
            self._write(f"hopsml {self.run_id}: {text}")

    def _report(self, change: Change) -> None:
        if change.step is not None:
            if self._step is not None and change.step > self._step[0] and change.time > self._step[1]:
                self._rate = (change.step - self._step[0]) / (change.time - self._step[1])
            self._step = (change.step, change.time)
        now = time.monotonic()
        if now - self._reported < REPORT_EVERY_S:
            return
        self._reported = now
        known = self._progress
        parts = [f"step {change.step}"] if change.step is not None else []
        if known is not None:
            parts = [f"{known.unit} {known.done} of {known.total}"]
        parts += [f"{self._rate:.1f} steps/s"] if self._rate else []
        parts += [f"{name} {_short(value)}" for name, value in change.metrics.items()]
        left = known.seconds_left(time.time()) if known is not None and known.done < known.total else None
        parts += [f"about {about(left)} left"] if left is not None else []
        self._write(f"hopsml {self.run_id}: {'  '.join(parts)}")

    def _write(self, line: str) -> None:
        write_line(self.stream, line)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
