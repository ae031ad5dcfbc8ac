"""Gradients that published networks reduce in a step: shapes of their variables, in the order of the layers; pure.

VGG's are of Simonyan and Zisserman (2015), configurations D and E; ResNet-50's of He et al. (2016), whose convolutions
have no bias; Inception v1's of Szegedy et al. (2015). ``COUNTxBYTESkB`` is a set of COUNT equal tensors of float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

Shape = tuple[int, ...]

# Inception v1: kernels of the stem, then of the nine modules (inputs; 1x1; 3x3 after its reduction; 5x5 likewise;
# pool).
STEM = [(7, 7, 3, 64), (1, 1, 64, 64), (3, 3, 64, 192)]
MODULES = [
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]
INCEPTION_GRADIENTS = 160
# VGG: convolutions of 3x3 in five blocks (count, channels), then three dense layers.
VGG_16 = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
VGG_19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))
# ResNet-50: four stages of bottlenecks (count, width); the output of a bottleneck has four times its width.
RESNET_50 = ((3, 64), (4, 128), (6, 256), (3, 512))
_EQUAL = re.compile(r"(\d+)x(\d+)kB")


def shapes_of(name: str) -> list[Shape]:
    """Return the shapes of a set of ``SETS``, or of ``COUNTxBYTESkB``.

    Raises:
        ValueError: the name is neither.
    """
    if name in SETS:
        return SETS[name]()
    if (equal := _EQUAL.fullmatch(name)) is None:
        raise ValueError(f"gradient set {name!r}: it must be one of {', '.join(SETS)}, or COUNTxBYTESkB")
    return [(int(equal[2]) * 256,)] * int(equal[1])


def bytes_of(shapes: Sequence[Shape]) -> int:
    """Return the size in bytes of float32 tensors of these shapes."""
    return 4 * sum(math.prod(shape) for shape in shapes)


def inception_shapes() -> list[Shape]:
    """Return kernels, biases and classifier of Inception v1, padded with normalisation scales to 160 tensors."""
    kernels: list[Shape] = list(STEM)
    for inputs, one, reduce3, three, reduce5, five, pool in MODULES:
        kernels += [(1, 1, inputs, one), (1, 1, inputs, reduce3), (3, 3, reduce3, three)]
        kernels += [(1, 1, inputs, reduce5), (5, 5, reduce5, five), (1, 1, inputs, pool)]
    shapes = [shape for kernel in kernels for shape in (kernel, (kernel[-1],))]
    shapes += [(1024, 1001), (1001,)]
    scales = [(kernel[-1],) for kernel in kernels]
    return shapes + scales[: INCEPTION_GRADIENTS - len(shapes)]


def vgg_shapes(blocks: Sequence[tuple[int, int]]) -> list[Shape]:
    """Return kernels and biases of VGG for images of 224 x 224."""
    kernels: list[Shape] = []
    inputs = 3
    for count, channels in blocks:
        for _ in range(count):
            kernels.append((3, 3, inputs, channels))
            inputs = channels
    kernels += [(7 * 7 * inputs, 4096), (4096, 4096), (4096, 1000)]
    return [shape for kernel in kernels for shape in (kernel, (kernel[-1],))]


def resnet_shapes(stages: Sequence[tuple[int, int]]) -> list[Shape]:
    """Return ResNet's kernels, each with scale and offset of its normalisation, and the classifier."""
    kernels: list[Shape] = [(7, 7, 3, 64)]
    inputs = 64
    for count, width in stages:
        for block in range(count):
            kernels += [(1, 1, inputs, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            if block == 0:
                kernels.append((1, 1, inputs, 4 * width))
            inputs = 4 * width
    shapes = [shape for kernel in kernels for shape in (kernel, (kernel[-1],), (kernel[-1],))]
    return [*shapes, (inputs, 1000), (1000,)]


SETS: dict[str, Callable[[], list[Shape]]] = {
    "inception-v1": inception_shapes,
    "vgg-16": lambda: vgg_shapes(VGG_16),
    "vgg-19": lambda: vgg_shapes(VGG_19),
    "resnet-50": lambda: resnet_shapes(RESNET_50),
    "160x4kB": lambda: [(1024,)] * 160,
}
