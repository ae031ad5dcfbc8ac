"""Measurements for the choice of collectives: a training function's gradients, and the time to reduce gradients like them.

hopsml runs ``measure_candidates`` like any other training function, so it measures under the conditions of the training:
on the same slots, with strategies created in the same way. TensorFlow's collectives and hopsml's are both active in each
worker.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from msgspec import structs

from hopsml.cluster.shared.spec import Communication
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.import_hook import after_import
from hopsml.tuning.choice import WIRES, Candidate, Gradient

FEWEST = 2  # a single one may be that of a gradient penalty


class _Seen(BaseException):
    """Exception that leaves the user's function; as a BaseException it is not handled there as an error."""

    def __init__(self, gradients: list[Gradient]) -> None:
        super().__init__()
        self.gradients = gradients


def capture_first_gradients(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Gradient]:
    """Return the gradients that ``function(**arguments)`` computes first; none if it ends without any."""
    after_import("tensorflow", _watch)
    try:
        function(**arguments)
    except _Seen as seen:
        return seen.gradients
    return []


def _watch(tensorflow: ModuleType) -> None:
    """Patch TensorFlow's gradient tape to raise ``_Seen``."""
    original = tensorflow.GradientTape.gradient

    def gradient(tape: Any, *arguments: Any, **named: Any) -> Any:
        found = original(tape, *arguments, **named)
        gradients = dense_gradients(found)
        if len(gradients) >= FEWEST:
            raise _Seen(gradients)
        return found

    tensorflow.GradientTape.gradient = gradient


def dense_gradients(found: Any) -> list[Gradient]:
    """Return shape and type of the dense gradients, which are reduced element by element.

    Gradients of embeddings are gathered instead.
    """
    import tensorflow as tf

    return [
        (tuple(int(length) for length in value.shape), str(value.dtype.name))
        for value in tf.nest.flatten(found)
        if isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    ]


Step = Callable[[], float]
MOST_STEPS = 100  # of one measurement


def measure_candidates(
    gradients: Sequence[Gradient], candidates: Sequence[Candidate], rounds: int, turn_s: float
) -> tuple[str, dict[str, list[float]]]:
    """Return the default collectives of a run that names none, and the step times by candidate.

    A step time is the median of one round in milliseconds, that of the slowest worker.

    Args:
        gradients: shape and type of each.
        candidates: the ways to reduce.
        rounds: measurements of each candidate, in another order every time.
        turn_s: approximate duration of the slowest candidate's measurement, in seconds.
    """
    from hopsml.training import collective
    from hopsml.training.tensorflow.distribution import strategy as strategies

    strategy = strategies.strategy(implementation="tensorflow")
    group, context = collective.group(), current()
    if group is None or context is None:
        raise ArgumentError("one worker reduces no gradients, so there is nothing to tune; use at least two workers")
    group.make_default()
    steps = {one.name: reduction_step(strategy, one, gradients) for one in candidates}
    slowest = max(_warm(step) for step in steps.values())
    count = max(1, min(MOST_STEPS, int(turn_s / float(collective.all_reduce(slowest, "max")))))
    names = list(steps)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(_turn_ms(steps[name], count))
    # The slowest worker determines the group's time.
    slowest_of = collective.all_reduce([taken[name] for name in names], "max")
    unasked = replace(context, spec=structs.replace(context.spec, communication=Communication()))
    default = strategies.choose_collectives(unasked, "auto", ()).implementation
    return default, {name: [float(value) for value in values] for name, values in zip(names, slowest_of, strict=True)}


def _warm(step: Step) -> float:
    """Return the seconds of a step that was traced and has run before."""
    step(), step()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _turn_ms(step: Step, count: int) -> float:
    """Return the median duration of a step in milliseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def reduction_step(strategy: Any, candidate: Candidate, gradients: Sequence[Gradient]) -> Step:
    """Return a step that creates gradients of these sizes and reduces them by the candidate; traced at once.

    Args:
        strategy: TensorFlow's strategy; hopsml's collectives reduce without it.
        candidate: the way to reduce.
        gradients: shape and type of each.
    """
    import tensorflow as tf

    from hopsml.training.tensorflow.distribution import collective_ops

    def make(filling: Any) -> list[Any]:
        return [tf.cast(tf.fill(shape, filling), kind) for shape, kind in gradients]

    def by_hopsml(filling: Any) -> list[Any]:
        wire: Any = WIRES.get(candidate.compression, "same")
        return collective_ops.all_reduce(make(filling), wire=wire, label="a tuning step")

    def by_tensorflow(filling: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", make(filling))

    @tf.function(autograph=False)
    def step(filling: Any) -> Any:
        ours = candidate.implementation == "hopsml"
        reduced = by_hopsml(filling) if ours else strategy.run(by_tensorflow, args=(filling,))
        return tf.add_n([tf.cast(tf.reshape(value, [-1])[0], tf.float32) for value in reduced])

    filling = tf.constant(0.5)
    if candidate.implementation == "tensorflow":
        from hopsml.training.tensorflow.distribution import merging

        merging.set_merging(strategy, candidate.merge_scope, candidate.scoped_allocator)
    step.get_concrete_function(filling)  # traced while this candidate's reduction is installed in the strategy
    return lambda: float(step(filling))
