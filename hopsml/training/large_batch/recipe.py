"""Hyper-parameters tuned at one batch size, converted to another: single numbers, and whole recipes; pure."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.checks import whole_number
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.large_batch import schedules
from hopsml.training.large_batch.schedules import PlainNumbers, check_choice, check_number

if TYPE_CHECKING:
    import keras
    import torch


SCALINGS = ("linear", "sqrt", "none")
OPTIMIZERS = ("momentum", "lars", "lamb", "adam", "rmsprop_warmup")
WITH_BETAS = ("lamb", "adam")


@dataclass(frozen=True)
class Normalizer:
    """Conversion of numbers from ``reference_batch_size`` to ``batch_size``, both in samples of the group's batch.

        at = hopsml.large_batch.Normalizer(reference_batch_size=256, batch_size=8192)
        at.learning_rate(0.1), at.decay(0.99), at.steps(1000)

    Args:
        reference_batch_size: batch size at which the numbers were tuned.
        batch_size: batch size to convert to.

    Raises:
        ArgumentError: a size is below 1.
        ArgumentTypeError: a size is not an integer.
    """

    reference_batch_size: int
    batch_size: int

    def __post_init__(self) -> None:
        for name in ("reference_batch_size", "batch_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))

    @property
    def ratio(self) -> float:
        """Number of reference batches in one batch."""
        return self.batch_size / self.reference_batch_size

    def learning_rate(self, value: float, rule: str = "linear") -> float:
        """Return a learning rate scaled to the batch size.

        Args:
            value: the learning rate at the reference batch.
            rule: multiply by the ratio ("linear", arXiv 1706.02677), by its square root ("sqrt", 1904.00962), or not
                at all ("none").

        Raises:
            ArgumentError: another rule.
        """
        check_choice("scaling", rule, SCALINGS)
        return value * {"linear": self.ratio, "sqrt": math.sqrt(self.ratio), "none": 1.0}[rule]

    def decay(self, value: float) -> float:
        """Return a decay factor for each step (momentum, beta) that gives the same memory in samples."""
        return float(check_number("decay", value, 0, 1) ** self.ratio)

    def steps(self, value: int) -> int:
        """Return a number of steps (between logs, commits, of a warm-up) that covers as many samples; at least 1."""
        return max(1, round(whole_number("steps", value, 0) / self.ratio))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of a training, all tuned at ``reference_batch_size``.

        recipe = hopsml.large_batch.Recipe(reference_batch_size=256, learning_rate=0.1, epochs=90)
        plan = recipe.at(8192, n_samples=len(x))

    Args:
        reference_batch_size: samples of the whole group's batch at which the numbers were tuned.
        learning_rate: the highest learning rate, at the reference batch.
        epochs: length of the training.
        momentum: momentum of "momentum", "lars" and "rmsprop_warmup".
        weight_decay: lambda; not applied to biases and normalisations, nor to any variable of fewer than two axes.
        schedule: decrease of the rate: Constant(), Steps(), Cosine(), Polynomial(), SlowStart().
        scaling: scaling of the rate with the batch: "linear", "sqrt" or "none".
        warmup_epochs: epochs over which the rate rises from ``learning_rate`` to that of the batch. None: 5, but at
            most half of ``epochs``; 0 with "rmsprop_warmup" and SlowStart(), which include a warm-up.
        optimizer: "momentum", "lars", "lamb", "adam" or "rmsprop_warmup".
        label_smoothing: smoothing of the targets, from 0 to 1.
        transition_center: epochs after which "rmsprop_warmup" is half RMSprop and half gradient descent. None: 10 of 90
            epochs as published, so ``epochs / 9``.
        transition_period: width of this transition, in epochs; it ends ``transition_period / 2`` after the center. None:
            5 of 90 epochs as published, so ``epochs / 18``.
        momentum_correction: preserve the weight of past gradients when the rate changes (1706.02677, section 3).
        trust: eta of LARS.
        beta1: decay of the first moment of "lamb" and "adam".
        beta2: decay of the second moment of "lamb" and "adam".
        epsilon: epsilon of the optimizer; None for its default.
        keep_memory: convert momentum and betas to the batch, too, so that the past counts for as many samples as at
            the reference batch; the papers leave them unchanged.

    Raises:
        ArgumentError: a number is out of range, or a name is unknown; the error names it and its rule.
        ArgumentTypeError: a value has the wrong type.
    """

    reference_batch_size: int
    learning_rate: float
    epochs: float
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: schedules.Schedule = field(default_factory=schedules.Constant)
    scaling: str = "linear"
    warmup_epochs: float | None = None
    optimizer: str = "momentum"
    label_smoothing: float = 0.0
    transition_center: float | None = None
    transition_period: float | None = None
    momentum_correction: bool = True
    trust: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float | None = None
    keep_memory: bool = False

    def __post_init__(self) -> None:
        size = whole_number("reference_batch_size", self.reference_batch_size)
        object.__setattr__(self, "reference_batch_size", size)  # not NumPy's, which JSON does not hold
        check_number("learning_rate", self.learning_rate, 0, above=True)
        check_number("epochs", self.epochs, 0, above=True)
        check_number("weight_decay", self.weight_decay, 0)
        check_number("trust", self.trust, 0, above=True)
        if self.epsilon is not None:
            check_number("epsilon", self.epsilon, 0)
        for name in ("momentum", "label_smoothing", "beta1", "beta2"):
            check_number(name, getattr(self, name), 0, 1, below=True)
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if not isinstance(self.schedule, schedules.Schedule):
            raise ArgumentTypeError(
                f"schedule={self.schedule!r}: it must be a schedule of hopsml.large_batch: Constant(), Steps(), "
                "Cosine(), Polynomial() or SlowStart(); it is written in epochs, at the reference batch"
            )
        self._check_warmup()
        self._check_transition()

    def _check_transition(self) -> None:
        """Check center and period of the change from RMSprop to gradient descent."""
        given = {name: getattr(self, name) for name in ("transition_center", "transition_period")}
        for name, value in given.items():
            if value is None:
                continue
            if self.optimizer != "rmsprop_warmup":
                raise ArgumentError(
                    f"{name}={value} with optimizer={self.optimizer!r}: only 'rmsprop_warmup' changes from RMSprop to "
                    "gradient descent; use it, or leave the argument out"
                )
            check_number(name, value, 0, above=name == "transition_period")

    def _check_warmup(self) -> None:
        """Set the default length of the warm-up, and check it against the epochs and the schedule."""
        if self.warmup_epochs is None:
            own = self.optimizer == "rmsprop_warmup" or isinstance(self.schedule, schedules.SlowStart)
            object.__setattr__(self, "warmup_epochs", 0.0 if own else min(schedules.WARMUP_EPOCHS, self.epochs / 2))
        length = check_number("warmup_epochs", self.warmup_epochs, 0)
        if length >= self.epochs:
            raise ArgumentError(
                f"warmup_epochs={length:g} of epochs={self.epochs:g}: the warm-up must end before the training does; make "
                "it shorter, or 0 for none"
            )
        early = [each for each in getattr(self.schedule, "boundaries", ()) if each < length]
        if early:
            raise ArgumentError(
                f"Steps(boundaries=...) lowers the rate at epoch {early[0]:g}, amid warmup_epochs={length:g}: place "
                "the steps after the warm-up, or shorten it"
            )
        late = [each for each in getattr(self.schedule, "boundaries", ()) if each >= self.epochs]
        if late:
            raise ArgumentError(
                f"Steps(boundaries=...) lowers the rate at epoch {late[0]:g}, but the training has epochs={self.epochs:g}"
            )

    def at(self, batch_size: int, n_samples: int) -> BatchPlan:
        """Return the hyper-parameters for another batch size.

        Args:
            batch_size: samples in a batch of the whole group.
            n_samples: samples in an epoch.

        Raises:
            ArgumentError: the batch is larger than the data.
        """
        return BatchPlan(
            recipe=self,
            batch_size=whole_number("batch_size", batch_size),
            n_samples=whole_number("n_samples", n_samples),
        )


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Hyper-parameters of a recipe at one batch size; ``print(plan)`` shows old and new values and the rules.

    A training may continue beyond ``recipe.epochs``: the last learning rate of the schedule holds. With Polynomial() and
    Cosine() it is 0, so that the weights no longer change.
    """

    recipe: Recipe
    batch_size: int
    n_samples: int

    def __post_init__(self) -> None:
        if self.batch_size > self.n_samples:
            raise ArgumentError(
                f"batch_size={self.batch_size} with n_samples={self.n_samples}: a batch cannot be larger than the "
                f"data; use at most {self.n_samples}"
            )

    @property
    def normalizer(self) -> Normalizer:
        """Conversion of any other number from the reference batch to this one."""
        return Normalizer(self.recipe.reference_batch_size, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, the last of which may be smaller."""
        return -(-self.n_samples // self.batch_size)

    @property
    def steps(self) -> int:
        """Number of batches in the whole training."""
        return max(1, math.ceil(self.recipe.epochs * self.steps_per_epoch - 1e-9))

    @property
    def warmup_steps(self) -> int:
        """Steps before the highest rate is reached; 0 if the rate is not higher than at the reference batch."""
        if self.peak_learning_rate <= self.recipe.learning_rate:
            return 0
        return math.ceil(float(self.recipe.warmup_epochs or 0) * self.steps_per_epoch - 1e-9)

    @property
    def peak_learning_rate(self) -> float:
        """Learning rate at the end of the warm-up, before the schedule lowers it."""
        return self.normalizer.learning_rate(self.recipe.learning_rate, self.recipe.scaling)

    def learning_rate_at(self, epoch: Any, space: Any = PlainNumbers) -> Any:
        """Return the learning rate after ``epoch`` epochs, which may be a fraction.

        Args:
            epoch: epochs done.
            space: arithmetic functions for the type of ``epoch``.
        """
        recipe = self.recipe
        length = float(recipe.warmup_epochs or 0)
        rate = schedules.warm_up(epoch, recipe.learning_rate, self.peak_learning_rate, length, space)
        return rate * recipe.schedule.factor(epoch, length, recipe.epochs, space)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return float(self.learning_rate_at(whole_number("step", step, 0) / self.steps_per_epoch))

    @property
    def base_momentum(self) -> float:
        """Momentum before the correction for changes of the rate."""
        return self._memory(self.recipe.momentum)

    @property
    def betas(self) -> tuple[float, float]:
        """Decay factors beta1 and beta2 of LAMB and Adam."""
        return self._memory(self.recipe.beta1), self._memory(self.recipe.beta2)

    def _memory(self, value: float) -> float:
        """Return a decay factor, converted to the batch size if ``keep_memory`` is set."""
        return self.normalizer.decay(value) if self.recipe.keep_memory else value

    def momentum(self, step: int) -> float:
        """Return the momentum of a step for an optimizer whose velocity includes the rate, such as Keras's SGD.

        It is m * new rate / old rate; without correction it is constant. Optimizers made by ``keras`` and ``torch``
        need no correction: their velocity does not include the rate, which results in the same training.
        """
        if not self.recipe.momentum_correction or step == 0:
            return self.base_momentum
        before = self.learning_rate(step - 1)
        return self.base_momentum * self.learning_rate(step) / before if before else self.base_momentum

    @property
    def transition(self) -> tuple[float, float]:
        """Center and period, in epochs, of the change from RMSprop to gradient descent."""
        center, period = self.recipe.transition_center, self.recipe.transition_period
        scale = self.recipe.epochs / schedules.PUBLISHED_EPOCHS
        return (
            schedules.TRANSITION_CENTER * scale if center is None else float(center),
            schedules.TRANSITION_PERIOD * scale if period is None else float(period),
        )

    def sgd_share_at(self, epoch: float) -> float:
        """Return SGD's share of an update after ``epoch`` epochs; 1 unless the optimizer is "rmsprop_warmup".

        RMSprop has the rest.
        """
        return float(schedules.sgd_share(epoch, *self.transition)) if self.recipe.optimizer == "rmsprop_warmup" else 1.0

    def keras(self) -> keras.optimizers.Optimizer:
        """Return a new Keras 3 optimizer that follows the plan: for ``model.compile``, loops, and under strategies.

        Raises:
            ArgumentError: Keras runs on another backend than TensorFlow.
        """
        made: Any = importlib.import_module("hopsml.training.tensorflow.keras.large_batch").plan_optimizer(
            self
        )  # the module imports this one
        return made

    def torch(self, module: torch.nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return a new optimizer of the module's parameters, and its scheduler.

        Call the scheduler's ``step()`` after each step of the optimizer.
        """
        made: tuple[Any, Any] = importlib.import_module("hopsml.training.torch.layerwise_optimizers").make_optimizer(
            self, module
        )  # the module imports this one
        return made

    def as_config(self) -> dict[str, Any]:
        """Return numbers and texts from which ``from_config`` builds the same plan."""
        recipe = {each.name: getattr(self.recipe, each.name) for each in fields(Recipe)}
        schedule = {each.name: getattr(self.recipe.schedule, each.name) for each in fields(self.recipe.schedule)}
        if "boundaries" in schedule:
            schedule["boundaries"] = list(schedule["boundaries"])
        recipe["schedule"] = {"kind": type(self.recipe.schedule).__name__, **schedule}
        return {"recipe": recipe, "batch_size": self.batch_size, "n_samples": self.n_samples}

    @staticmethod
    def from_config(config: dict[str, Any]) -> BatchPlan:
        """Return the plan described by the result of ``as_config``, also by that of an earlier version."""
        schedule = dict(config["recipe"]["schedule"])
        kind = schedule.pop("kind")
        if "boundaries" in schedule:
            schedule["boundaries"] = tuple(schedule["boundaries"])
        check_choice("schedule", kind, ("Constant", "Steps", "Cosine", "Polynomial", "SlowStart"))
        values = {**_settings_of_earlier_versions(config["recipe"]), **config["recipe"]}
        recipe = Recipe(**{**values, "schedule": getattr(schedules, kind)(**schedule)})
        return recipe.at(config["batch_size"], config["n_samples"])

    def __str__(self) -> str:
        rows = [("", "reference", "here", "rule"), *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        )

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of the printed table: name, reference value, value here, rule."""
        recipe, factor = self.recipe, f"x {self.peak_learning_rate / self.recipe.learning_rate:g}"
        before = -(-self.n_samples // recipe.reference_batch_size)
        rows = [
            ("batch size", str(recipe.reference_batch_size), str(self.batch_size), f"x {self.normalizer.ratio:g}"),
            ("steps per epoch", str(before), str(self.steps_per_epoch), f"{self.n_samples} samples"),
            ("steps", str(math.ceil(recipe.epochs * before - 1e-9)), str(self.steps), f"{recipe.epochs:g} epochs"),
            (
                "learning rate",
                f"{recipe.learning_rate:g}",
                f"{self.peak_learning_rate:g}",
                f"{recipe.scaling} scaling: {factor}",
            ),
            ("warm-up steps", "0", str(self.warmup_steps), f"{recipe.warmup_epochs:g} epochs, if the rate is higher"),
            ("schedule", str(recipe.schedule), str(recipe.schedule), "by epochs, so the same"),
        ]
        if recipe.optimizer in WITH_BETAS:
            was, now, what = f"{recipe.beta1:g}, {recipe.beta2:g}", "{:g}, {:g}".format(*self.betas), "betas"
        else:
            was, now, what = f"{recipe.momentum:g}", f"{self.base_momentum:g}", "momentum"
        rows.append((what, was, now, "as long a memory in samples" if recipe.keep_memory else "as it was"))
        rows.append(
            ("weight decay", f"{recipe.weight_decay:g}", f"{recipe.weight_decay:g}", "not of biases, normalisations")
        )
        if recipe.label_smoothing:
            same = f"{recipe.label_smoothing:g}"
            rows.append(("label smoothing", same, same, "give it to the loss: label_smoothing=" + same))
        rows.append(("optimizer", recipe.optimizer, recipe.optimizer, ""))
        if recipe.optimizer == "rmsprop_warmup":
            center, period = self.transition
            same = f"half at {center:g}, done at {center + period / 2:g}"
            rows.append(("RMSprop to SGD", same, same, "by epochs, so the same"))
        return rows


def _settings_of_earlier_versions(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the values, by field, with which an earlier version trained a recipe that does not contain them."""
    if recipe.get("optimizer") != "rmsprop_warmup":
        return {}
    return {  # whatever the number of epochs
        "transition_center": schedules.TRANSITION_CENTER,
        "transition_period": schedules.TRANSITION_PERIOD,
    }
