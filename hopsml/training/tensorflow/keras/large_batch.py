"""Optimizers of Keras 3 for large batches (LARS, LAMB, the RMSprop warm-up, a variant of momentum), and a plan's optimizer.

The velocity of that variant does not include the rate. Update rules are those of
``hopsml/training/large_batch/rules.py``. A variable whose handle is accessible is updated by TensorFlow's fused
operations, which read and write memory once; others, those of parameter servers, by plain ones. Norms are those of
the gradient that the update gets: reduced over the group, after clipping. They are computed in float32 if variables
have fewer bits. Sparse gradients are made dense, because a norm of some rows is not that of the variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from hopsml.errors import ArgumentError
from hopsml.training.large_batch import rules, schedules
from hopsml.training.large_batch.recipe import BatchPlan
from hopsml.training.large_batch.schedules import check_number

SPACE = SimpleNamespace(sqrt=tf.sqrt, sum=tf.reduce_sum, where=tf.where)
# TensorFlow's name for a resource that is accessible only by its handle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_register = keras.saving.register_keras_serializable(package="hopsml")


class _Layerwise(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Base class of the optimizers: coupled weight decay, and variables that have neither decay nor ratio."""

    slots: tuple[str, ...] = ()

    def __init__(self, learning_rate: Any, weight_decay: float, exclude: Sequence[str], **others: Any) -> None:
        super().__init__(learning_rate=learning_rate, **others)
        # Not Keras's weight_decay, which lowers the weights separately instead of as part of the update.
        self.decay = check_number("weight_decay", weight_decay, 0)
        self.exclude = tuple(exclude)
        self.fused = True

    def build(self, variables: Any) -> None:
        """Create the optimizer's state variables."""
        if self.built:
            return
        super().build(variables)
        self.kept = {name: self.add_optimizer_variables(variables, name) for name in self.slots}
        self.layerwise = [
            rules.is_layerwise(one.shape)
            and not any(word in (getattr(one, "path", "") or one.name) for word in self.exclude)
            for one in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable with its gradient."""
        index = self._get_variable_index(variable)
        variable = _plain(variable)
        slots = [_plain(self.kept[name][index]) for name in self.slots]
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        rate = tf.cast(learning_rate, variable.dtype)
        if self.fused and _has_handle(variable, *slots):
            self._update_fused(variable, gradient, slots, rate, self.layerwise[index])
        else:
            self._update_plainly(variable, gradient, slots, rate, self.layerwise[index])

    def _update_fused(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, layerwise: bool) -> None:
        """Update a variable by a fused operation; by default the plain one."""
        self._update_plainly(variable, gradient, slots, rate, layerwise)

    def _update_plainly(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, layerwise: bool) -> None:
        """Update a variable by the rule in plain operations."""
        wide = tf.float64 if variable.dtype == tf.float64 else tf.float32
        arrays = [tf.cast(each, wide) for each in (variable, gradient, *slots)]
        for each, value in zip((variable, *slots), self._rule(arrays, tf.cast(rate, wide), layerwise), strict=True):
            each.assign(tf.cast(value, each.dtype))

    def _rule(self, arrays: list[Any], rate: Any, layerwise: bool) -> Any:
        """Return the new values of a variable and its slots."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same optimizer."""
        return {**super().get_config(), "weight_decay": self.decay, "exclude": list(self.exclude)}


@_register
class Momentum(_Layerwise):
    """Gradient descent with momentum whose velocity does not include the rate: v = m v + g + lambda w; w -= rate v.

    A change of the rate needs no momentum correction (arXiv 1706.02677, section 3). Weight decay is part of the
    gradient, as in the paper, and is not applied to variables of fewer than two axes.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: from 0 to below 1.
        weight_decay: lambda.
        exclude: parts of the names of further variables without weight decay (and without a ratio).
        absorbs_rate: include the rate in the velocity, as ``keras.optimizers.SGD`` does.
        **others: arguments of ``keras.optimizers.Optimizer``.
    """

    slots = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        exclude: Sequence[str] = (),
        absorbs_rate: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, exclude, **others)
        self.momentum = check_number("momentum", momentum, 0, 1, below=True)
        self.absorbs_rate = bool(absorbs_rate)

    def _factors(self, variable: Any, gradient: Any) -> tuple[Any, Any]:
        """Return the factors of gradient and weight in the velocity."""
        return 1.0, self.decay

    def _update_fused(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, layerwise: bool) -> None:
        """Update a variable by TensorFlow's fused momentum operation."""
        if layerwise:
            of_gradient, of_weight = (tf.cast(each, variable.dtype) for each in self._factors(variable, gradient))
            if self.decay:
                gradient = of_gradient * gradient + of_weight * variable
            else:
                gradient = of_gradient * gradient
        momentum = tf.cast(self.momentum, variable.dtype)
        names = {"var": variable.handle, "accum": slots[0].handle, "lr": rate, "grad": gradient, "momentum": momentum}
        if self.absorbs_rate:
            tf.raw_ops.ResourceApplyKerasMomentum(**names)
        else:
            tf.raw_ops.ResourceApplyMomentum(**names)

    def _rule(self, arrays: list[Any], rate: Any, layerwise: bool) -> Any:
        """Return the new weight and velocity."""
        weight, gradient, velocity = arrays
        sign = -1.0 if self.absorbs_rate else 1.0  # Keras's velocity points downhill
        if layerwise:
            of_gradient, of_weight = self._factors(weight, gradient)
            gradient = of_gradient * gradient + of_weight * weight
        weight, velocity = rules.momentum(weight, gradient, sign * velocity, rate, self.momentum, self.absorbs_rate)
        return weight, sign * velocity

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same optimizer."""
        return {**super().get_config(), "momentum": self.momentum, "absorbs_rate": self.absorbs_rate}


@_register
class LARS(Momentum):
    """Layer-wise adaptive rate scaling: arXiv 1708.03888, algorithm 1.

    Each variable's rate is multiplied by trust * |w| / (|g| + weight_decay * |w| + epsilon), by 1 if a norm is 0 and
    for variables of fewer than two axes (biases, normalisations, scalars), which do not decay either.

    Args:
        learning_rate: as of ``Momentum``.
        momentum: as of ``Momentum``.
        weight_decay: as of ``Momentum``.
        trust: eta of the formula.
        epsilon: added to the denominator.
        exclude: as of ``Momentum``.
        absorbs_rate: as of ``Momentum``.
        **others: arguments of ``keras.optimizers.Optimizer``.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 0.001,
        epsilon: float = 0.0,
        exclude: Sequence[str] = (),
        absorbs_rate: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(learning_rate, momentum, weight_decay, exclude, absorbs_rate, **others)
        self.trust, self.epsilon = check_number("trust", trust, 0, above=True), check_number("epsilon", epsilon, 0)

    def _factors(self, variable: Any, gradient: Any) -> tuple[Any, Any]:
        """Return the factors of gradient and weight, which include the ratio of norms."""
        norms = _norm(variable), _norm(gradient)
        ratio = rules.lars_ratio(*norms, self.trust, self.decay, self.epsilon, SPACE)
        return ratio, ratio * self.decay

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same optimizer."""
        return {**super().get_config(), "trust": self.trust, "epsilon": self.epsilon}


@_register
class LAMB(_Layerwise):
    """Layer-wise adaptive moments: arXiv 1904.00962, algorithm 2, with bias correction.

    u = m^ / (sqrt(v^) + epsilon) + weight_decay * w; w -= rate * |w| / |u| * u; the ratio is 1 if a norm is 0.
    Variables of fewer than two axes have neither ratio nor decay.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the denominator.
        weight_decay: weight decay of the formula.
        exclude: parts of the names of further variables without ratio and decay.
        **others: arguments of ``keras.optimizers.Optimizer``.
    """

    slots = ("momentum", "velocity")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        exclude: Sequence[str] = (),
        **others: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, exclude, **others)
        self.beta_1 = check_number("beta_1", beta_1, 0, 1, below=True)
        self.beta_2 = check_number("beta_2", beta_2, 0, 1, below=True)
        self.epsilon = check_number("epsilon", epsilon, 0)

    def _update_fused(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, layerwise: bool) -> None:
        """Update a variable by TensorFlow's fused operations of Adam and gradient descent."""
        if variable.dtype not in (tf.float32, tf.float64):
            self._update_plainly(variable, gradient, slots, rate, layerwise)
            return
        step = tf.cast(self.iterations + 1, variable.dtype)
        beta1, beta2, one = (tf.constant(value, variable.dtype) for value in (self.beta_1, self.beta_2, 1.0))
        power1, power2 = beta1**step, beta2**step
        adam = {
            "m": slots[0].handle, "v": slots[1].handle, "beta1_power": power1, "beta2_power": power2,
            "beta1": beta1, "beta2": beta2, "epsilon": self.epsilon * tf.sqrt(one - power2), "grad": gradient,
        }  # fmt: skip
        if not layerwise:
            tf.raw_ops.ResourceApplyAdam(var=variable.handle, lr=rate, **adam)
            return
        # Adam's step from -decay * w with a rate of 1 leaves -u in the variable, which lives only as long as this
        # step.
        scratch = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=_ANONYMOUS)
        tf.raw_ops.AssignVariableOp(resource=scratch, value=-self.decay * variable)
        tf.raw_ops.ResourceApplyAdam(var=scratch, lr=one, **adam)
        update = tf.raw_ops.ReadVariableOp(resource=scratch, dtype=variable.dtype)
        ratio = rules.lamb_ratio(_norm(variable), _norm(update), SPACE)
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=-rate * ratio, delta=update)

    def _rule(self, arrays: list[Any], rate: Any, layerwise: bool) -> Any:
        """Return the new weight and moments."""
        weight, gradient, first, second = arrays
        return rules.lamb(
            weight, gradient, first, second, rate, tf.cast(self.iterations + 1, weight.dtype), SPACE,
            beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon, weight_decay=self.decay, layerwise=layerwise,
        )  # fmt: skip

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same optimizer."""
        mine = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **mine}


@_register
class RMSpropWarmup(_Layerwise):
    """Transition from RMSprop to gradient descent with momentum over the first epochs: arXiv 1711.04325, section 2.1.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        steps_per_epoch: number of updates in an epoch.
        momentum: mu1 of the formula.
        rho: mu2 of the formula.
        rms_rate: eta_RMS of the formula.
        epsilon: epsilon of the formula.
        center: epochs after which SGD's share of an update is half.
        period: width of the change, in epochs.
        weight_decay: as of ``Momentum``.
        exclude: as of ``Momentum``.
        **others: arguments of ``keras.optimizers.Optimizer``.
    """

    slots = ("momentum", "velocity")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        steps_per_epoch: int = 1,
        momentum: float = 0.9,
        rho: float = 0.99,
        rms_rate: float = 3e-4,
        epsilon: float = 1e-8,
        center: float = schedules.TRANSITION_CENTER,
        period: float = schedules.TRANSITION_PERIOD,
        weight_decay: float = 0.0,
        exclude: Sequence[str] = (),
        **others: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, exclude, **others)
        self.steps_per_epoch = int(check_number("steps_per_epoch", steps_per_epoch, 1))
        self.momentum = check_number("momentum", momentum, 0, 1, below=True)
        self.rho = check_number("rho", rho, 0, 1, below=True)
        self.rms_rate, self.epsilon = check_number("rms_rate", rms_rate, 0), check_number("epsilon", epsilon, 0)
        self.center, self.period = check_number("center", center, 0), check_number("period", period, 0, above=True)

    def _rule(self, arrays: list[Any], rate: Any, layerwise: bool) -> Any:
        """Return the new weight, velocity and second moment."""
        weight, gradient, velocity, second = arrays
        epoch = tf.cast(self.iterations, tf.float64) / self.steps_per_epoch
        share = tf.cast(schedules.sgd_share(epoch, self.center, self.period, tf), weight.dtype)
        moves = rate > 0  # the rule divides by the rate, which is 0 after the end of a plan: nothing changes there
        new = rules.rmsprop_warmup(
            weight, gradient, velocity, second, tf.where(moves, rate, tf.ones_like(rate)), share, SPACE,
            momentum_factor=self.momentum, rho=self.rho, rms_rate=self.rms_rate, epsilon=self.epsilon,
            weight_decay=self.decay, layerwise=layerwise,
        )  # fmt: skip
        return [tf.where(moves, each, before) for each, before in zip(new, (weight, velocity, second), strict=True)]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same optimizer."""
        names = ("steps_per_epoch", "momentum", "rho", "rms_rate", "epsilon", "center", "period")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _plain(variable: Any) -> Any:
    """Return TensorFlow's own variable; of a distributed one, that of the replica being updated."""
    from tensorflow.python.distribute.values import DistributedVariable

    held = variable.value if isinstance(variable, keras.Variable) else variable
    return held._get() if isinstance(held, DistributedVariable) else held


def _has_handle(*variables: Any) -> bool:
    """Return True for variables of this process, which operations on handles can change."""
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    return all(isinstance(each, BaseResourceVariable) for each in variables)


def _norm(x: Any) -> Any:
    """Return the Euclidean norm, in one pass; in float32 at least."""
    x = tf.convert_to_tensor(x)
    if x.dtype not in (tf.float32, tf.float64):
        x = tf.cast(x, tf.float32)
    return tf.sqrt(2 * tf.nn.l2_loss(x))


_SPACE = SimpleNamespace(cos=tf.cos, exp=tf.exp, minimum=tf.minimum, maximum=tf.maximum, where=tf.where)


@keras.saving.register_keras_serializable(package="hopsml")
class PlanSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning-rate schedule of a batch plan, by the number of updates."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.config = plan
        self.plan = BatchPlan.from_config(plan)

    def __call__(self, step: Any) -> Any:
        """Return the rate of the update ``step``, counted from 0, as float32; it is computed in float64."""
        epoch = tf.cast(step, tf.float64) / self.plan.steps_per_epoch
        return tf.cast(self.plan.learning_rate_at(epoch, _SPACE), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same schedule."""
        return {"plan": self.config}


def plan_optimizer(plan: BatchPlan) -> Any:
    """Return the optimizer of the plan; raise ArgumentError if Keras runs on another backend."""
    if keras.config.backend() != "tensorflow":
        raise ArgumentError(
            f"plan.keras() with Keras on {keras.config.backend()}: these optimizers are of TensorFlow's variables; set "
            "KERAS_BACKEND=tensorflow, or take plan.torch(module)"
        )
    recipe = plan.recipe
    rate, decay = PlanSchedule(plan.as_config()), recipe.weight_decay
    own: dict[str, Any] = {} if recipe.epsilon is None else {"epsilon": recipe.epsilon}
    beta1, beta2 = plan.betas
    absorbs = not recipe.momentum_correction
    if recipe.optimizer == "momentum":
        return Momentum(rate, plan.base_momentum, decay, absorbs_rate=absorbs)
    if recipe.optimizer == "lars":
        return LARS(rate, plan.base_momentum, decay, recipe.trust, absorbs_rate=absorbs, **own)
    if recipe.optimizer == "lamb":
        return LAMB(rate, beta1, beta2, weight_decay=decay, **own)
    if recipe.optimizer == "adam":
        return keras.optimizers.Adam(rate, beta1, beta2, weight_decay=decay or None, **own)
    center, period = plan.transition
    own |= {"center": center, "period": period}
    return RMSpropWarmup(rate, plan.steps_per_epoch, plan.base_momentum, weight_decay=decay, **own)
