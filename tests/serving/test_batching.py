"""What comes while a batch computes is the next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hopsml.serving.batching import Batcher, DeadlinePassed, QueueFull, Waiting, next_batch
from tests.serving.models import Doubling, Scaled

pytestmark = pytest.mark.fast
FAR = 1e12  # on the loop's clock


def rows(count: int, value: float = 1.0) -> Any:
    return {"x": np.full((count, 4), value, np.float32)}


def played(model: Scaled, play: Callable[[Batcher], Awaitable[Any]], **limits: int) -> Any:
    async def run() -> Any:
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(model, executor, **{"most_rows": 8, "most_waiting": 100, **limits})
            return await play(batcher)

    return asyncio.run(run())


async def behind_a_held_one(batcher: Batcher, model: Scaled, *requests: Any) -> list[Any]:
    """One request computes, held up, while the others come; then it goes on. The answers of the others, in order."""
    model.gate.clear()
    first = asyncio.create_task(batcher.predict(rows(1), FAR))
    await asyncio.to_thread(model.entered.wait, 30)
    others = [asyncio.create_task(batcher.predict(one, FAR)) for one in requests]
    while len(batcher) < len(requests):
        await asyncio.sleep(0)
    model.gate.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


def test_what_waits_is_computed_together_and_each_gets_its_own_rows() -> None:
    model = Scaled()
    answers = played(model, lambda batcher: behind_a_held_one(batcher, model, rows(2, 1), rows(3, 2), rows(1, 3)))
    assert model.batches == [1, 6]
    assert [answer["y"].tolist() for answer in answers] == [[[2.0] * 4] * 2, [[4.0] * 4] * 3, [[6.0] * 4]]


def test_a_batch_has_its_most_rows_and_one_request_may_have_more() -> None:
    model = Scaled()
    answers = played(model, lambda batcher: behind_a_held_one(batcher, model, rows(5), rows(4), rows(20), rows(1)))
    assert model.batches == [1, 5, 4, 20, 1]
    assert [len(answer["y"]) for answer in answers] == [5, 4, 20, 1]


def test_what_one_request_breaks_is_answered_to_it_alone() -> None:
    model = Scaled()
    good, bad, also = played(model, lambda batcher: behind_a_held_one(batcher, model, rows(1), rows(1, -1), rows(2)))
    assert isinstance(bad, ValueError)
    assert good["y"].tolist() == [[2.0] * 4] and len(also["y"]) == 2


def test_answers_that_are_not_one_for_each_row_are_nobodys() -> None:
    model = Doubling()
    with pytest.raises(ValueError, match=r"output 'y' has the shape \(2, 4\) for 1 row$"):
        played(model, lambda batcher: batcher.predict(rows(1), FAR))


def test_a_model_of_a_fixed_number_of_rows_is_called_for_each_request() -> None:
    model = Scaled(free=False)
    answers = played(model, lambda batcher: behind_a_held_one(batcher, model, rows(2), rows(2)))
    assert model.batches == [1, 2, 2] and [len(answer["y"]) for answer in answers] == [2, 2]


def test_rows_of_other_shapes_are_not_joined() -> None:
    model = Scaled()
    longer = {"x": np.ones((1, 5), np.float32)}
    answers = played(model, lambda batcher: behind_a_held_one(batcher, model, rows(1), longer, rows(1)))
    assert model.batches == [1, 1, 1, 1] and answers[1]["y"].shape == (1, 5)


def test_too_late_too_many() -> None:
    model = Scaled()

    async def late(batcher: Batcher) -> None:
        """One that computes and one that waits, both for longer than they may."""
        model.gate.clear()
        for _ in range(2):
            with pytest.raises(DeadlinePassed):
                await batcher.predict(rows(1), asyncio.get_running_loop().time() + 0.01)
        model.gate.set()
        await batcher.predict(rows(1), FAR)

    played(model, late)
    assert model.batches == [1, 1]

    async def fill(batcher: Batcher) -> None:
        model.gate.clear()
        model.entered.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        second = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 requests wait already"):
            await batcher.predict(rows(1), FAR)
        model.gate.set()
        await asyncio.gather(first, second)

    played(model, fill, most_waiting=1)


def test_a_request_that_nobody_waits_for_any_more_is_not_computed() -> None:
    model = Scaled()

    async def leave(batcher: Batcher) -> None:
        model.gate.clear()
        first = asyncio.create_task(batcher.predict(rows(1), FAR))
        await asyncio.to_thread(model.entered.wait, 30)
        gone, stays = (asyncio.create_task(batcher.predict(rows(n), FAR)) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        model.gate.set()
        await asyncio.gather(first, stays)

    played(model, leave)
    assert model.batches == [1, 3]


def test_only_rows_of_the_same_shape_in_every_input_share_a_batch() -> None:
    def waiting(*shapes: tuple[int, ...]) -> Waiting:
        loop = asyncio.new_event_loop()
        try:
            inputs = {f"x{number}": np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}
            return Waiting(inputs, shapes[0][0], loop.create_future())
        finally:
            loop.close()

    same, wider, deeper = ((2, 3, 4), (2, 5)), ((2, 3, 9), (2, 5)), ((2, 3, 4), (2, 6))
    for other in (wider, deeper):
        queue = deque([waiting(*same), waiting(*same), waiting(*other), waiting(*same)])
        assert [len(next_batch(queue, 100)) for _ in range(4)] == [2, 1, 1, 0]
    rows_alone = deque([waiting((1, 3, 4), (1, 5)), waiting((7, 3, 4), (7, 5))])  # the number of rows may differ
    assert len(next_batch(rows_alone, 8)) == 2
    over = deque([waiting((1, 3)), waiting((8, 3))])
    assert [len(next_batch(over, 8)) for _ in range(2)] == [1, 1]


def test_the_length_of_a_batcher_is_the_number_of_requests_that_wait() -> None:
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

    assert played(model, play) == 3


def test_errors_of_requests_say_what_happened() -> None:
    model = Scaled()

    async def late(batcher: Batcher) -> None:
        model.gate.clear()
        with pytest.raises(DeadlinePassed, match=r"^the request was not computed within its deadline$"):
            await batcher.predict(rows(1), asyncio.get_running_loop().time() + 0.01)
        model.gate.set()

    played(model, late)
    with pytest.raises(ValueError, match=r"for 3 rows$"):
        played(Doubling(), lambda batcher: batcher.predict(rows(3), FAR))
