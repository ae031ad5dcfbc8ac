"""Loaded model versions of one replica, each with its request queue and its own thread for computing.

Dynamic batching: requests that arrive while a batch is computed form the next batch, without a timer. A request that
arrives while nothing is computed starts at once, alone. One thread computes, since the model's own threads share the
cores. If a batch fails, its requests are computed one by one, so that the values of one request cannot fail the others.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from hopsml.core import redact
from hopsml.model.flavors.contract import signatures_of
from hopsml.serving.routes import LoadVersion, Route, RouteAction, Router, RouteRefused, RouteTookEffect, UnloadVersion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopsml.model.description import Signature, TensorSpec
    from hopsml.model.flavors.contract import LoadedModel
    from hopsml.serving.definitions import ServingLimits
    from hopsml.serving.metrics import ReplicaMeter


Arrays = dict[str, "NDArray[Any]"]
_ABOUT_INPUTS = ("InvalidArgumentError", "InvalidArgument")  # of TensorFlow and of ONNX Runtime


def accepts_batches(signature: Signature) -> bool:
    """Return True if rows of several requests can be computed in one call.

    The first dimension of all inputs and outputs must be variable.
    """
    shapes = [tensor.shape for tensor in (*signature.inputs.values(), *signature.outputs.values())]
    return bool(signature.inputs) and all(shape and shape[0] is None for shape in shapes)


class IncompleteOutputs(Exception):
    """Error for a model that does not return all outputs of its signature."""


def warm_up_model(model: LoadedModel) -> str:
    """Call a model with one row, and with two if it accepts batches, because first calls are slow.

    Returns:
        The reason for which the model does not accept the row; "" if it does. Zeros may be invalid, such as a category
        that an encoder has not seen.

    Raises:
        IncompleteOutputs: An output of the signature is missing.
        Exception: Errors of the model that are not caused by the row.
    """
    row = warm_up_row(model.signature)
    try:
        outputs = model.predict(row)
        if accepts_batches(model.signature):
            model.predict({name: array.repeat(2, axis=0) for name, array in row.items()})
    except Exception as error:
        if isinstance(error, ValueError) or type(error).__name__ in _ABOUT_INPUTS:
            return f"{type(error).__name__}: {error}"
        raise
    missing = sorted(model.signature.outputs.keys() - outputs.keys())
    if missing:
        raise IncompleteOutputs(f"the model returns no output '{missing[0]}', which is in its signature")
    return ""


def warm_up_row(signature: Signature) -> Arrays:
    """Return zeros, or empty texts, for each input, with size 1 for variable dimensions."""
    import numpy as np

    def row(tensor: TensorSpec) -> NDArray[Any]:
        shape = [size or 1 for size in tensor.shape]
        return np.full(shape, "", object) if tensor.dtype == "str" else np.zeros(shape, tensor.dtype)

    return {name: row(tensor) for name, tensor in signature.inputs.items()}


log = logging.getLogger("hopsml.serving")

Loader = Callable[[int], "tuple[LoadedModel, str]"]  # version number -> the model and the name of its platform


class LoadedVersions:
    """Loaded versions of a model, with their routes and request queues."""

    def __init__(
        self,
        load: Loader,
        limits: ServingLimits,
        meter: ReplicaMeter,
        tell: Callable[[RouteTookEffect | RouteRefused], None],
    ) -> None:
        """Initialize the holder without versions.

        Args:
            load: Function that loads a version; it is called on a separate thread while earlier versions answer.
            limits: Limits of requests.
            meter: Counts of this process.
            tell: Function that is called when a route takes effect or is refused.
        """
        self._load, self._limits, self._meter, self._tell = load, limits, meter, tell
        self._router = Router()
        self._batchers: dict[int, Batcher] = {}
        self._platforms: dict[int, str] = {}
        self._computing: dict[int, ThreadPoolExecutor] = {}  # one per version: if one hangs, others work
        self._loading = ThreadPoolExecutor(1, "load")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """True if a route is in effect, so that requests are answered."""
        return self._router.route is not None

    @property
    def is_loading(self) -> bool:
        """True if a version is being loaded, which may block the Python process for seconds."""
        return bool(self._tasks)

    @property
    def versions(self) -> dict[int, str]:
        """Version number -> "LOADING", "AVAILABLE" or "UNLOADING"."""
        return self._router.versions

    @property
    def waiting_count(self) -> int:
        """Number of requests in the queues of all versions."""
        return sum(len(batcher) for batcher in self._batchers.values())

    def switch_to(self, route: Route) -> None:
        """Load the versions of a route, and switch to it when they are loaded.

        Loading for an earlier route may hang, so the new route does not wait for it.
        """
        if self._tasks:
            self._loading.shutdown(wait=False)
            self._loading = ThreadPoolExecutor(1, "load")
        self._carry_out(self._router.switch_to(route))

    def choose_version(self, version: int | None, label: str | None) -> int:
        """Return the version that answers a request; see ``Router.choose_version``."""
        return self._router.choose_version(version, label)

    def batcher(self, version: int) -> Batcher:
        """Return the request queue of a loaded version."""
        return self._batchers[version]

    def platform(self, version: int) -> str:
        """Return the platform of a loaded version, such as ``tensorflow_savedmodel``."""
        return self._platforms[version]

    def begin_request(self, version: int) -> None:
        """Count a request that this version is to answer."""
        self._router.begin_request(version)

    def end_request(self, version: int) -> None:
        """Count a request that this version has answered, and unload versions that are no longer needed."""
        self._carry_out(self._router.end_request(version))

    def close(self) -> None:
        """Shut down the threads without waiting for running computations."""
        for executor in (*self._computing.values(), self._loading):
            executor.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, actions: Iterable[RouteAction]) -> None:
        """Carry out the actions of the router."""
        for action in actions:
            if isinstance(action, LoadVersion):
                task = asyncio.create_task(self._loaded(action.version))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(action, UnloadVersion):
                log.info("version %s was unloaded", action.version)
                del self._batchers[action.version], self._platforms[action.version]
                self._computing.pop(action.version).shutdown(wait=False)
            else:
                self._tell(action)

    async def _loaded(self, version: int) -> None:
        """Load a version on a thread, and report the result to the router."""
        loop = asyncio.get_running_loop()
        try:
            model, platform = await loop.run_in_executor(self._loading, self._tried_out, version)
        except Exception as error:  # noqa: BLE001 any error of a model's code is the reason of the failure
            log.warning("version %s cannot be served:\n%s", version, redact.text(traceback.format_exc()))
            self._carry_out(
                self._router.version_failed(version, redact.text(f"{type(error).__name__}: {error}"[:2000]))
            )
            return
        self._computing[version] = ThreadPoolExecutor(1, f"compute-{version}")
        self._batchers[version] = Batcher(
            model,
            self._computing[version],
            most_rows=self._limits.batch_rows,
            most_waiting=self._limits.queue_requests,
            on_batch=self._meter.count_batch,
        )
        self._platforms[version] = platform
        log.info("version %s was loaded", version)
        self._carry_out(self._router.version_loaded(version))

    def _tried_out(self, version: int) -> tuple[LoadedModel, str]:
        """Load a version and warm it up with a row of zeros, if it accepts that."""
        model, platform = self._load(version)
        if cold := warm_up_model(model):
            text = redact.text(cold[:500])
            log.warning(
                "version %s cannot compute a row of zeros for warm-up, so its first requests take longer: %s",
                version,
                text,
            )
        return model, platform


class QueueFull(Exception):
    """Error for a request beyond the maximum number of waiting requests."""


class DeadlinePassed(Exception):
    """Error for a request that was not computed in time."""


@dataclass(eq=False)
class QueuedRequest:
    """Waiting request: its arrays, their number of rows, and the future of its answer."""

    inputs: Arrays
    rows: int
    answer: asyncio.Future[Arrays]
    form: tuple[tuple[str, tuple[int, ...]], ...] = field(init=False)  # requests of equal form can share a batch

    def __post_init__(self) -> None:
        self.form = tuple((array.dtype.str, array.shape[1:]) for array in self.inputs.values())


def pop_batch(waiting: deque[QueuedRequest], most_rows: int) -> list[QueuedRequest]:
    """Remove a batch from the head of the queue; empty if no request waits.

    Requests stay in order; one with more rows than ``most_rows`` is a separate batch. Requests that are already
    answered or abandoned are dropped.
    """
    batch: list[QueuedRequest] = []
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


class _Limits(TypedDict):
    """Arguments that the queues of a model's signatures share."""

    most_rows: int
    most_waiting: int
    on_batch: Callable[[int], None]


class Batcher:
    """Request queue of one loaded model, with a queue for each further signature.

    All methods must be called on one event loop. Rows of two signatures are never in one batch.
    """

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
        self._most_rows = most_rows if accepts_batches(model.signature) else 0
        self._most_waiting = most_waiting
        self._waiting: deque[QueuedRequest] = deque()
        self._computing: asyncio.Task[None] | None = None
        limits: _Limits = {"most_rows": most_rows, "most_waiting": most_waiting, "on_batch": on_batch}
        self._named = {name: Batcher(one, executor, **limits) for name, one in signatures_of(model).items()}

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(batcher) for batcher in self._named.values())

    def signature_batcher(self, name: str) -> Batcher:
        """Return the queue of a further signature of the model; this one for any other name."""
        return self._named.get(name, self)

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
        request = QueuedRequest(inputs, rows, loop.create_future())
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
        batch: list[QueuedRequest] = []
        try:
            while self._waiting:
                if batch := pop_batch(self._waiting, self._most_rows):
                    _answer(batch, await self._results(batch))
        finally:
            self._computing = None
            left = [*batch, *self._waiting]
            self._waiting.clear()
            _answer(left, [RuntimeError("the computation of the batch was cancelled")] * len(left))

    async def _results(self, batch: Sequence[QueuedRequest]) -> Sequence[Arrays | Exception]:
        """Return one answer, or error, for each request; an error outside the model is that of all requests."""
        try:
            self._on_batch(sum(one.rows for one in batch))
            return await asyncio.get_running_loop().run_in_executor(self._executor, compute_batch, self.model, batch)
        except Exception as error:  # noqa: BLE001 the executor has ended, or on_batch failed: the requests must not wait
            return [error] * len(batch)


def _too_late(request: QueuedRequest) -> None:
    """Fail a request whose deadline has passed."""
    if not request.answer.done():
        request.answer.set_exception(DeadlinePassed("the request was not computed within its deadline"))


def _answer(batch: Sequence[QueuedRequest], results: Sequence[Arrays | Exception]) -> None:
    """Set the answers of a batch's requests."""
    for one, result in zip(batch, results, strict=True):
        if one.answer.done():
            continue
        if isinstance(result, Exception):
            one.answer.set_exception(result)
        else:
            one.answer.set_result(result)


def compute_batch(model: LoadedModel, batch: Sequence[QueuedRequest]) -> list[Arrays | Exception]:
    """Return one answer, or error, for each request of the batch."""
    if len(batch) == 1:
        return [_alone(model, batch[0])]
    try:
        return list(_together(model, batch))
    except BaseException:  # noqa: BLE001 computing each request alone shows which one fails
        return [_alone(model, one) for one in batch]


def _alone(model: LoadedModel, request: QueuedRequest) -> Arrays | Exception:
    """Compute one request alone; exceptions are returned."""
    try:
        outputs = model.predict(request.inputs)
        return _checked(outputs, request.rows) if accepts_batches(model.signature) else outputs
    except SystemExit as left:  # it would end the replica and all its requests
        return RuntimeError(f"its code called sys.exit({left.code!r})")
    except BaseException as error:  # noqa: BLE001 the error is the answer
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        return RuntimeError(f"its code raised {error!r}")  # which no future can pass on, or which would end the batcher


def _together(model: LoadedModel, batch: Sequence[QueuedRequest]) -> list[Arrays]:
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
