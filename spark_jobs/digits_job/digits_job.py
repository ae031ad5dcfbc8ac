"""Functions of job.yaml: softmax regression on scikit-learn's digits, by NumPy alone for a quick start."""

import time

import hopsml

EPOCHS, BATCH, CLASSES = 40, 64, 10


def load():
    """Return images and labels for training, and those for evaluation."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(labels))
    images, labels = images[order].astype("float32") / 16, labels[order]
    return (images[300:], labels[300:]), (images[:300], labels[:300])


def gradient(weights, images, labels):
    """Return the gradient of the mean cross-entropy."""
    import numpy as np

    scores = images @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1
    return images.T @ scores / max(1, len(labels))


def accuracy(weights, images, labels):
    """Return the share of correct predictions."""
    return float(((images @ weights).argmax(axis=1) == labels).mean())


def trial(lr):
    """Train one configuration of the search, on one worker."""
    import numpy as np

    (images, labels), held_back = load()
    weights = np.zeros((images.shape[1], CLASSES), "float32")
    for epoch in range(5):
        for begin in range(0, len(labels), BATCH):
            weights -= lr * gradient(weights, images[begin : begin + BATCH], labels[begin : begin + BATCH])
        hopsml.report(step=epoch, accuracy=accuracy(weights, *held_back))
    return {"accuracy": accuracy(weights, *held_back)}


def train(lr=0.3):
    """Train by synchronous SGD in an elastic group; the chief writes the weights for the evaluation task."""
    import numpy as np

    (images, labels), held_back = load()
    state = hopsml.elastic.State(weights=np.zeros((images.shape[1], CLASSES), "float32"))
    data = hopsml.elastic.Sampler(len(labels), global_batch_size=BATCH, seed=1, epochs=EPOCHS)
    for batch in state.resume(data):
        mine = gradient(state.weights, images[batch], labels[batch]) * len(batch)
        state.weights = state.weights - lr * hopsml.all_reduce(mine, "sum") / data.batch_size
        state.commit()
    result = accuracy(state.weights, *held_back)
    hopsml.hdfs.dump(state.weights.tobytes(), "digits-weights.bin")
    return {"accuracy": result}


def evaluate():
    """Wait for the weights, and evaluate them on the evaluation images."""
    import numpy as np

    while not hopsml.hdfs.exists("digits-weights.bin"):
        time.sleep(1)
    _, held_back = load()
    weights = np.frombuffer(hopsml.hdfs.load("digits-weights.bin"), "float32").reshape(-1, CLASSES)
    return {"accuracy": accuracy(weights, *held_back)}
