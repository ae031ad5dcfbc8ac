"""Tests of request queues: requests that arrive during a batch form the next one; and of a version's trial prediction."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hopsml.model.description import Signature, TensorSpec
from hopsml.serving.loaded_versions import (
    Batcher,
    DeadlinePassed,
    IncompleteOutputs,
    QueuedRequest,
    QueueFull,
    compute_batch,
    pop_batch,
    warm_up_model,
)
from tests.unit.serving.models import Doubling, Scaled, Two

SIGNATURE = Signature({"code": TensorSpec("int64", (None, 1))}, {"output": TensorSpec("float32", (None, 1))})


class InvalidArgumentError(Exception):
    """Error with the name of TensorFlow's."""


class Model:
    """Model that returns zeros for the given outputs, or raises the given error."""

    signature = SIGNATURE

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self.rows: list[int] = []

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(len(inputs["code"]))
        if isinstance(self._answers, Exception):
            raise self._answers
        return {name: np.zeros((len(inputs["code"]), 1), "float32") for name in self._answers}


def test_trial_prediction_uses_one_row_and_two() -> None:
    model = Model(["output"])
    assert warm_up_model(model) == "" and model.rows == [1, 2]


@pytest.mark.parametrize(
    "error", [ValueError("Found unknown categories [0]"), InvalidArgumentError("must be positive")]
)
def test_model_that_refuses_zeros_is_served_with_a_warning(error: Exception) -> None:
    assert warm_up_model(Model(error)) == f"{type(error).__name__}: {error}"


def test_model_failure_or_missing_output_in_the_trial_prediction_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        warm_up_model(Model(RuntimeError("no kernel for this operation")))
    with pytest.raises(IncompleteOutputs, match="no output 'output'"):
        warm_up_model(Model(["another"]))


pytestmark = pytest.mark.fast
FAR = 1e12  # on the loop's clock


def rows(count: int, value: float = 1.0) -> Any:
    return {"x": np.full((count, 4), value, np.float32)}


def run_batcher(model: Any, play: Callable[[Batcher], Awaitable[Any]], **settings: Any) -> Any:
    """Return the result of ``play``; an error of the batcher itself fails the test at once."""
    errors: list[dict[str, Any]] = []

    async def run() -> Any:
        with ThreadPoolExecutor(1, "model") as executor:
            batcher = Batcher(model, executor, **{"most_rows": 8, "most_waiting": 100, **settings})
            playing = asyncio.ensure_future(play(batcher))

            def stop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                errors.append(context)
                playing.cancel()

            asyncio.get_running_loop().set_exception_handler(stop)
            try:
                return await asyncio.wait_for(playing, 60)
            finally:
                if isinstance(model, Scaled):
                    model.gate.set()

    try:
        return asyncio.run(run())
    finally:
        assert not errors


async def behind_a_held_request(batcher: Batcher, model: Scaled, *requests: Any) -> list[Any]:
    """Send requests while another one is held in the model; return their answers in order."""
    model.gate.clear()
    first = asyncio.create_task(batcher.predict(rows(1), FAR))
    await asyncio.to_thread(model.entered.wait, 30)
    others = [asyncio.create_task(batcher.predict(one, FAR)) for one in requests]
    while len(batcher) < len(requests):
        await asyncio.sleep(0)
    model.gate.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


def test_waiting_requests_are_computed_in_one_batch_and_get_their_own_rows() -> None:
    model = Scaled()
    answers = run_batcher(
        model, lambda batcher: behind_a_held_request(batcher, model, rows(2, 1), rows(3, 2), rows(1, 3))
    )
    assert model.batches == [1, 6]
    assert [answer["y"].tolist() for answer in answers] == [[[2.0] * 4] * 2, [[4.0] * 4] * 3, [[6.0] * 4]]


def test_batch_is_limited_in_rows_but_a_single_request_may_have_more() -> None:
    model = Scaled()
    answers = run_batcher(
        model, lambda batcher: behind_a_held_request(batcher, model, rows(5), rows(4), rows(20), rows(1))
    )
    assert model.batches == [1, 5, 4, 20, 1]
    assert [len(answer["y"]) for answer in answers] == [5, 4, 20, 1]


def test_failing_request_in_a_batch_does_not_affect_the_others() -> None:
    model = Scaled()
    good, bad, also = run_batcher(
        model, lambda batcher: behind_a_held_request(batcher, model, rows(1), rows(1, -1), rows(2))
    )
    assert isinstance(bad, ValueError)
    assert good["y"].tolist() == [[2.0] * 4] and len(also["y"]) == 2


def test_answer_with_a_wrong_number_of_rows_is_an_error() -> None:
    model = Doubling()
    with pytest.raises(ValueError, match=r"output 'y' has the shape \(2, 4\) for 1 row$"):
        run_batcher(model, lambda batcher: batcher.predict(rows(1), FAR))


def test_model_with_a_fixed_number_of_rows_is_called_per_request() -> None:
    model = Scaled(free=False)
    answers = run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, rows(2), rows(2)))
    assert model.batches == [1, 2, 2] and [len(answer["y"]) for answer in answers] == [2, 2]


def test_rows_of_different_shapes_are_not_batched_together() -> None:
    model = Scaled()
    longer = {"x": np.ones((1, 5), np.float32)}
    answers = run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, rows(1), longer, rows(1)))
    assert model.batches == [1, 1, 1, 1] and answers[1]["y"].shape == (1, 5)


def test_request_beyond_its_deadline_or_the_queue_limit_is_refused() -> None:
    model = Scaled()

    async def late(batcher: Batcher) -> None:
        """Send a request that computes and one that waits, both beyond their deadlines."""
        model.gate.clear()
        for _ in range(2):
            with pytest.raises(DeadlinePassed):
                await batcher.predict(rows(1), asyncio.get_running_loop().time() + 0.01)
        model.gate.set()
        await batcher.predict(rows(1), FAR)

    run_batcher(model, late)
    assert model.batches == [1, 1]

    async def fill(batcher: Batcher) -> None:
        model.gate.clear()
        model.entered.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        second = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 request waits already"):
            await batcher.predict(rows(1), FAR)
        model.gate.set()
        await asyncio.gather(first, second)

    run_batcher(model, fill, most_waiting=1)


def test_cancelled_request_is_not_computed() -> None:
    model = Scaled()

    async def leave(batcher: Batcher) -> None:
        model.gate.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        cancelled_request, stays = (asyncio.create_task(batcher.predict(rows(n), FAR)) for n in (2, 3))
        await asyncio.sleep(0)
        cancelled_request.cancel()
        model.gate.set()
        await asyncio.gather(first, stays)

    run_batcher(model, leave)
    assert model.batches == [1, 3]


def request(inputs: Any, count: int) -> QueuedRequest:
    """Return a waiting request of ``count`` rows, outside a loop."""
    loop = asyncio.new_event_loop()
    try:
        return QueuedRequest(inputs, count, loop.create_future())
    finally:
        loop.close()


def test_only_rows_of_equal_shape_in_every_input_share_a_batch() -> None:
    def waiting(*shapes: tuple[int, ...]) -> QueuedRequest:
        inputs = {f"x{number}": np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}
        return request(inputs, shapes[0][0])

    same, wider, deeper = ((2, 3, 4), (2, 5)), ((2, 3, 9), (2, 5)), ((2, 3, 4), (2, 6))
    for other in (wider, deeper):
        queue = deque([waiting(*same), waiting(*same), waiting(*other), waiting(*same)])
        assert [len(pop_batch(queue, 100)) for _ in range(4)] == [2, 1, 1, 0]
    rows_alone = deque([waiting((1, 3, 4), (1, 5)), waiting((7, 3, 4), (7, 5))])  # the number of rows may differ
    assert len(pop_batch(rows_alone, 8)) == 2
    over = deque([waiting((1, 3)), waiting((8, 3))])
    assert [len(pop_batch(over, 8)) for _ in range(2)] == [1, 1]


def test_length_of_a_batcher_is_the_number_of_waiting_requests() -> None:
    model = Scaled()

    async def play(batcher: Batcher) -> int:
        model.gate.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        waiting = [asyncio.create_task(batcher.predict(rows(1), FAR)) for _ in range(3)]
        await asyncio.sleep(0)
        count = len(batcher)
        model.gate.set()
        await asyncio.gather(first, *waiting)
        return count

    assert run_batcher(model, play) == 3


def test_request_errors_state_the_cause() -> None:
    model = Scaled()

    async def late(batcher: Batcher) -> None:
        model.gate.clear()
        with pytest.raises(DeadlinePassed, match=r"^the request was not computed within its deadline$"):
            await batcher.predict(rows(1), asyncio.get_running_loop().time() + 0.01)
        model.gate.set()

    run_batcher(model, late)
    with pytest.raises(ValueError, match=r"for 3 rows$"):
        run_batcher(Doubling(), lambda batcher: batcher.predict(rows(3), FAR))


# ------------------------------------------------------------------------------------------ which are a batch


@pytest.mark.parametrize(
    ("counts", "most", "batches"),
    [
        ([], 8, [[]]),
        ([1], 8, [[1], []]),
        ([4, 4, 1], 8, [[4, 4], [1], []]),  # as many rows as a batch may have, to the last one
        ([4, 5, 1], 8, [[4], [5, 1], []]),
        ([3, 3, 3, 3], 8, [[3, 3], [3, 3], []]),
        ([1, 2, 3, 2, 1], 8, [[1, 2, 3, 2], [1], []]),
        ([9, 1], 8, [[9], [1], []]),  # more than that alone, and nothing with it
        ([1, 9, 1], 8, [[1], [9], [1], []]),
        ([1, 1, 2], 0, [[1], [1], [2], []]),  # of a model that takes no batches each alone
    ],
)
def test_batches_are_filled_in_order_up_to_their_maximum_rows(
    counts: list[int], most: int, batches: list[list[int]]
) -> None:
    queue = deque(request(rows(count), count) for count in counts)
    assert [[one.rows for one in pop_batch(queue, most)] for _ in batches] == batches


def test_rows_of_different_element_types_are_not_batched_together() -> None:
    kinds = [np.float32, np.float32, np.float64, np.int32]
    queue = deque(request({"x": np.zeros((1, 4), kind)}, 1) for kind in kinds)
    assert [len(pop_batch(queue, 8)) for _ in range(4)] == [2, 1, 1, 0]


def test_completed_requests_are_dropped_from_the_queue_and_take_no_rows() -> None:
    waiting = [request(rows(count), count) for count in (5, 4, 7, 4, 3)]
    for number in (0, 2, 4):
        waiting[number].answer.cancel()
    queue = deque(waiting)
    assert pop_batch(queue, 8) == [waiting[1], waiting[3]] and not queue
    assert pop_batch(queue, 8) == []


# ------------------------------------------------------------------------------------------ what is computed


def several(*values: float) -> list[QueuedRequest]:
    """Return requests of 1, 2, 3 ... rows with the given values."""
    return [request(rows(number, value), number) for number, value in enumerate(values, 1)]


def test_batch_is_one_call_and_each_request_gets_its_rows_of_every_output() -> None:
    model = Scaled(outputs=("y", "total"))
    for values in ((1.0, 2.0), (1.0, 2.0, 3.0)):
        model.batches.clear()
        found: list[Any] = compute_batch(model, several(*values))
        assert model.batches == [sum(range(len(values) + 1))]
        for number, (value, answer) in enumerate(zip(values, found, strict=True), 1):
            assert answer["y"].tolist() == [[value * 2] * 4] * number
            assert answer["total"].tolist() == [value * 8] * number


def test_inputs_are_joined_by_name() -> None:
    texts = [["a"], ["b", "c"]]
    batch = [
        request(
            {"a": np.int32([1] * len(text)), "b": np.int32([5] * len(text)), "text": np.array(text, object)}, len(text)
        )
        for text in texts
    ]
    found: list[Any] = compute_batch(Two(), batch)
    assert [answer["upper"].tolist() for answer in found] == [["A"], ["B", "C"]]
    assert [answer["sum"].tolist() for answer in found] == [[6], [6, 6]]


def test_single_request_is_one_call() -> None:
    model = Scaled()
    (found,) = compute_batch(model, several(3.0))
    assert model.batches == [1] and isinstance(found, dict) and found["y"].tolist() == [[6.0] * 4]


def test_failed_batch_is_repeated_request_by_request_in_order() -> None:
    model = Scaled()
    first, second, third = compute_batch(model, several(1.0, -1.0, 3.0))
    assert model.batches == [6, 1, 2, 3]
    assert isinstance(first, dict) and first["y"].tolist() == [[2.0] * 4]
    assert isinstance(second, ValueError) and str(second) == "cannot compute -1"
    assert isinstance(third, dict) and third["y"].tolist() == [[6.0] * 4] * 3


def test_model_that_calls_exit_fails_only_that_request() -> None:
    good, bad = compute_batch(Scaled(), several(1.0, -2.0))
    assert isinstance(good, dict) and good["y"].tolist() == [[2.0] * 4]
    assert isinstance(bad, RuntimeError) and str(bad) == "its code called sys.exit(3)"


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, asyncio.CancelledError])
def test_exception_that_a_future_cannot_hold_fails_only_that_request(
    error: type[BaseException],
) -> None:
    class Raising(Scaled):
        def predict(self, inputs: Any) -> dict[str, Any]:
            if (inputs["x"] < 0).any():
                raise error("odd")
            return super().predict(inputs)

    model = Raising()
    bad, good = run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, rows(1, -1.0), rows(1, 3.0)))
    assert isinstance(bad, RuntimeError) and str(bad) == f"its code raised {error.__name__}('odd')"
    assert good["y"].tolist() == [[6.0] * 4]


def test_answer_of_a_model_with_a_fixed_number_of_rows_may_have_any_shape() -> None:
    (found,) = compute_batch(Doubling(free=False), [request(rows(2), 2)])
    assert isinstance(found, dict) and found["y"].shape == (4, 4)


@pytest.mark.parametrize(
    ("outputs", "count", "message"),
    [
        ({"y": (2, 4)}, 1, "output 'y' has the shape (2, 4) for 1 row"),
        ({"y": (3, 4)}, 2, "output 'y' has the shape (3, 4) for 2 rows"),
        ({"y": ()}, 1, "output 'y' has the shape () for 1 row"),
        ({"y": (2, 4), "z": (1,)}, 2, "output 'z' has the shape (1,) for 2 rows"),
        ({"y": (0, 4)}, 1, "output 'y' has the shape (0, 4) for 1 row"),
    ],
)
def test_every_output_must_have_one_row_per_input_row(
    outputs: dict[str, tuple[int, ...]], count: int, message: str
) -> None:
    class Shaped:
        signature = Signature({"x": TensorSpec("float32", (None, 4))}, {"y": TensorSpec("float32", (None, 4))})

        def predict(self, inputs: Any) -> dict[str, Any]:
            return {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}

    (found,) = compute_batch(Shaped(), [request(rows(count), count)])
    assert isinstance(found, ValueError) and str(found) == message


# ------------------------------------------------------------------------------------------ the queue


class Constant:
    """A model without inputs, or with a single number for one."""

    def __init__(self, inputs: dict[str, TensorSpec]) -> None:
        self.signature = Signature(inputs, {"y": TensorSpec("float32", ())})

    def predict(self, inputs: Any) -> dict[str, Any]:
        return {"y": np.float32(7)}


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (Scaled(), rows(1), 1),
        (Scaled(), rows(5), 5),
        (Constant({}), {}, 1),
        (Constant({"x": TensorSpec("float32", ())}), {"x": np.float32(3)}, 1),
    ],
)
def test_number_of_rows_is_that_of_the_first_input(model: Any, inputs: Any, expected: int) -> None:
    counts: list[int] = []
    answer = run_batcher(model, lambda batcher: batcher.predict(inputs, FAR), on_batch=counts.append)
    assert counts == [expected] and "y" in answer


def test_rows_of_each_batch_are_reported_when_it_starts() -> None:
    model, counts = Scaled(), list[int]()
    requests = rows(2), rows(3), rows(4)
    run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, *requests), on_batch=counts.append)
    assert counts == model.batches == [1, 5, 4]


def test_error_outside_the_model_fails_only_the_requests_of_its_batch() -> None:
    model = Scaled()

    def refuse(count: int) -> None:
        if count == 2:
            raise LookupError("no such counter")

    requests = rows(2), rows(7), rows(1)
    found = run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, *requests), on_batch=refuse)
    assert isinstance(found[0], LookupError) and str(found[0]) == "no such counter"
    assert model.batches == [1, 8] and [len(one["y"]) for one in found[1:]] == [7, 1]


@pytest.mark.parametrize("cancelled", [False, True])
def test_requests_fail_with_the_cause_when_the_executor_is_shut_down(cancelled: bool) -> None:
    model = Scaled()

    async def play() -> list[Any]:
        executor = ThreadPoolExecutor(1)
        batcher = Batcher(model, executor, most_rows=1, most_waiting=9)
        model.gate.clear()
        busy = executor.submit(model.gate.wait)  # the first batch waits for the thread
        waiting = [asyncio.create_task(batcher.predict(rows(1), FAR)) for _ in range(2)]
        while cancelled and len(batcher) != 1:
            await asyncio.sleep(0)
        executor.shutdown(wait=False, cancel_futures=cancelled)
        try:
            return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        finally:
            model.gate.set()
            busy.result()

    text = "was cancelled" if cancelled else "after shutdown"
    for error in asyncio.run(play()):
        assert isinstance(error, RuntimeError) and text in str(error)


def test_requests_without_rows_are_not_joined_if_the_model_takes_no_batches() -> None:
    model = Scaled(free=False)
    run_batcher(model, lambda batcher: behind_a_held_request(batcher, model, rows(0), rows(1), rows(0)))
    assert model.batches == [1, 0, 1, 0]


def test_model_runs_on_the_thread_of_its_executor() -> None:
    names: list[str] = []

    class Named(Scaled):
        def predict(self, inputs: Any) -> dict[str, Any]:
            names.append(threading.current_thread().name)
            return super().predict(inputs)

    run_batcher(Named(), lambda batcher: batcher.predict(rows(1), FAR))
    assert names == ["model_0"]


def test_idle_batcher_computes_later_requests() -> None:
    model = Scaled()

    async def play(batcher: Batcher) -> list[Any]:
        return [await batcher.predict(rows(1, value), FAR) for value in (1.0, 2.0, 3.0)]

    answers = run_batcher(model, play)
    assert model.batches == [1, 1, 1] and [answer["y"][0, 0] for answer in answers] == [2.0, 4.0, 6.0]


def test_batch_whose_requests_were_all_cancelled_is_not_computed() -> None:
    model, counts = Scaled(), list[int]()

    async def leave(batcher: Batcher) -> Any:
        model.gate.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        cancelled_request = asyncio.create_task(batcher.predict(rows(2), FAR))
        while not len(batcher):
            await asyncio.sleep(0)
        cancelled_request.cancel()
        model.gate.set()
        await first
        return await batcher.predict(rows(3), FAR)

    assert len(run_batcher(model, leave, on_batch=counts.append)["y"]) == 3
    assert counts == model.batches == [1, 3]


def test_request_cancelled_during_its_batch_does_not_affect_the_others() -> None:
    model = Scaled()

    def hold(count: int) -> None:
        """Hold up the batch of all three, which begins now."""
        if count == 6:
            model.entered.clear()
            model.gate.clear()

    async def leave(batcher: Batcher) -> list[Any]:
        model.gate.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        before, cancelled_request, behind = (asyncio.create_task(batcher.predict(rows(n), FAR)) for n in (1, 2, 3))
        while len(batcher) < 3:
            await asyncio.sleep(0)
        model.gate.set()
        await first
        await asyncio.to_thread(model.entered.wait, 30)
        cancelled_request.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        return [await before, await behind]

    answers = run_batcher(model, leave, on_batch=hold)
    assert model.batches == [1, 6] and [len(answer["y"]) for answer in answers] == [1, 3]


def test_deadline_timer_of_an_answered_request_is_cancelled() -> None:
    """A timer that stayed would hold each request's arrays until its deadline."""
    model = Scaled()

    async def play(batcher: Batcher) -> int:
        await batcher.predict(rows(1), FAR)
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(timer.when() == FAR and not timer.cancelled() for timer in timers)

    assert run_batcher(model, play) == 0
