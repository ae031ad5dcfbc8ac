"""Tests that the gradient sets have as many weights as the papers and their authors' code state."""

from __future__ import annotations

import math

import pytest

from benchmarks import gradient_sets, models
from benchmarks.models import Bench

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("name", "tensors", "weights"),
    [
        ("vgg-16", 32, 138_357_544),
        ("vgg-19", 38, 143_667_240),
        ("resnet-50", 161, 25_557_032),
        ("inception-v1", 160, 7_004_441),
        ("160x4kB", 160, 163_840),
        ("3x1kB", 3, 768),
    ],
)
def test_gradient_sets_have_published_numbers_of_weights(name: str, tensors: int, weights: int):
    shapes = gradient_sets.shapes_of(name)
    assert (len(shapes), sum(math.prod(shape) for shape in shapes)) == (tensors, weights)
    assert gradient_sets.bytes_of(shapes) == 4 * weights


def test_unknown_gradient_set_is_refused():
    with pytest.raises(ValueError, match="gradient set 'alexnet': it must be one of inception-v1, vgg-16"):
        gradient_sets.shapes_of("alexnet")


def test_benchmark_methods_and_loads_are_matched():
    bench = Bench(2, models.WAYS, [*gradient_sets.SETS, "model:vgg-16"])
    assert bench.ways_of("model:vgg-16") == list(models.TRAIN)
    assert bench.loads_of("parameter-server") == ["inception-v1", "resnet-50", "160x4kB"]
    assert bench.loads_of("ddp") == list(gradient_sets.SETS)


def test_large_gradient_sets_are_measured_in_separate_sessions():
    together, *alone = models.sittings(2, models.WAYS, [*gradient_sets.SETS, "model:vgg-16"])
    assert together == Bench(2, models.WAYS, ["inception-v1", "resnet-50", "160x4kB"])
    assert [bench.ways for bench in alone if bench.loads == ["vgg-16"]] == [
        ("tensorflow", "merged"),
        ("tensorflow", "hopsml"),
        ("tensorflow", "ddp"),
        ("tensorflow-2.12", "horovod"),
    ]
    assert [bench.ways for bench in alone if bench.loads == ["model:vgg-16"]] == [
        ("tensorflow", "merged"),
        ("tensorflow", "hopsml"),
    ]


def test_each_method_is_paired_with_its_control():
    times = {
        ("tensorflow", "x"): [2.0],
        ("hopsml", "x"): [1.0],
        ("tensorflow-2.12", "x"): [4.0],
        ("horovod", "x"): [3.0],
    }
    assert models.paired(times) == {("hopsml", "x"): ([1.0], [2.0]), ("horovod", "x"): ([3.0], [4.0])}
