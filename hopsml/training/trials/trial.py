"""Trial that the calling code belongs to (``hopsml.trial()``), its arguments, and distributed training as one trial.

In a distributed trial the chief's reports are the trial's. When the search ends the trial, the chief's next report
raises ``TrialStopped``; the other workers are ended with the group as soon as the chief has left the function.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hopsml.cluster.worker.context import WorkerContext, current, set_current
from hopsml.core import moved_names
from hopsml.errors import ArgumentError, ArgumentTypeError, TrialStopped
from hopsml.search.metric import name_of
from hopsml.search.space.space import parameters_of, takes_any
from hopsml.storage import durable, urls
from hopsml.storage.run_dir import step_name

WHOLE, REPORTER, BUDGET = "hparams", "reporter", "budget"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bind_arguments(
    function: Callable[..., Any], fixed: Mapping[str, Any], config: Mapping[str, Any], reporter: Any
) -> dict[str, Any]:
    """Return the keyword arguments of the training function for one trial.

    A parameter named like a hyper-parameter gets its value, ``hparams`` the whole configuration as a dict,
    ``reporter`` the reporter. A ``budget`` is left out if the function has no parameter for it.

    Raises:
        ArgumentTypeError: a value has no parameter, or a parameter has no value.
    """
    given = {**fixed, **config}
    names = parameters_of(function)
    if names is None:
        return given
    offered = {WHOLE: dict(config), REPORTER: reporter}
    extra = {name: value for name, value in offered.items() if name in names and name not in given}
    if takes_any(names):
        return {**given, **extra}
    check_parameters_exist(function, config)
    bound = {**{name: value for name, value in given.items() if name in names}, **extra}
    missing = [
        name
        for name, parameter in names.items()
        if parameter.kind in _BY_NAME and parameter.default is inspect.Parameter.empty and name not in bound
    ]
    if missing:
        raise ArgumentTypeError(
            f"{_name(function)} needs {', '.join(missing)}, which the search space does not have; it has "
            f"{', '.join(config) or 'nothing'}: add the names to the space, or give the parameters defaults"
        )
    return bound


def check_parameters_exist(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise ArgumentTypeError if the function has no parameter for one of these hyper-parameters."""
    parameters = parameters_of(function)
    if parameters is None or WHOLE in parameters or takes_any(parameters):
        return
    known = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    strangers = [name for name in names if name not in known and name != BUDGET]
    if strangers:
        raise ArgumentTypeError(
            f"{_name(function)} has no parameter {', '.join(strangers)}; it has {', '.join(known) or 'none'}: add it, or a "
            "parameter hparams, which gets the whole configuration"
        )


def _name(function: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return str(getattr(function, "__name__", repr(function)))


@dataclass(frozen=True)
class Trial:
    """Trial of a search, as seen by the user's function: one point of the search space.

    ``checkpoint_dir`` is mirrored to shared storage; a checkpoint that ``checkpoint()`` has written there is complete
    or absent. A trial that continues from another one, or from an earlier part of itself, finds a copy of that one's
    newest complete checkpoint in ``resume_checkpoint``; ``done_step`` is the last step that had been reported by
    then, -1 for none.
    """

    number: int
    trial_id: str
    config: dict[str, Any]
    checkpoint_dir: Path
    resume_checkpoint: Path | None = None
    done_step: int = -1
    attempt: int = 0
    folder: Path = field(default=Path(), repr=False)

    @property
    def id(self) -> str:
        """The trial's id: the name of its folder in ``trials/``."""
        return self.trial_id

    @property
    def resume_step(self) -> int | None:
        """The step of ``resume_checkpoint``; None if there is none."""
        return None if self.resume_checkpoint is None else int(self.resume_checkpoint.name.removeprefix("step-"))

    @contextlib.contextmanager
    def checkpoint(self, step: int, keep: int = 2) -> Iterator[Path]:
        """Return a context manager for a folder that becomes the checkpoint of ``step`` at the end of the block.

            with hopsml.trial().checkpoint(epoch) as folder:
                np.save(folder / "weights.npy", weights)

        The folder gets its final name atomically. After an error in the block there is no checkpoint. TensorFlow's
        checkpoints are written by ``hopsml.tensorflow.Checkpointer``.
        """
        from hopsml.storage.checkpoints import write_retention
        from hopsml.storage.run_dir import parse_step_name

        if isinstance(keep, bool) or keep < 1:
            raise ArgumentError(f"keep={keep!r}: at least 1 checkpoint must be kept")
        target = self.checkpoint_dir / step_name(step)
        fresh = Path(urls.temporary_sibling(str(target)))
        fresh.mkdir(parents=True)
        try:
            yield fresh
            write_retention(self.checkpoint_dir, keep)
            durable.sync_tree(fresh)
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
            durable.sync_directory_entry(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        others = sorted(
            path for path in self.checkpoint_dir.iterdir() if parse_step_name(path.name) not in (None, step)
        )
        for old in others[: len(others) - (keep - 1)]:
            shutil.rmtree(old, ignore_errors=True)


def trial() -> Trial | None:
    """Return the search trial that the calling code runs in; None outside of a search."""
    context = current()
    return None if context is None else cast("Trial | None", context.trial)


@dataclass(frozen=True)
class EndAtNextReport:
    """Message from the driver to the chief: end the trial at its next report; ``how`` is "stop" or "pause"."""

    how: str


@dataclass(frozen=True)
class EndedAsRequested:
    """Message from the chief to the driver: the function has ended as requested; ``how`` is "stop" or "pause"."""

    how: str


def run_group_trial(
    payload: bytes, config: dict[str, Any], number: int, trial_id: str, attempt: int, metric: str, done_step: int
) -> Any:
    """Run the user's function as this worker's part of the trial.

    Args:
        payload: pickled pair of the function and its fixed keyword arguments.
        config: the trial's hyper-parameters.
        number: the trial's number in the search.
        trial_id: name of the trial's folder.
        attempt: number of the attempt.
        metric: name of the searched metric.
        done_step: last step reported in an earlier part of the trial, -1 for none.

    Returns:
        The function's value; None if the trial was stopped early.
    """
    context = current()
    if context is None:
        raise ArgumentError("a trial of a search is a worker's work; experiment.search() starts it")
    function, fixed = moved_names.loads(payload)
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
    set_current(replace(context, trial=trial, send=reporter.send_report))
    told = ""
    try:
        value = function(**bind_arguments(function, fixed, config, reporter))
    except TrialStopped as stop:
        told, value = stop.how, None
    finally:
        set_current(context)
    if told or reporter.told:  # also if the function has caught TrialStopped, for instance to save something
        context.say(pickle.dumps(EndedAsRequested(told or reporter.told)))
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
        self.send_report({"kind": "report", "step": step, "metrics": {self._metric: metric}})

    def log(self, message: Any, jupyter: bool = False) -> None:
        """Print a line to the worker's log; ``jupyter`` has no effect."""
        print(message, flush=True)

    def send_report(self, message: Mapping[str, Any]) -> None:
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
            if isinstance(value, EndAtNextReport):
                self.told = value.how
