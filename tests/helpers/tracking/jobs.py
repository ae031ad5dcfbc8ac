"""Training functions that several tests use."""

from __future__ import annotations

from typing import Any


def descend(steps: int = 200, lr: float = 0.05) -> dict[str, Any]:
    """Run stochastic gradient descent for a linear model in numpy, seeded by the run; return the weights' digest."""
    import hashlib

    import numpy as np

    from hopsml import tracking

    random = np.random.default_rng(tracking.seed())
    truth = random.normal(size=16)
    weights = np.zeros(16)
    for _ in range(steps):
        x = random.normal(size=(32, 16))
        weights -= lr * x.T @ (x @ weights - x @ truth) / len(x)
    loss = float(np.mean((weights - truth) ** 2))
    return {"loss": loss, "weights": hashlib.sha256(weights.tobytes()).hexdigest()}


def unseeded() -> float:
    """Return a number that differs each time."""
    import secrets

    return secrets.randbelow(1 << 60) / (1 << 60)


def order_of_a_set() -> list[str]:
    """Return a value that depends on PYTHONHASHSEED, which an interpreter reads when it starts."""
    return list({f"name-{number}" for number in range(100)})


def train_digits(epochs: int = 2) -> dict[str, Any]:
    """Run the digits job of spark_jobs/, and return the digest of its final weights."""
    import hashlib

    from spark_jobs import train_digits

    kept: list[Any] = []
    names = train_digits.train.__globals__  # shipped by value: not those of the module
    build = names["build_model"]

    def build_and_keep(lr: float) -> Any:
        kept.append(build(lr))
        return kept[-1]

    names["build_model"] = build_and_keep
    result = train_digits.train(epochs=epochs)
    weights = b"".join(weight.tobytes() for weight in kept[0].get_weights())
    return {**result, "weights": hashlib.sha256(weights).hexdigest()}
