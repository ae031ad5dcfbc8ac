"""Tests of plans for another batch size, and of refused ones."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.large_batch import rules, schedules
from hopsml.training.large_batch.recipe import BatchPlan
from tests.helpers.training import references

pytestmark = pytest.mark.fast
large = hopsml.large_batch


def recipe(**more: Any) -> Any:
    return large.Recipe(**{"reference_batch_size": 256, "learning_rate": 0.1, "epochs": 90, **more})


def test_large_batch_plan_scales_warms_up_and_steps_down_the_rate_as_in_1706_02677() -> None:
    plan = recipe(schedule=large.Steps()).at(8192, n_samples=1_281_167)
    assert (plan.steps_per_epoch, plan.steps, plan.warmup_steps) == (157, 14130, 785)
    assert plan.learning_rate(0) == pytest.approx(0.1)
    assert plan.learning_rate_at(2.5) == pytest.approx((0.1 + 3.2) / 2)
    assert [plan.learning_rate_at(epoch) for epoch in (5, 29.9, 30, 60, 80)] == pytest.approx(
        [3.2, 3.2, 0.32, 0.032, 0.0032]
    )
    assert "linear scaling: x 32" in str(plan) and "8192" in str(plan)


def test_plan_applies_sqrt_and_no_scaling_and_smaller_batches_have_no_warm_up() -> None:
    assert recipe(scaling="sqrt").at(1024, 10_000).peak_learning_rate == pytest.approx(0.2)
    assert recipe(scaling="none").at(1024, 10_000).peak_learning_rate == pytest.approx(0.1)
    smaller = recipe().at(64, 10_000)
    assert smaller.warmup_steps == 0 and smaller.learning_rate(0) == pytest.approx(0.025)


def test_slow_start_schedule_has_the_published_rates() -> None:
    plan = recipe(schedule=large.SlowStart(), optimizer="rmsprop_warmup").at(32768, 1_281_167)
    factors = [plan.learning_rate_at(epoch) / plan.peak_learning_rate for epoch in (0, 39, 40, 70, 85)]
    assert factors == pytest.approx([0.5, 0.5, 0.075, 0.01, 0.001])


SCHEDULES = st.sampled_from(
    [large.Constant(), large.Cosine(), large.Polynomial(), large.SlowStart(), large.Steps((50.0,))]
)


@given(SCHEDULES, st.integers(1, 4096), st.integers(4096, 100_000), st.floats(0, 40))
def test_plan_rate_never_falls_during_warm_up_and_never_exceeds_the_peak(
    schedule: Any, batch: int, samples: int, length: float
) -> None:
    plan = recipe(schedule=schedule, warmup_epochs=length).at(batch, samples)
    assert plan.steps == 90 * plan.steps_per_epoch
    rates = [plan.learning_rate(min(step, plan.steps - 1)) for step in range(0, plan.steps, max(1, plan.steps // 50))]
    assert all(0 <= rate <= max(plan.peak_learning_rate, 0) * (1 + 1e-9) for rate in rates)
    rising = [plan.learning_rate_at(length * part / 10) for part in range(10)]
    assert plan.warmup_steps == 0 or all(one <= other * (1 + 1e-9) for one, other in itertools.pairwise(rising))
    assert BatchPlan.from_config(plan.as_config()) == plan


def test_plan_of_numpy_integers_is_serializable_as_json() -> None:
    plan = recipe(reference_batch_size=np.int64(256)).at(np.int64(512), np.int32(1000))
    assert BatchPlan.from_config(json.loads(json.dumps(plan.as_config()))) == plan
    assert type(large.Normalizer(np.int64(256), np.int64(512)).batch_size) is int


@given(st.floats(0, 90), st.floats(0, 1e-3))
def test_rmsprop_transition_is_continuous_rises_and_ends_at_1(epoch: float, more: float) -> None:
    first, second = schedules.sgd_share(epoch), schedules.sgd_share(epoch + more)
    assert 0 < first <= second + 1e-12 and second <= 1 and second - first <= more / 5 + 1e-9
    assert schedules.sgd_share(10.0) == 0.5 and schedules.sgd_share(12.5) == 1.0 and schedules.sgd_share(60.0) == 1.0


def test_rmsprop_transition_is_as_published_for_90_epochs_and_scales_with_the_epochs() -> None:
    def shares(epochs: float, at: tuple[float, ...], **more: Any) -> list[float]:
        plan = recipe(epochs=epochs, optimizer="rmsprop_warmup", **more).at(1024, 4096)
        return [plan.sgd_share_at(epoch) for epoch in at]

    published = shares(90, (0.0, 5.0, 10.0, 12.5, 60.0))
    assert published == pytest.approx([math.exp(-4) / 2, math.exp(-2) / 2, 0.5, 1.0, 1.0])
    assert shares(30, (0.0, 5 / 3, 10 / 3, 12.5 / 3, 20.0)) == pytest.approx(published)
    assert shares(30, (2.0, 2.5, 3.0), transition_center=2.0, transition_period=2.0) == pytest.approx([0.5, 0.75, 1.0])
    assert shares(90, (20.0, 22.5), transition_center=20) == pytest.approx([0.5, 1.0])  # the width remains 5
    assert recipe().at(1024, 4096).sgd_share_at(0.0) == 1.0  # another optimizer


def test_plan_prints_the_rmsprop_transition() -> None:
    def row(**more: Any) -> str:
        plan = recipe(optimizer="rmsprop_warmup", **more).at(1024, 4096)
        return next(line for line in str(plan).splitlines() if line.startswith("RMSprop to SGD"))

    assert row().count("half at 10, done at 12.5 ") == 2
    assert "half at 3, done at 4 " in row(epochs=30, transition_center=3, transition_period=2)
    assert "RMSprop to SGD" not in str(recipe().at(1024, 4096))


def test_plan_saved_before_the_transition_could_be_set_has_that_of_its_training() -> None:
    plan = recipe(epochs=30, optimizer="rmsprop_warmup").at(1024, 4096)
    saved = plan.as_config()
    assert BatchPlan.from_config(json.loads(json.dumps(saved))) == plan
    for name in ("transition_center", "transition_period"):
        del saved["recipe"][name]
    old = BatchPlan.from_config(saved)
    assert old.transition == (10.0, 5.0) and old.sgd_share_at(10.0) == 0.5
    assert plan.transition == pytest.approx((10 / 3, 5 / 3))
    momentum = recipe().at(1024, 4096)
    saved = momentum.as_config()
    for name in ("transition_center", "transition_period"):
        del saved["recipe"][name]
    assert BatchPlan.from_config(saved) == momentum


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (large.Constant(), 1.0),
        (large.Steps((2.0,)), 0.1),
        (large.SlowStart(), 0.001),
        (large.Cosine(0.2), 0.2),
        (large.Cosine(), 0.0),
        (large.Polynomial(), 0.0),
    ],
    ids=str,
)
def test_plan_retains_its_last_rate_after_the_end(schedule: Any, last: float) -> None:
    plan = recipe(epochs=3, schedule=schedule, warmup_epochs=1, optimizer="rmsprop_warmup").at(1024, 4096)
    assert [plan.learning_rate(plan.steps + more) for more in (0, 1, 1000)] == pytest.approx(
        [plan.peak_learning_rate * last] * 3, abs=1e-12
    )
    assert plan.sgd_share_at(3.0) == plan.sgd_share_at(1000.0) == 1.0
    assert all(math.isfinite(plan.momentum(plan.steps + more)) for more in (0, 1, 1000))


def updated(rule: Any, steps: int = 100) -> list[Any]:
    weights = references.problem()
    states: list[Any] = [None] * len(weights)
    for step in range(steps):
        for index, weight in enumerate(weights):
            gradient = references.gradients(step, index, weight.shape)
            weights[index], *states[index] = rule(step, weight, gradient, states[index] or [weight * 0, weight * 0])
    return weights


def test_lars_and_lamb_rules_equal_reference_formulas_in_numpy() -> None:
    rates = [0.1 * min(1.0, (step + 1) / 20) for step in range(100)]

    def lars(step: int, weight: Any, gradient: Any, state: Any) -> Any:
        return rules.lars(
            weight, gradient, state[0], rates[step], np, weight_decay=1e-2, eta=0.02, layerwise=weight.ndim > 1
        )

    def lamb(step: int, weight: Any, gradient: Any, state: Any) -> Any:
        return rules.lamb(
            weight, gradient, *state, rates[step], step + 1, np, weight_decay=1e-2, layerwise=weight.ndim > 1
        )

    assert references.error(updated(lars), references.lars(100, rates)) <= 1e-9
    assert references.error(updated(lamb), references.lamb(100, rates)) <= 1e-9


def test_momentum_correction_makes_both_velocity_forms_equivalent() -> None:
    plan = recipe(schedule=large.Steps((10.0,))).at(1024, 4096)
    found = {}
    for absorbs in (False, True):
        weight, velocity = 1.0, 0.0
        for step in range(80):
            factor = plan.momentum(step) if absorbs else plan.base_momentum
            rate = plan.learning_rate(step)
            weight, velocity = rules.momentum(weight, math.sin(step) + weight, velocity, rate, factor, absorbs)
        found[absorbs] = weight
    assert found[True] == pytest.approx(found[False], rel=1e-9)
    assert plan.momentum(1) > 0.9 and recipe(momentum_correction=False).at(1024, 4096).momentum(1) == 0.9


def test_lars_and_lamb_ratios_are_1_for_a_norm_of_0() -> None:
    for pair in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        one, other = map(np.float64, pair)
        assert rules.lars_ratio(one, other, 0.001, 0.0, 0.0, np) == rules.lamb_ratio(one, other, np) == 1


def test_normalizer_converts_rate_decay_steps_and_momentum_to_another_batch_size() -> None:
    at = large.Normalizer(256, 1024)
    assert at.learning_rate(0.1) == pytest.approx(0.4) and at.learning_rate(0.1, "sqrt") == pytest.approx(0.2)
    assert at.decay(0.99) == pytest.approx(0.99**4)
    assert (at.steps(1000), at.steps(1)) == (250, 1)
    assert recipe(keep_memory=True).at(1024, 4096).base_momentum == pytest.approx(0.9**4)


def test_smooth_labels_spreads_the_smoothing_over_all_classes() -> None:
    np.testing.assert_allclose(large.smooth_labels(np.eye(4), 0.1)[0], [0.925, 0.025, 0.025, 0.025])
    assert "label_smoothing=0.1" in str(recipe(label_smoothing=0.1).at(256, 1000))


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"reference_batch_size": 0}, ArgumentError, "reference_batch_size=0 is too small"),
        ({"reference_batch_size": 2.5}, ArgumentTypeError, "reference_batch_size=2.5 is a float"),
        ({"learning_rate": -1}, ArgumentError, "learning_rate=-1: it must be more than 0"),
        ({"learning_rate": math.nan}, ArgumentError, "learning_rate=nan"),
        ({"learning_rate": "fast"}, ArgumentTypeError, "learning_rate='fast' is a str"),
        ({"scaling": "linaer"}, ArgumentError, "scaling='linaer' is unknown; did you mean linear"),
        ({"optimizer": "lasr"}, ArgumentError, "did you mean lars"),
        ({"optimizer": "zebra"}, ArgumentError, "there are: momentum, lars"),
        ({"momentum": 1.0}, ArgumentError, "momentum=1.0: it must be at least 0 and less than 1"),
        ({"warmup_epochs": 90}, ArgumentError, "the warm-up must end before the training does"),
        ({"schedule": "cosine"}, ArgumentTypeError, "Cosine"),
        ({"schedule": large.Steps((3.0,))}, ArgumentError, "amid warmup_epochs=5"),
        ({"schedule": large.Steps((95.0,))}, ArgumentError, "the training has epochs=90"),
    ],
)
def test_invalid_recipe_is_refused_with_value_and_rule(
    given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words.replace("(", r"\(")):
        recipe(**given)


def test_invalid_batch_sizes_steps_and_scaling_are_refused() -> None:
    with pytest.raises(ArgumentError, match="a batch cannot be larger than the data; use at most 100"):
        recipe().at(101, 100)
    with pytest.raises(ArgumentError, match="batch_size=0"):
        recipe().at(0, 100)
    with pytest.raises(ArgumentError, match="in ascending order"):
        large.Steps((30.0, 30.0))
    with pytest.raises(ArgumentError, match="scaling='cube'"):
        large.Normalizer(1, 2).learning_rate(0.1, "cube")


def test_noise_scale_estimate_converges_to_the_known_noise() -> None:
    random = np.random.default_rng(1)
    noise = large.GradientNoiseScale(small_batch=8, big_batch=64, decay=0.999)
    true, size = np.full(100, 0.1), 100
    for _ in range(3000):  # |G|^2 = 1, tr(S) = 100 * 4: 400 samples
        parts = true + random.normal(size=(8, size)) * 2 / math.sqrt(8)
        noise.add(float(np.mean(np.sum(parts**2, axis=1))), float(np.sum(parts.mean(axis=0) ** 2)))
    assert noise.noise_scale == pytest.approx(400, rel=0.15)
    assert noise.advise() in (256, 512) and noise.advise(most=100) == 64 and noise.advise(least=1000) == 1024


def test_noise_scale_without_signal_is_infinite_and_invalid_inputs_raise() -> None:
    noise = large.GradientNoiseScale(small_batch=1, big_batch=2)
    with pytest.raises(ArgumentError, match="before the first add"):
        noise.advise()
    noise.add_gradients([np.float32([2, 0])], [np.float32([1, 1])])
    assert noise.noise_scale == math.inf and noise.advise(most=4096) == 4096
    with pytest.raises(ArgumentError, match="at least two workers"):
        large.GradientNoiseScale(small_batch=32, big_batch=32)
    with pytest.raises(ArgumentError, match="small_squared_norm"):
        noise.add(math.inf, 1)
    with pytest.raises(ArgumentError, match="no power of two"):
        noise.advise(least=5, most=7)


def noise_of(scale: float, **more: Any) -> Any:
    """An estimate of exactly this noise scale, where the squared gradient is 1."""
    noise = large.GradientNoiseScale(1, 2, **more)
    noise.add(1 + scale, 1 + scale / 2)
    return noise


def test_noise_scale_averages_signal_and_noise_separately() -> None:
    noise = large.GradientNoiseScale(small_batch=2, big_batch=8, decay=0.75)
    assert (noise.small_batch, noise.big_batch, noise.decay) == (2, 8, 0.75) and math.isnan(noise.noise_scale)
    noise.add(5, 2)  # (8 * 2 - 2 * 5) / (8 - 2) = 1 of signal, (5 - 2) / (1 / 2 - 1 / 8) = 8 of noise
    assert noise.noise_scale == pytest.approx(8)
    noise.add(4, 4)  # 4 of signal, no noise: 3/16 + 1 of signal, 3/2 of noise
    assert noise.noise_scale == pytest.approx(1.5 / 1.1875)
    noise.add(20, 2)  # -4 of signal, 48 of noise
    assert noise.noise_scale == math.inf
    noise.add(8, 8)  # 8 of signal
    signal, spread = 0.75 * (0.75 * 1.1875 - 1) + 2, 0.75 * (0.75 * 1.5 + 12)
    assert noise.noise_scale == pytest.approx(spread / signal)


def test_noise_scale_with_decay_0_uses_only_the_newest_step_and_default_is_0_99() -> None:
    newest = large.GradientNoiseScale(2, 8, decay=0)
    newest.add(20, 5)
    newest.add(5, 2)
    assert newest.noise_scale == pytest.approx(8)
    assert large.GradientNoiseScale(2, 8).decay == 0.99


def test_noise_scale_is_0_for_negative_noise_and_infinite_without_signal() -> None:
    noise = large.GradientNoiseScale(1, 2)
    noise.add(1, 2)
    assert noise.noise_scale == 0 and noise.advise() == 1
    noise = large.GradientNoiseScale(1, 2)
    noise.add(2, 1)  # a signal of exactly 0
    assert noise.noise_scale == math.inf and noise.advise() == 1 << 20
    noise = large.GradientNoiseScale(1, 2)
    noise.add(0, 0)
    assert noise.noise_scale == math.inf


@pytest.mark.parametrize(
    ("scale", "limits", "advised"),
    [
        (0.0, {}, 1),
        (0.3, {}, 1),
        (1.4, {}, 1),
        (1.5, {}, 2),
        (5.6, {}, 4),
        (5.7, {}, 8),
        (1000.0, {}, 1024),
        (2.0**22, {}, 1 << 20),
        (2.0, {"least": 8}, 8),
        (2.0, {"least": 5}, 8),
        (64.0, {"most": 7}, 4),
        (64.0, {"most": 8}, 8),
        (6.0, {"least": 8, "most": 8}, 8),
        (16.0, {"least": 8, "most": 32}, 16),
        (0.0, {"least": 1, "most": 1}, 1),
    ],
)
def test_noise_scale_advises_the_nearest_power_of_two_within_limits(
    scale: float, limits: dict[str, int], advised: int
) -> None:
    found = noise_of(scale).advise(**limits)
    assert found == advised and type(found) is int


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: large.GradientNoiseScale(0, 2), "small_batch=0 is too small; it must be at least 1"),
        (lambda: large.GradientNoiseScale(1, 0), "big_batch=0 is too small; it must be at least 1"),
        (lambda: large.GradientNoiseScale(1, 2, decay=1), "decay=1: it must be at least 0 and less than 1"),
        (lambda: large.GradientNoiseScale(1, 2, decay=-0.1), "decay=-0.1: it must be at least 0 and less than 1"),
        (
            lambda: large.GradientNoiseScale(8, 4),
            "big_batch=4 with small_batch=8: the gradient noise is estimated from two different batch sizes; use at "
            "least two workers, or two parts of a worker's batch",
        ),
        (lambda: noise_of(1).add(-1, 1), "small_squared_norm=-1.0: it must be at least 0"),
        (lambda: noise_of(1).add(1, -1), "big_squared_norm=-1.0: it must be at least 0"),
        (lambda: noise_of(1).add(1, math.nan), "big_squared_norm=nan: it must be at least 0"),
        (
            lambda: noise_of(1).advise(least=5, most=7),
            "advise(least=5, most=7): there is no power of two between these bounds; widen them",
        ),
        (lambda: noise_of(1).advise(least=0), "least=0 is too small; it must be at least 1"),
        (lambda: noise_of(1).advise(most=0), "most=0 is too small; it must be at least 1"),
        (
            lambda: large.GradientNoiseScale(1, 2).advise(),
            "advise() was called before the first add(); add gradients first",
        ),
    ],
)
def test_invalid_noise_scale_input_is_refused_with_value_and_rule(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert str(caught.value) == message


def test_refused_input_does_not_change_the_noise_scale_estimate() -> None:
    noise = noise_of(8)
    with pytest.raises(ArgumentError):
        noise.add(3, math.inf)
    assert noise.noise_scale == pytest.approx(8)


def test_squared_norm_sums_all_arrays_in_float64() -> None:
    squared_norm = schedules.squared_norm
    assert squared_norm([np.float16([300, 400])]) == 250_000  # float16 ends at 65504
    assert squared_norm([np.float32([4096.5])]) == 4096.5**2  # which float32 would round
    assert squared_norm([[3, 4], np.ones((2, 3)), 2.0]) == 35
    assert squared_norm([]) == 0 and type(squared_norm([np.float32([1])])) is float


def test_add_gradients_averages_squared_norms_of_all_workers_by_one_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[tuple[float, str]] = []

    def mean(value: float, name: str) -> Any:
        """Return the mean as if another worker had 3 times the value."""
        exchanged.append((value, name))
        return np.float64(2 * value)

    monkeypatch.setattr("hopsml.training.collective.all_reduce", mean)
    noise = large.GradientNoiseScale(2, 8)
    noise.add_gradients([np.float32([1.5]), np.float32([[0.5]])], [np.float32([1.0, 1.0])])
    assert exchanged == [(2.5, "squared norm of a worker's gradient")]
    assert noise.noise_scale == pytest.approx(8)  # of 5 and 2


def test_doubling_batch_size_schedule_requests_each_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[int] = []
    monkeypatch.setattr("hopsml.training.messages.resize", requested.append)
    sizes = large.BatchSizeSchedule.doubling(workers=2, every=2, most=7)
    assert sizes.changes == ((0, 2), (2, 4), (4, 7))
    data = hopsml.elastic.Sampler(64, 16, epochs=6, scaling="linear", reference_workers=2, ramp_epochs=1)
    data.join(0, 2)
    while not data.is_exhausted:
        sizes.follow(data)
        if requested and data.world_size != requested[-1]:
            data.join(0, requested[-1])
        data.advance()
    assert requested == [4, 7]


def test_group_growth_during_warm_up_does_not_change_the_rate_at_once() -> None:
    data = hopsml.elastic.Sampler(64, 16, epochs=6, scaling="linear", reference_workers=1, ramp_epochs=2)
    data.join(0, 2)
    assert data.learning_rate_scale == 1
    for _ in range(2):
        data.advance()
    before = data.learning_rate_scale
    data.join(0, 4)
    assert before == data.learning_rate_scale == pytest.approx(1.5)


def test_invalid_batch_size_schedules_are_refused() -> None:
    for changes in ((), ((1, 2),), ((0, 2), (0, 4))):
        with pytest.raises(ArgumentError, match="they must start with 0 and increase"):
            schedules.BatchSizeSchedule(changes)
    with pytest.raises(ArgumentError, match="scaling='linear'"):
        large.BatchSizeSchedule([(0, 2)]).follow(hopsml.elastic.Sampler(64, 16))


class _At:
    """A sampler of 100 samples with a batch that grows with the group, at a position in its first epochs."""

    scaling, n_samples = "linear", 100

    def __init__(self, epoch: int, offset: int, world_size: int) -> None:
        self.epoch, self.offset, self.world_size = epoch, offset, world_size


def test_batch_size_schedule_requests_each_size_once_and_never_the_current_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []
    monkeypatch.setattr("hopsml.training.messages.resize", requested.append)
    sizes = large.BatchSizeSchedule([(0, 2), (1.5, 4), (2, 8)])

    def follow(epoch: int, offset: int, world_size: int) -> list[int]:
        requested.clear()
        sizes.follow(_At(epoch, offset, world_size))  # type: ignore[arg-type]
        return list(requested)

    assert follow(0, 0, 2) == []  # the group has this size
    assert follow(1, 49, 2) == []
    assert follow(1, 50, 2) == [4]  # half an epoch counts, and the change starts with its epoch
    assert follow(1, 51, 2) == []  # requested before; the group changes at its next commit
    assert follow(1, 99, 4) == []
    assert follow(2, 0, 4) == [8]
    assert follow(2, 1, 4) == []
    assert [sizes.workers(epoch) for epoch in (0, 1.49, 1.5, 1.99, 2, 9)] == [2, 2, 4, 4, 8, 8]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: large.BatchSizeSchedule([(-1, 2)]), r"^epoch=-1: it must be at least 0$"),
        (lambda: large.BatchSizeSchedule([(0, 0)]), r"^workers=0 is too small; it must be at least 1$"),
        (lambda: large.BatchSizeSchedule.doubling(0, 1, 4), r"^workers=0 is too small; it must be at least 1$"),
        (lambda: large.BatchSizeSchedule.doubling(4, 1, 3), r"^most=3 is too small; it must be at least 4$"),
        (lambda: large.BatchSizeSchedule.doubling(1, 0, 4), r"^every=0: it must be more than 0$"),
        (
            lambda: large.BatchSizeSchedule([(0, 2)]).follow(hopsml.elastic.Sampler(64, 16)),
            r"does not depend on the group; create it with scaling='linear'$",
        ),
    ],
)
def test_invalid_batch_size_schedule_error_names_value_and_rule(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_batch_size_schedule_may_double_within_an_epoch_or_have_one_size() -> None:
    assert large.BatchSizeSchedule.doubling(1, 0.5, 4).changes == ((0, 1), (0.5, 2), (1.0, 4))
    assert large.BatchSizeSchedule.doubling(3, 2, 3).changes == ((0, 3),)
