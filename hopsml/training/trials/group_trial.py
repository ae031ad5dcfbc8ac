"""Distributed training as one trial of a search: the function that each of its workers calls around the user's.

The chief's reports are the trial's. When the search ends the trial, the chief's next report raises ``TrialStopped``;
the other workers are ended with the group as soon as the chief has left the function.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current, set_current
from hopsml.errors import ArgumentError, TrialStopped
from hopsml.search.metric import name_of
from hopsml.training.trials import trial_arguments
from hopsml.training.trials.trial import Trial


@dataclass(frozen=True)
class TellEnd:
    """Message from the driver to the chief: end the trial at its next report; ``how`` is "stop" or "pause"."""

    how: str


@dataclass(frozen=True)
class Left:
    """Message from the chief to the driver: the function has ended as requested; ``how`` is "stop" or "pause"."""

    how: str


def carry_out(
    payload: bytes, config: dict[str, Any], number: int, trial_id: str, attempt: int, metric: str, done_step: int
) -> Any:
    """Run the user's function as this worker's part of the trial and return the function's value.

    Args:
        payload: pickled pair of the function and its fixed keyword arguments.
        config: the trial's hyper-parameters.
        number: the trial's number in the search.
        trial_id: name of the trial's folder.
        attempt: number of the attempt.
        metric: name of the searched metric.
        done_step: last step reported in an earlier part of the trial, -1 for none.
    """
    context = current()
    if context is None:
        raise ArgumentError("a trial of a search is a worker's work; experiment.search() starts it")
    function, fixed = pickle.loads(payload)
    reporter = GroupReporter(context, metric, done_step)
    trial = Trial(
        number=number,
        trial_id=trial_id,
        config=dict(config),
        checkpoint_dir=context.checkpoint_dir,
        resume_checkpoint=context.resume_checkpoint,
        done_step=done_step,
        attempt=attempt,
        folder=context.export_dir.parent,
    )
    set_current(replace(context, trial=trial, send=reporter.pass_on))
    told = ""
    try:
        value = function(**trial_arguments.bind(function, fixed, config, reporter))
    except TrialStopped as stop:
        told, value = stop.how, None
    finally:
        set_current(context)
    if told or reporter.told:  # also if the function has caught TrialStopped, for instance to save something
        context.say(pickle.dumps(Left(told or reporter.told)))
    return value


class GroupReporter:
    """Reporter passed to a training function, with Maggy's interface; usable from any thread of any worker."""

    def __init__(self, context: WorkerContext, metric: str, done_step: int) -> None:
        self._context, self._metric = context, name_of(metric)
        self._next = done_step + 1 if context.resume_checkpoint is not None else 0
        self._lock = threading.Lock()
        self.told = ""

    def broadcast(self, metric: Any, step: int | None = None) -> None:
        """Report a value of the metric at ``step``; without a step, steps are counted."""
        self.pass_on({"kind": "report", "step": step, "metrics": {self._metric: metric}})

    def log(self, message: Any, jupyter: bool = False) -> None:
        """Print a line to the worker's log; ``jupyter`` has no effect."""
        print(message, flush=True)

    def pass_on(self, message: Mapping[str, Any]) -> None:
        """Send a report to the driver; on the chief, raise TrialStopped once the search has ended the trial."""
        if message.get("kind") != "report" or not self._context.is_chief:
            self._context.send(dict(message))
            return
        with self._lock:
            step = message.get("step")
            step = self._next if step is None else int(step)
            self._next = max(self._next, step + 1)
            self._context.send({**message, "step": step})
            if not self.told:
                self._listen()
        if self.told:
            raise TrialStopped(self.told, step)

    def _listen(self) -> None:
        """Read the driver's messages and record a request to end the trial."""
        for data in self._context.inbox.take() if self._context.inbox is not None else ():
            value = pickle.loads(data)
            if isinstance(value, TellEnd):
                self.told = value.how
