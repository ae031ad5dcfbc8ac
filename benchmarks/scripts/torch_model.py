"""The training of model.py in PyTorch, and in JAX: one synchronous step of the global batch over all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.scripts.model import GLOBAL_BATCH, LAYERS, RATE


def torch_step(wrap: Callable[[Any], Any], workers: int) -> Callable[[], object]:
    """Return a step in PyTorch; ``wrap`` makes this worker's model part of a data-parallel one."""
    import torch

    layers: list[Any] = []
    for inputs, outputs in LAYERS:
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = wrap(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    images = torch.rand(GLOBAL_BATCH // workers, LAYERS[0][0])
    labels = torch.randint(0, LAYERS[-1][1], (GLOBAL_BATCH // workers,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def jax_step() -> Callable[[], object]:
    """Return a step in JAX, data-parallel by sharding; ``jax.distributed`` must be initialized."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("workers",))
    split, whole = NamedSharding(mesh, PartitionSpec("workers")), NamedSharding(mesh, PartitionSpec())
    random = np.random.default_rng(0)
    share = GLOBAL_BATCH // jax.process_count()
    images = jax.make_array_from_process_local_data(split, random.random((share, LAYERS[0][0]), np.float32))
    labels = jax.make_array_from_process_local_data(split, random.integers(0, LAYERS[-1][1], share))
    weights = [
        (
            jax.device_put(random.standard_normal(shape, np.float32) / shape[0] ** 0.5, whole),
            jax.device_put(np.zeros(shape[1], np.float32), whole),
        )
        for shape in LAYERS
    ]

    def loss(weights: Any, images: Any, labels: Any) -> Any:
        hidden = images
        for kernel, bias in weights[:-1]:
            hidden = jax.nn.relu(hidden @ kernel + bias)
        logits = hidden @ weights[-1][0] + weights[-1][1]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    @jax.jit
    def update(weights: Any, images: Any, labels: Any) -> Any:
        slopes = jax.grad(loss)(weights, images, labels)
        return jax.tree.map(lambda one, slope: one - RATE * slope, weights, slopes)

    def step() -> None:
        nonlocal weights
        weights = jax.block_until_ready(update(weights, images, labels))

    return step
