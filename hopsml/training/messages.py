"""Values sent between the training function and the driver: messages, reports and progress, ``elastic.resize``.

Reported values go to the driver, the metrics file and the display. The chief also sends its progress, a few times a
second at most.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError

INTERVAL_S = 0.5


def report(step: int | None = None, **values: Any) -> None:
    """Report values of a training step to the driver: ``hopsml.report(step=100, loss=0.3)``.

    Any rank may report; the chief's values are shown and written to ``metrics.jsonl``. Outside a worker it does
    nothing, so that the same function runs alone.

    Args:
        step: step to which the values belong.
        **values: numbers, numpy scalars and one-element tensors are stored as numbers, anything else as text.

    Raises:
        ArgumentTypeError: (a TypeError) ``step`` is not an integer.
    """
    if step is not None and not _is_whole(step):
        raise ArgumentTypeError(
            f"hopsml.report({step!r:.80}): the step must be a whole number, and values go by name, for instance "
            "hopsml.report(step=3, loss=0.1)"
        )
    context = current()
    if context is not None:
        context.send({"kind": "report", "step": step, "metrics": values})


def _is_whole(step: Any) -> bool:
    """Return True for an integer, also one of numpy or of a framework."""
    try:
        return bool(int(step) == step)
    except (TypeError, ValueError):
        return False


class ProgressSender:
    """Sender of the chief's progress to the driver; it does nothing on other ranks and outside of a worker."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        """Create a sender for this process.

        Args:
            interval_s: least seconds between two messages; the last step is sent in any case.
        """
        context = current()
        self._tell = context.progress if context is not None and context.is_chief else None
        self._interval_s, self._next = interval_s, 0.0

    def send_progress(self, done: int, total: int, unit: str = "step", *, at_once: bool = False) -> None:
        """Send ``done`` of ``total`` units to the driver; ignored if the total is unknown.

        Args:
            done: units done so far.
            total: units in all; less than 1 if unknown.
            unit: name of the unit.
            at_once: ignore the interval between messages.
        """
        if self._tell is None or total < 1:
            return
        now = time.monotonic()
        if at_once or now >= self._next or done >= total:
            self._next = now + self._interval_s
            self._tell(done, total, unit)


MOST_BYTES = 32 << 20  # for one value


@dataclass(frozen=True)
class ResizeRequest:
    """Message of ``resize`` to the driver, which changes the group's size instead of passing it to the user."""

    size: int


def send(value: Any) -> None:
    """Send a value to the driver, where ``run.on_message(fn)`` calls ``fn(rank, value)``.

    Waits only while the agent is behind. Outside a worker it does nothing, so that the same function runs alone.

    Args:
        value: anything that can be pickled, at most 32 MiB.

    Raises:
        ArgumentError: the value cannot be pickled or is larger than 32 MiB, or the call is inside a trial of a
            search, which uses ``hopsml.report`` instead.
    """
    context = _worker("hopsml.send()")
    if context is not None:
        context.say(pickle_value(value, "hopsml.send()"))


def receive(timeout: float = 0.0) -> Any:
    """Return the next value that the driver has sent to this worker by ``run.send(value)``.

    Args:
        timeout: seconds to wait for it.

    Returns:
        The value; None if none arrives in time, and outside a worker.
    """
    context = _worker("hopsml.receive()")
    if context is None or context.inbox is None:
        return None
    data = context.inbox.get(timeout)
    return None if data is None else pickle.loads(data)


def resize(size: int) -> None:
    """Request at most ``size`` workers from the group's next commit on, as ``run.resize(size)`` does on the driver.

    Any rank may request it, and the last request counts. If the driver refuses it (a group of fixed size, a number
    outside ``min_workers`` and ``max_workers``), the run gets a note and no error is raised here. Outside a worker it
    does nothing.

    Args:
        size: the largest number of workers.

    Raises:
        ArgumentTypeError: ``size`` is not an integer.
    """
    if isinstance(size, bool) or not isinstance(size, int):
        raise ArgumentTypeError(f"resize({size!r}): the number of workers must be a whole number")
    context = _worker("hopsml.elastic.resize()")
    if context is not None:
        context.say(pickle.dumps(ResizeRequest(size)))


def pickle_value(value: Any, caller: str) -> bytes:
    """Return ``value`` pickled by cloudpickle.

    Args:
        value: the value to send.
        caller: function named in error messages.

    Raises:
        ArgumentError: the value cannot be pickled, or is larger than 32 MiB.
    """
    import cloudpickle

    try:
        data = bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise ArgumentError(
            f"{caller}: a {type(value).__name__} cannot be sent ({type(error).__name__}: {error}); send numbers, text, "
            "numpy arrays, or lists and dicts of them"
        ) from error
    if len(data) > MOST_BYTES:
        raise ArgumentError(
            f"{caller}: the value has {len(data) >> 20} MiB, but at most {MOST_BYTES >> 20} MiB can be sent; save "
            "large values in the run directory, and send their path"
        )
    return data


def _worker(caller: str) -> WorkerContext | None:
    """Return this worker's context, None outside one; raise ArgumentError inside a trial of a search."""
    context = current()
    if context is not None and context.trial is not None:
        raise ArgumentError(f"{caller} inside a trial of a search: use hopsml.report() and the returned value instead")
    return context
