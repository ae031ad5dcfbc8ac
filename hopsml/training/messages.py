"""Values sent between the training function and the driver: ``hopsml.send``, ``receive``, ``elastic.resize``."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError

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
        context.say(pickled(value, "hopsml.send()"))


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
        raise ArgumentTypeError(f"resize({size!r}): a whole number of workers was expected")
    context = _worker("hopsml.elastic.resize()")
    if context is not None:
        context.say(pickle.dumps(ResizeRequest(size)))


def pickled(value: Any, caller: str) -> bytes:
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
            f"{caller}: {len(data) >> 20} MiB are too much, at most {MOST_BYTES >> 20} MiB travel: save large values in the "
            "run directory and send their path"
        )
    return data


def _worker(caller: str) -> WorkerContext | None:
    """Return this worker's context, None outside one; raise ArgumentError inside a trial of a search."""
    context = current()
    if context is not None and context.trial is not None:
        raise ArgumentError(f"{caller} inside a trial of a search: use hopsml.report() and the returned value instead")
    return context
