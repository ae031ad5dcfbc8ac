"""Dynamic batching: requests that arrive while a batch is computed form the next batch, without a timer.

A request that arrives while nothing is computed starts at once, alone. One thread computes, since the model's own
threads share the cores. If a batch fails, its requests are computed one by one, so that the values of one request
cannot fail the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopsml.serving.trying import takes_batches

if TYPE_CHECKING:
    from hopsml.model.flavors.contract import LoadedModel
    from hopsml.serving.trying import Arrays


class QueueFull(Exception):
    """Error for a request beyond the maximum number of waiting requests."""


class DeadlinePassed(Exception):
    """Error for a request that was not computed in time."""


@dataclass(eq=False)
class Waiting:
    """Waiting request: its arrays, their number of rows, and the future of its answer."""

    inputs: Arrays
    rows: int
    answer: asyncio.Future[Arrays]
    form: tuple[tuple[str, tuple[int, ...]], ...] = field(init=False)  # requests of equal form can share a batch

    def __post_init__(self) -> None:
        self.form = tuple((array.dtype.str, array.shape[1:]) for array in self.inputs.values())


def next_batch(waiting: deque[Waiting], most_rows: int) -> list[Waiting]:
    """Remove a batch from the head of the queue; empty if no request waits.

    Requests stay in order; one with more rows than ``most_rows`` is a separate batch. Requests that are already
    answered or abandoned are dropped.

    Args:
        waiting: Queue of requests.
        most_rows: Maximum number of rows of a batch.
    """
    batch: list[Waiting] = []
    rows = 0
    while waiting:
        head = waiting[0]
        if head.answer.done():
            waiting.popleft()
        elif batch and (rows + head.rows > most_rows or head.form != batch[0].form):
            break
        else:
            rows += head.rows
            batch.append(waiting.popleft())
    return batch


class Batcher:
    """Request queue of one loaded model; all methods must be called on one event loop."""

    def __init__(
        self,
        model: LoadedModel,
        executor: Executor,
        *,
        most_rows: int,
        most_waiting: int,
        on_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Initialize an empty queue.

        Args:
            model: The loaded model.
            executor: Executor with one thread.
            most_rows: Maximum number of rows of a batch.
            most_waiting: Maximum number of waiting requests.
            on_batch: Function that is called with the number of rows of each batch.
        """
        self.model = model
        self._executor, self._on_batch = executor, on_batch
        self._most_rows = most_rows if takes_batches(model.signature) else 0
        self._most_waiting = most_waiting
        self._waiting: deque[Waiting] = deque()
        self._computing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def predict(self, inputs: Arrays, deadline: float) -> Arrays:
        """Compute the model's outputs for these rows in the next batch; errors of the model are passed on.

        Args:
            inputs: Arrays by input.
            deadline: Deadline on the clock of the event loop.

        Raises:
            QueueFull: Too many requests wait.
            DeadlinePassed: The request was not computed in time, even if the model never returns.
        """
        if len(self._waiting) >= self._most_waiting:
            count = len(self._waiting)
            raise QueueFull(f"{count} request{' waits' if count == 1 else 's wait'} already")
        first = next(iter(inputs.values()), None)
        rows = 1 if first is None or not first.shape else int(first.shape[0])
        loop = asyncio.get_running_loop()
        request = Waiting(inputs, rows, loop.create_future())
        timer = loop.call_at(deadline, _too_late, request)
        self._waiting.append(request)
        if self._computing is None:
            self._computing = asyncio.create_task(self._compute())
        try:
            return await request.answer
        finally:
            timer.cancel()

    async def _compute(self) -> None:
        """Compute batches while requests wait; if this is cancelled, all of them fail."""
        batch: list[Waiting] = []
        try:
            while self._waiting:
                if batch := next_batch(self._waiting, self._most_rows):
                    _answer(batch, await self._results(batch))
        finally:
            self._computing = None
            left = [*batch, *self._waiting]
            self._waiting.clear()
            _answer(left, [RuntimeError("the computation of the batch was cancelled")] * len(left))

    async def _results(self, batch: Sequence[Waiting]) -> Sequence[Arrays | Exception]:
        """Return one answer, or error, for each request; an error outside the model is that of all requests."""
        try:
            self._on_batch(sum(one.rows for one in batch))
            return await asyncio.get_running_loop().run_in_executor(self._executor, compute, self.model, batch)
        except Exception as error:  # noqa: BLE001 the executor has ended, or on_batch failed: the requests must not wait
            return [error] * len(batch)


def _too_late(request: Waiting) -> None:
    """Fail a request whose deadline has passed."""
    if not request.answer.done():
        request.answer.set_exception(DeadlinePassed("the request was not computed within its deadline"))


def _answer(batch: Sequence[Waiting], results: Sequence[Arrays | Exception]) -> None:
    """Set the answers of a batch's requests."""
    for one, result in zip(batch, results, strict=True):
        if one.answer.done():
            continue
        if isinstance(result, Exception):
            one.answer.set_exception(result)
        else:
            one.answer.set_result(result)


def compute(model: LoadedModel, batch: Sequence[Waiting]) -> list[Arrays | Exception]:
    """Return one answer, or error, for each request of the batch."""
    if len(batch) == 1:
        return [_alone(model, batch[0])]
    try:
        return list(_together(model, batch))
    except BaseException:  # noqa: BLE001 computing each request alone shows which one fails
        return [_alone(model, one) for one in batch]


def _alone(model: LoadedModel, request: Waiting) -> Arrays | Exception:
    """Compute one request alone; exceptions are returned."""
    try:
        outputs = model.predict(request.inputs)
        return _checked(outputs, request.rows) if takes_batches(model.signature) else outputs
    except SystemExit as left:  # it would end the replica and all its requests
        return RuntimeError(f"its code called sys.exit({left.code!r})")
    except BaseException as error:  # noqa: BLE001 the error is the answer
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        return RuntimeError(f"its code raised {error!r}")  # which no future can pass on, or which would end the batcher


def _together(model: LoadedModel, batch: Sequence[Waiting]) -> list[Arrays]:
    """Compute a batch in one call, and split the outputs."""
    import numpy as np

    names = batch[0].inputs
    outputs = _checked(
        model.predict({name: np.concatenate([one.inputs[name] for one in batch]) for name in names}),
        sum(one.rows for one in batch),
    )
    answers: list[dict[str, Any]] = []
    begin = 0
    for one in batch:
        answers.append({name: array[begin : begin + one.rows] for name, array in outputs.items()})
        begin += one.rows
    return answers


def _checked(outputs: Arrays, rows: int) -> Arrays:
    """Return the outputs, if each has one entry per row.

    Raises:
        ValueError: An output has another number of rows, so that it cannot be split by request.
    """
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise ValueError(f"output {name!r} has the shape {array.shape} for {rows} row{'s' if rows != 1 else ''}")
    return outputs
