"""Distribution strategy of a worker, with its settings (``hopsml.tensorflow.strategy()``), and mixed precision."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import (
    ONLY_HOPSMLS,
    Compression,
    GradientReduction,
    GradientSettings,
    section_from_options,
)
from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.training import collective
from hopsml.training.tensorflow import mirrored, parameter_servers, setup
from hopsml.training.tensorflow.distribution.merging import (
    merge_scope_of_run,
    scoped_allocator_of_run,
    set_merging,
)

Implementation = Literal["auto", "tensorflow", "ring", "nccl", "hopsml"]
LOST = "steps take about twice as long"


class ChosenCollectives(NamedTuple):
    """Chosen collectives and the reason, worded to follow "because"; it is empty outside of a run."""

    implementation: Implementation
    why: str


def choose_collectives(
    context: WorkerContext | None, asked: Implementation, given: Sequence[str], gradients: Sequence[str] = ()
) -> ChosenCollectives:
    """Return the collectives for this worker; imports TensorFlow if the choice depends on its devices.

    Args:
        context: context of the worker; None outside of a run.
        asked: the strategy's argument.
        given: names of the strategy's arguments that are settings of TensorFlow's collectives.
        gradients: names of those that apply to gradients; alone, they choose hopsml's collective.
    """
    if asked != "auto":
        return ChosenCollectives(asked, "strategy() names them")
    if given:
        return ChosenCollectives("tensorflow", f"strategy() was given {' and '.join(given)}")
    if gradients:
        return ChosenCollectives("hopsml", f"strategy() was given {' and '.join(gradients)}")
    if context is None:
        return ChosenCollectives("tensorflow", "")
    run = context.spec.communication
    if run.implementation != "auto":
        return ChosenCollectives(run.implementation, "the run names them")
    if run.tensorflow_only:
        return ChosenCollectives("tensorflow", f"the run was given {' and '.join(run.tensorflow_only)}")
    if context.spec.honour_environment:
        return ChosenCollectives("tensorflow", "honour_environment=True keeps a TF_CONFIG")
    if context.collective is None:
        return ChosenCollectives("tensorflow", f"the {context.role} does not train in hopsml's collective")
    if context.world_size == 1:
        return ChosenCollectives("tensorflow", "there is one worker")
    if run.gradients.changed_names:
        return ChosenCollectives("hopsml", f"the run was given {' and '.join(run.gradients.changed_names)}")
    if run.encryption:
        return ChosenCollectives("hopsml", "it encrypts")
    return _by_devices()


def _by_devices() -> ChosenCollectives:
    """Choose hopsml's collectives for workers without GPUs, if its library for TensorFlow is present."""
    import tensorflow as tf

    if tf.config.get_visible_devices("GPU"):
        return ChosenCollectives("tensorflow", "the workers have GPUs")
    from hopsml.collective import library
    from hopsml.training.tensorflow.distribution import collective_ops

    try:
        library.load()
        collective_ops.load_operations()
    except (HopsmlError, tf.errors.OpError) as error:
        print(f"hopsml: gradients are reduced by TensorFlow's collectives, not by hopsml's: {LOST}. {error}")
        return ChosenCollectives("tensorflow", f"hopsml's library for TensorFlow {tf.__version__} is missing")
    return ChosenCollectives("hopsml", "the workers have no GPUs")


def strategy(
    merge_scope: int | str | None = None,
    scoped_allocator: bool | None = None,
    ring_order: Sequence[int] | None = None,
    implementation: Implementation = "auto",
    timeout_s: float | None = None,
    heartbeat_timeout_s: float = setup.DEFAULT_HEARTBEAT_TIMEOUT_S,
    compression: Compression | None = None,
    topk: float | None = None,
    powersgd_rank: int | None = None,
    double_buffering: bool = False,
    accumulate: int = 1,
    reduction: GradientReduction = "sum",
) -> Any:
    """Return the distribution strategy for this worker, by default a ``tf.distribute.MultiWorkerMirroredStrategy``.

    Its class is CollectiveAllReduceStrategy. Build it before any other TensorFlow operation, once for each process.
    Without ``TF_CONFIG`` it is a strategy of one worker, so the same code runs on a laptop. On the evaluator of
    ``evaluator=True``, which is not in the group, it is TensorFlow's default strategy; on the chief of
    ``experiment.parameter_server`` a ``ParameterServerStrategyV2``, in ``experiment.mirrored`` a
    ``MirroredStrategy``.

    Args:
        merge_scope: gradients that one collective carries: 1 = none merged, n, or "all". Default: the run's, else 32.
        scoped_allocator: True = TensorFlow's scoped allocator merges them inside the optimised graph; False = they
            are joined by concat and split. Default: the run's, else True; on GPUs False unless requested, because
            only the other path preserves the order of NCCL launches. Two busy CPU workers, 28 MB in 160 gradients,
            median step: 243 ms either way at 32, 299 (True) and 581 (False) at 1, 311 by TensorFlow's own way, which
            merges all (docs/decisions/2026-11-20-merge-path.md).
        ring_order: local device indices in ring order, each once. Has an effect only if a worker has several devices:
            with one device for each worker the ring is the order of the workers in ``TF_CONFIG``.
        implementation: "hopsml": hopsml's own collective, one device for each worker, without TensorFlow's server; it
            merges everything, and has neither a merge scope nor a ring order. "tensorflow": TensorFlow's collectives;
            "ring", "nccl": this one of them. "auto": the run's setting; else hopsml's if several workers train
            without GPUs and no setting of TensorFlow's collectives is given, here or to the run, and TensorFlow's
            otherwise.
        timeout_s: seconds after which a collective that a peer never joins fails with DeadlineExceededError; None =
            never (a lost peer is still detected by its heartbeat). With TensorFlow's collectives the process can end
            by SIGABRT instead: the timer that aborts a collective races with the collective's own threads (seen once
            with TensorFlow 2.21: "Mutex corrupt").
        heartbeat_timeout_s: seconds of silence after which a peer counts as lost and TensorFlow's collectives fail;
            hopsml's own have a separate limit.
        compression: compression of the gradients that optimizers reduce, with hopsml's collective, which it selects,
            like the arguments below, unless another is named; without any of them the run's are used. "fp16", "bf16":
            half the bytes between machines, summed in float32; finite values do not overflow. With TensorFlow's
            collectives gradients are summed in these types: fp16 overflows at 65504. "topk": only the largest entries
            of each gradient. "powersgd": two low-rank matrices for each. What the last two leave out is added to the
            next step's gradient. TensorFlow's collectives support only "fp16" and "bf16".
        topk: fraction of the entries; 0.01.
        powersgd_rank: rank, the number of columns of the matrices; 2.
        double_buffering: gradients are reduced during the next step, which applies them: each is applied one step
            later, the first step applies nothing, and the last one's are applied by ``fit`` at its end, or by
            ``hopsml.tensorflow.finish_updates(optimizer)``. Needs memory for one more set of gradients.
        accumulate: number of steps whose gradients are added up, then reduced and applied as their mean, like a batch
            larger by this factor.
        reduction: "adasum": an adaptive sum instead of the sum; needs memory for a set of gradients of every worker.

    Raises:
        ArgumentError: a value is not valid.
        StartTimeout: the leader does not appear.
        CollectiveTimeout: a member of hopsml's collective does not appear.
        UnsupportedVersion: TensorFlow or Keras is not supported.
    """
    context = current()
    _check_times(timeout_s, heartbeat_timeout_s)
    if implementation not in get_args(Implementation):
        raise ArgumentError(
            f"implementation={implementation!r}: it must be one of {', '.join(map(repr, get_args(Implementation)))}"
        )
    tensorflows = {"merge_scope": merge_scope, "scoped_allocator": scoped_allocator, "ring_order": ring_order}
    given = [name for name, value in tensorflows.items() if value is not None]
    gradients = section_from_options(
        GradientSettings,
        SimpleNamespace(
            compression=compression,
            topk=topk,
            powersgd_rank=powersgd_rank,
            double_buffering=double_buffering,
            accumulate=accumulate,
            reduction=reduction,
        ),
    )
    if gradients.only_hopsmls and (given or implementation not in ("auto", "hopsml")):
        other = " and ".join(given) or f"implementation={implementation!r}"
        raise ArgumentError(f"{' and '.join(gradients.only_hopsmls)} with {other}: {ONLY_HOPSMLS}")
    if parameter_servers.is_chief(context) or mirrored.is_mirrored_run(context):
        setup.prepare(context)
        own = [*given, *gradients.changed_names, *(["implementation"] if implementation != "auto" else [])]
        return (mirrored if mirrored.is_mirrored_run(context) else parameter_servers).strategy(own)
    implementation, why = choose_collectives(context, implementation, given, gradients.changed_names)
    collective_stats.record_choice_reason(why)
    if context is not None and context.world_size == 1:
        _say_without_effect(gradients if gradients.changed_names else _of_run(context))
    gradients = gradients if gradients.changed_names else _of_run(context)
    if implementation == "hopsml":
        if given:
            raise ArgumentError(
                f"implementation='hopsml' with {' and '.join(given)}: a setting of TensorFlow's collectives; leave it out, "
                "or choose implementation='tensorflow'"
            )
        return _own(context, timeout_s, gradients)
    scope = checks.merge_scope("merge_scope", merge_scope) if merge_scope is not None else merge_scope_of_run(context)
    if scoped_allocator is None:
        scoped_allocator = scoped_allocator_of_run(context)

    import tensorflow as tf

    setup.prepare(context)
    if _evaluates(context):
        return tf.distribute.get_strategy()
    setup.set_heartbeat(_cluster_of_environment(), heartbeat_timeout_s)
    devices = len(tf.config.get_visible_devices("GPU"))
    order = ring_order_text(ring_order, context.ring_order if context else "", max(devices, 1))
    _set_ring_order(order)
    built = _build(
        tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation(
                "AUTO" if implementation == "tensorflow" else implementation.upper()
            ),
            timeout_seconds=timeout_s,
        )
    )
    set_merging(built, scope, scoped_allocator)
    if gradients.changed_names and built.extended._num_workers > 1:
        if gradients.only_hopsmls:
            names = " and ".join(gradients.only_hopsmls)
            raise ArgumentError(f"{names} of the run with TensorFlow's collectives, since {why}: {ONLY_HOPSMLS}")
        from hopsml.training.tensorflow.distribution import gradient_hooks

        gradient_hooks.exchange_by_strategy(built, gradients)
    return built


def _evaluates(context: WorkerContext | None) -> bool:
    """Return True on the evaluator, and print that it is not in the group."""
    if context is None or context.role != "evaluator":
        return False
    print("hopsml: this worker is the evaluator, which is not in the group: it gets TensorFlow's default strategy")
    return True


def _of_run(context: WorkerContext | None) -> GradientSettings:
    """Return the run's settings for gradients."""
    return GradientSettings() if context is None else context.spec.communication.gradients


def _own(context: WorkerContext | None, timeout_s: float | None, gradients: GradientSettings) -> Any:
    """Return the strategy over hopsml's collective; TensorFlow's default strategy for a worker in no group."""
    import tensorflow as tf

    setup.prepare(context)
    group = None if _evaluates(context) else collective.group(timeout_s or 0.0)
    if group is None:
        if context is None:
            _say_without_effect(gradients)
        return tf.distribute.get_strategy()
    group.make_default()
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    return CollectiveStrategy(gradients)


def _say_without_effect(gradients: GradientSettings) -> None:
    """Print that settings for gradients have no effect with one worker, whose every step updates the model."""
    if gradients.changed_names:
        print(
            "hopsml: there is one worker, whose gradients are not reduced: no effect of "
            f"{' and '.join(gradients.changed_names)}"
        )


def enable_mixed_precision() -> None:
    """Make Keras compute in float16 on GPUs, else in bfloat16, in this process; variables stay float32."""
    import tensorflow as tf

    kind = "mixed_float16" if tf.config.get_visible_devices("GPU") else "mixed_bfloat16"
    tf.keras.mixed_precision.set_global_policy(kind)


def _build(options: Any) -> Any:
    """Build the strategy, and add a remedy to TensorFlow's error for a late one."""
    import tensorflow as tf

    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ArgumentError(
            "strategy() came after another TensorFlow operation of this process, which joins a group only "
            "before its first one: call strategy() before any tensor, dataset or model is made"
        ) from error


def _check_times(timeout_s: float | None, heartbeat_timeout_s: float) -> None:
    """Raise ArgumentError for invalid time limits."""
    if timeout_s is not None and not timeout_s > 0:
        raise ArgumentError(f"timeout_s={timeout_s!r}: it must be a positive number of seconds, or None")
    if not heartbeat_timeout_s >= 1:
        raise ArgumentError(
            f"heartbeat_timeout_s={heartbeat_timeout_s!r}: it must be 1 second or more, since with a shorter one a "
            "busy worker counts as lost"
        )


def _cluster_of_environment() -> dict[str, Any]:
    """Return the cluster in ``TF_CONFIG``."""
    return dict(json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}))


def ring_order_text(asked: Sequence[int] | None, of_run: str, devices: int) -> str:
    """Return ``collective_ring_order`` for this worker: device indices in ring order, "" for TensorFlow's own order.

    Args:
        asked: the strategy's argument. TensorFlow silently ignores an order that does not name each device once, so
            such an order is refused here.
        of_run: the run's order, which may number the host's devices rather than the worker's: the order is preserved
            and the numbers are translated.
        devices: number of the worker's devices.

    Raises:
        ArgumentError: ``asked`` does not name each device once.
    """
    if asked is not None:
        if sorted(asked) != list(range(devices)):
            raise ArgumentError(
                f"ring_order={list(asked)}: this worker has {devices} device(s), "
                f"so it must hold each of 0 to {devices - 1} once"
            )
        return ",".join(map(str, asked))
    numbers = [int(part) for part in of_run.split(",") if part.strip()]
    if len(set(numbers)) != devices or len(numbers) != devices:
        return ""
    rank_of = {number: rank for rank, number in enumerate(sorted(numbers))}
    return ",".join(str(rank_of[number]) for number in numbers)


def _set_ring_order(order: str) -> None:
    """Set the ring order with which every server of this process starts, for which TensorFlow has no public function."""
    if not order:
        return
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context as eager_context

    context = eager_context.context()
    if context._config is None:
        context._config = config_pb2.ConfigProto()
    context._config.gpu_options.experimental.collective_ring_order = order
