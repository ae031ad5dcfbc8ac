"""Hooks in the optimizers of Keras 3 and tf_keras that reduce gradients through a strategy over hopsml's group.

An optimizer's number of iterations is that of its updates: a step that applies nothing, or whose gradients wait for
others, does not count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.training.tensorflow import groups, state_variables
from hopsml.training.tensorflow.import_hook import after_import
from hopsml.training.tensorflow.keras import group_state

if TYPE_CHECKING:
    from hopsml.cluster.shared.spec import GradientSettings
    from hopsml.training.tensorflow.distribution.gradient_exchange import GradientExchange

_installed = False


class _Thread(threading.local):
    """State of one thread of this process."""

    reduced = False  # True while the gradients given to an optimizer are the group's already


_thread = _Thread()


def install_gradient_hooks() -> None:
    """Patch the optimizers of both Keras versions to use the strategy's exchange, as soon as they are imported."""
    global _installed
    if _installed:
        return
    _installed = True
    after_import("keras.src.backend.tensorflow.optimizer", _install_keras3)
    after_import("keras.src.callbacks.callback_list", _finish_after_fit)
    after_import("tf_keras.src.optimizers.utils", _install_tf_keras_reduction)
    after_import("tf_keras.src.optimizers.optimizer", lambda module: _install_tf_keras(module.Optimizer))
    after_import("tf_keras.src.optimizers.legacy.optimizer_v2", lambda module: _install_tf_keras(module.OptimizerV2))
    after_import("tf_keras.src.callbacks", _finish_after_fit)


def exchange_by_strategy(strategy: Any, settings: GradientSettings) -> None:
    """Reduce optimizers' gradients under one of TensorFlow's strategies by these settings, with its own collectives."""
    from hopsml.training.tensorflow.distribution import gradient_exchange

    install_gradient_hooks()
    strategy.extended.gradient_exchange = gradient_exchange.GradientExchange(
        settings, changes=False, make_transfers=gradient_exchange.transfers_of_strategy
    )


def finish_updates(*optimizers: Any) -> None:
    """Apply withheld gradients of ``double_buffering`` and ``accumulate`` after the last step.

    All workers call it after a user's own loop; ``fit`` calls it itself, and without these settings it does nothing.
    If fewer steps than ``accumulate`` have been accumulated, their mean is applied.

    Args:
        *optimizers: optimizers of Keras or tf_keras, or models that were compiled with one.
    """
    strategy = groups.latest_strategy()
    exchange = _of_strategy(strategy)
    if exchange is None or not exchange.withholds_gradients:
        return
    for given in optimizers:
        optimizer = getattr(given, "optimizer", None) or given
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if exchange.has_ever_exchanged(optimizer):
            strategy.run(_finish, args=(exchange, optimizer))


def drop_withheld_gradients() -> None:
    """Drop withheld gradients and compression remainders of this process's optimizers, after a discarded batch."""
    exchange = _of_strategy(groups.latest_strategy())
    if exchange is not None:
        exchange.reset()


def _finish(exchange: GradientExchange, optimizer: Any) -> None:
    """Apply an optimizer's withheld gradients within a replica."""
    with_keras3 = hasattr(optimizer, "_backend_apply_gradients")

    def apply(gradients: list[Any], of: Sequence[Any]) -> None:
        with _already_reduced():
            if not with_keras3:
                optimizer.apply_gradients(list(zip(gradients, of, strict=True)))
                return
            optimizer._backend_apply_gradients(gradients, of)
            for variable in optimizer._trainable_variables:
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable))
            optimizer._iterations.assign_add(1)

    exchange.apply_withheld(optimizer, apply)


def _of_strategy(strategy: Any) -> GradientExchange | None:
    """Return the gradient exchange of a strategy, if it has one."""
    found: GradientExchange | None = getattr(getattr(strategy, "extended", None), "gradient_exchange", None)
    return found


def _in_force() -> GradientExchange | None:
    """Return the exchange of the strategy whose step this is; None outside, and for gradients already reduced."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    return None if replica is None or _thread.reduced else _of_strategy(replica.strategy)


@contextmanager
def _already_reduced() -> Iterator[None]:
    """Mark gradients given to optimizers inside the block as reduced."""
    before, _thread.reduced = _thread.reduced, True
    try:
        yield
    finally:
        _thread.reduced = before


def _finish_after_fit(module: ModuleType) -> None:
    """Patch a callback list to apply withheld gradients before callbacks see the trained model."""
    kind = module.CallbackList
    original = kind.on_train_end

    def on_train_end(self: Any, logs: Any = None) -> None:
        model = getattr(self, "_model", None) or getattr(self, "model", None)
        if getattr(model, "optimizer", None) is not None:
            finish_updates(model)
        original(self, logs)

    kind.on_train_end = on_train_end


def _install_keras3(module: ModuleType) -> None:
    """Patch the optimizers of Keras 3."""
    optimizer = module.TFOptimizer
    reduce, apply = optimizer._all_reduce_sum_gradients, optimizer._backend_apply_gradients

    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        exchange = _in_force()
        if exchange is not None:
            return exchange.reduce(list(grads_and_vars))
        return list(grads_and_vars) if _thread.reduced else reduce(self, grads_and_vars)

    def apply_gradients(self: Any, gradients: Any, trainable_variables: Any) -> None:
        exchange = _in_force()
        if exchange is None or not exchange.withholds_gradients:
            apply(self, gradients, trainable_variables)
            return
        if self.gradient_accumulation_steps:
            raise ArgumentError(
                f"gradient_accumulation_steps={self.gradient_accumulation_steps} of the optimizer with "
                f"{exchange.settings.description} of the strategy: leave it out, and give accumulate= to strategy() or the "
                "run"
            )

        def apply_reduced(reduced: list[Any]) -> None:
            with _already_reduced():
                apply(self, reduced, trainable_variables)

        variables = [group_state.tensorflow_variable(variable) for variable in trainable_variables]
        # Keras counts the step after this call.
        exchange.step(self, list(gradients), variables, apply_reduced, lambda: self._iterations.assign_sub(1))

    finalize = optimizer.finalize_variable_values

    def finalize_variable_values(self: Any, var_list: Any) -> None:
        finish_updates(self)  # withheld gradients belong into the averages that the model gets now
        finalize(self, var_list)

    optimizer.finalize_variable_values = finalize_variable_values
    optimizer._all_reduce_sum_gradients = all_reduce_sum_gradients
    optimizer._backend_apply_gradients = apply_gradients


def _install_tf_keras_reduction(module: ModuleType) -> None:
    """Patch the function by which tf_keras reduces gradients."""
    original = module.all_reduce_sum_gradients

    def all_reduce_sum_gradients(grads_and_vars: Any) -> Any:
        exchange = _in_force()
        if exchange is None:
            return original(grads_and_vars)
        if exchange.withholds_gradients:
            raise ArgumentError(
                f"{exchange.settings.description} with gradients that are reduced before the optimizer gets them, as by "
                "tf_keras's LossScaleOptimizer: it cannot hold them back; leave double_buffering and accumulate out, or use "
                "Keras 3"
            )
        return exchange.reduce(list(grads_and_vars))

    module.all_reduce_sum_gradients = all_reduce_sum_gradients  # type: ignore[attr-defined]


def _install_tf_keras(optimizer: Any) -> None:
    """Patch an optimizer class of tf_keras; both generations have ``experimental_aggregate_gradients``."""
    original = optimizer.apply_gradients

    def apply_gradients(self: Any, grads_and_vars: Any, name: Any = None, **options: Any) -> Any:
        exchange = _in_force()
        reduces = options.get("experimental_aggregate_gradients", not options.get("skip_gradients_aggregation", False))
        pairs = list(grads_and_vars)
        known = [pair for pair in pairs if pair[0] is not None]
        if _thread.reduced:
            return original(self, pairs, name, experimental_aggregate_gradients=False)
        if exchange is None or not exchange.withholds_gradients or not reduces or not known:
            return original(self, pairs, name, **options)
        gradients, variables = zip(*known, strict=True)

        def apply_reduced(reduced: list[Any]) -> None:
            with _already_reduced():
                original(self, list(zip(reduced, variables, strict=True)), name, experimental_aggregate_gradients=False)

        state_variables.create_optimizer_variables(
            self, variables
        )  # variables must not be created within the branch of a condition
        exchange.step(self, gradients, variables, apply_reduced, lambda: None)
        return self.iterations

    optimizer.apply_gradients = apply_gradients
