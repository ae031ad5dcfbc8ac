"""Values between the training function and the driver: ``hopsml.send``, ``hopsml.receive``, ``hopsml.elastic.resize``."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError

MOST_BYTES = 32 << 20  # of one value


@dataclass(frozen=True)
class ResizeRequest:
    """The message that ``resize`` sends to the driver, which changes the group's size instead of handing it to the user."""

    size: int


def send(value: Any) -> None:
    """Let the driver have a value: ``run.on_message(fn)`` calls ``fn(rank, value)`` there.

    Waits only while the agent is behind. Outside a worker it does nothing, so that the same function runs alone.

    Raises:
        ArgumentError: a value that cannot be pickled, or more than 32 MiB; inside a trial of a search, which reports.
    """
    context = _worker("hopsml.send()")
    if context is not None:
        context.say(pickled(value, "hopsml.send()"))


def receive(timeout: float = 0.0) -> Any:
    """Wait for the next value that ``run.send(value)`` sent to this worker; None when none comes within ``timeout`` seconds.

    Outside a worker there is none.
    """
    context = _worker("hopsml.receive()")
    if context is None or context.inbox is None:
        return None
    data = context.inbox.get(timeout)
    return None if data is None else pickle.loads(data)


def resize(size: int) -> None:
    """Ask for ``size`` workers at most, from the group's next commit on; as ``run.resize(size)`` on the driver.

    Any rank may ask, the last one counts. What the driver refuses (a group of fixed size, a number beyond ``min_workers``
    and ``max_workers``) is a note of the run, no error here. Outside a worker it does nothing.

    Raises:
        ArgumentTypeError: no whole number.
    """
    if isinstance(size, bool) or not isinstance(size, int):
        raise ArgumentTypeError(f"resize({size!r}): a whole number of workers was expected")
    context = _worker("hopsml.elastic.resize()")
    if context is not None:
        context.say(pickle.dumps(ResizeRequest(size)))


def pickled(value: Any, caller: str) -> bytes:
    """``value`` as bytes by cloudpickle. Raises ArgumentError, in the name of ``caller``, if it cannot be pickled."""
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
    context = current()
    if context is not None and context.trial is not None:
        raise ArgumentError(f"{caller} inside a trial of a search: use hopsml.report() and the returned value instead")
    return context
