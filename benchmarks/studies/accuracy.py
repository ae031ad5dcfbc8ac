"""Accuracy against the global batch, with the toolkit of hopsml.large_batch and without."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figures import Figure, measured
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

REFERENCE, BATCHES = 16, (16, 64, 128, 256, 512)
EPOCHS = 30
PLAIN, TOOLKIT = "rate x k, nothing else", "hopsml.large_batch"


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the points that the largest batch loses with both methods."""
    from hopsml import experiment

    seeds = list(range(options.choose(5, 2)))
    batches = options.choose(BATCHES, (REFERENCE, BATCHES[-1]))
    cases = [(way, batch, seed) for way in (PLAIN, TOOLKIT) for batch in batches for seed in seeds]
    found = experiment.distributed(train_all, args={"cases": cases}, num_workers=2, progress=False).value
    values = dict(zip(cases, found, strict=True))
    lines = tuple(
        Line(way, {str(batch): [values[way, batch, seed] for seed in seeds] for batch in batches})
        for way in (PLAIN, TOOLKIT)
    )
    reference, largest = statistics.fmean(values[PLAIN, REFERENCE, seed] for seed in seeds), BATCHES[-1]
    study = Study(
        "accuracy",
        f"Digits, convolutional net: accuracy after {EPOCHS} epochs, mean of {len(seeds)} seeds",
        "global batch (samples)",
        "accuracy on 517 other digits (%)",
        lines,
        (
            f"accuracy: {EPOCHS} epochs of {digits.TRAINED} samples, tuned at a batch of {REFERENCE}; k = batch over that",
        ),
        reference=reference,
    )
    lost = {
        name: [reference - values[way, largest, seed] for seed in seeds]
        for name, way in (("lost_points", TOOLKIT), ("plain_lost_points", PLAIN))
    }
    return study, [mean_of(f"large_batch.{name}", each) for name, each in lost.items()]


def mean_of(name: str, points: list[float]) -> Figure:
    """Return a figure with the mean over seeds, and the smallest and largest value."""
    figure = measured(name, points, "points")
    return Figure(name, round(statistics.fmean(points), 2), "points", figure.n, min(points), max(points))


def train_all(cases: list[tuple[str, int, int]]) -> list[float]:
    """Return the accuracy of each case; the workers divide the cases."""
    import torch

    torch.set_num_threads(1)
    return [float(one) for one in digits.shared(cases, train)]


def train(case: tuple[str, int, int]) -> float:
    """Train one case and return its accuracy."""
    import torch

    import hopsml

    way, batch, seed = case
    images, targets = (torch.from_numpy(one[: digits.TRAINED]) for one in digits.samples())
    net = digits.torch_net(seed)
    recipe = hopsml.large_batch.Recipe(**settings(way, batch))
    plan = recipe.at(batch, n_samples=len(images))
    optimizer, scheduler = plan.torch(net)
    loss = torch.nn.CrossEntropyLoss()
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images), generator=order).split(batch):
            net.train()
            optimizer.zero_grad()
            loss(net(images[chosen, None]), targets[chosen]).backward()
            optimizer.step()
            scheduler.step()
    return digits.torch_accuracy(net)


def settings(way: str, batch: int) -> dict[str, Any]:
    """Return the settings of the recipe, tuned at the reference batch.

    The plain method scales the learning rate from the first step.
    """
    import hopsml

    tuned = {
        "reference_batch_size": REFERENCE,
        "learning_rate": 0.05,
        "epochs": EPOCHS,
        "schedule": hopsml.large_batch.Polynomial(),
    }
    if way == PLAIN:
        return {**tuned, "warmup_epochs": 0.0, "momentum_correction": False}
    return {**tuned, "optimizer": "lars", "trust": 0.03} if batch > 4 * REFERENCE else tuned
