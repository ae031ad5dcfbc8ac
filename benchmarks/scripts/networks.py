"""Training steps of published networks on random images, with any version of Keras, without Keras ``fit``.

The images are small, so that a step takes a part of a second on a processor; the convolutions' gradients have their
full size, those of VGG's first dense layer are smaller. Normalisation uses its stored statistics: the reduction of
gradients after a real backward pass is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gradient_sets import MODULES

BATCH = 4  # images per worker
PIXELS = {"inception-v1": 96, "vgg-16": 48, "resnet-50": 64}
CLASSES = 1000
RATE = 0.001


def step(
    name: str,
    run: Callable[[Callable[..., Any], tuple[Any, ...]], Any],
    reduce: Callable[[list[Any]], Any],
    scope: Callable[[], Any],
) -> Callable[[], float]:
    """Return a function for forward, backward, reduction and update of a network, which returns the worker's loss."""
    import tensorflow as tf

    images = tf.random.stateless_uniform((BATCH, PIXELS[name], PIXELS[name], 3), (0, 1))
    labels = tf.constant(range(BATCH))
    with scope():
        model = network(name)
    weights = list(model.trainable_variables)

    def one(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=False)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for weight, gradient in zip(weights, reduce(tape.gradient(loss, weights)), strict=True):
            getattr(weight, "value", weight).assign_sub(RATE * gradient)
        return loss

    made = tf.function(lambda *given: run(one, given), autograph=False)
    return lambda: float(made(images, labels))


def network(name: str) -> Any:
    """Return the network with new weights, from images to logits.

    Raises:
        KeyError: ``PIXELS`` has no such network.
    """
    import keras

    shape = (PIXELS[name], PIXELS[name], 3)
    if name == "inception-v1":
        return inception(shape)
    known = {"vgg-16": keras.applications.VGG16, "resnet-50": keras.applications.ResNet50}[name]
    return known(weights=None, input_shape=shape, classes=CLASSES, classifier_activation=None)


def inception(shape: tuple[int, int, int]) -> Any:
    """Return Inception v1 (Szegedy et al., 2015) without its two auxiliary classifiers."""
    import keras
    from keras import layers

    def convolved(x: Any, channels: int, size: int, stride: int = 1) -> Any:
        return layers.Conv2D(channels, size, stride, padding="same", activation="relu")(x)

    def pooled(x: Any, stride: int = 2) -> Any:
        return layers.MaxPooling2D(3, stride, padding="same")(x)

    inputs = x = keras.Input(shape)
    x = pooled(convolved(x, 64, 7, 2))
    x = pooled(convolved(convolved(x, 64, 1), 192, 3))
    for number, (_, one, reduce3, three, reduce5, five, pool) in enumerate(MODULES):
        x = layers.Concatenate()(
            [
                convolved(x, one, 1),
                convolved(convolved(x, reduce3, 1), three, 3),
                convolved(convolved(x, reduce5, 1), five, 5),
                convolved(pooled(x, 1), pool, 1),
            ]
        )
        if number in (1, 6):
            x = pooled(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
