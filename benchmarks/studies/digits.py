"""The digits of scikit-learn and a small convolutional net, in PyTorch and in Keras, for all studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

TRAINED = 1280  # samples; the other 517 are for evaluation
FITTED = 1024  # of those, if a study chooses settings by the other 256


def samples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images of 8 x 8 in [0, 1] and their digits, in a fixed random order."""
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.images[order] / 16.0).astype(np.float32), found.target[order].astype(np.int64)


def torch_net(seed: int) -> torch.nn.Module:
    """Return a net of two convolutions with batch normalisation, and a dense layer."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def torch_accuracy(net: torch.nn.Module, first: int = TRAINED, last: int | None = None) -> float:
    """Return the percentage of correct predictions on some digits; by default on those for evaluation."""
    import torch

    images, digits = (one[first:last] for one in samples())
    net.eval()
    with torch.no_grad():
        found = net(torch.from_numpy(images[:, None])).argmax(1).numpy()
    return float(100 * (found == digits).mean())


def keras_net(seed: int) -> Any:
    """Return the same net in Keras, built and not compiled.

    Its normalisation has torch's settings, so that its statistics follow within tens of steps.
    """
    import functools

    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    normalisation = functools.partial(layers.BatchNormalization, momentum=0.9, epsilon=1e-5)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *(layers.Conv2D(16, 3, padding="same", use_bias=False), normalisation(), layers.ReLU()),
            layers.MaxPooling2D(2),
            *(layers.Conv2D(32, 3, padding="same", use_bias=False), normalisation(), layers.ReLU()),
            layers.MaxPooling2D(2),
            *(layers.Flatten(), layers.Dense(10)),
        ]
    )


def keras_models() -> dict[str, Any]:
    """Return functions that build a convolutional, a recurrent and a fully connected net for the digits."""
    import keras
    from keras import layers

    def recurrent() -> Any:
        keras.utils.set_random_seed(1)
        rows = [keras.Input((8, 8, 1)), layers.Reshape((8, 8))]
        return keras.Sequential([*rows, layers.GRU(64), layers.Dense(10)])

    def connected() -> Any:
        keras.utils.set_random_seed(1)
        hidden = [layers.Dense(512, "relu"), layers.Dense(512, "relu")]
        return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *hidden, layers.Dense(10)])

    return {"convolutional": lambda: keras_net(1), "recurrent": recurrent, "fully connected": connected}


def keras_accuracy(net: Any) -> float:
    """Return the percentage of correct predictions, without Keras's own evaluation, which belongs to the strategy."""
    images, digits = samples()
    found = net(images[TRAINED:, :, :, None], training=False).numpy().argmax(1)
    return float(100 * (found == digits[TRAINED:]).mean())
