"""Accuracy against the global batch, by data-parallel training, with and without the toolkit of hopsml.large_batch.

Settings are chosen for each batch size by the accuracy on validation digits, and reported on test digits.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figures import Figure, measured
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

WORKERS = 2
REFERENCE, COMPARED, BATCHES = 16, 512, (16, 64, 128, 256, 512, 1024)
EPOCHS = 30
PLAIN, SCALED, DEFAULT, CHOSEN = "rate x k, nothing else", "rate x k and warm-up", "LARS, trust 0.001", "chosen"
TRUSTS = (0.001, 0.01, 0.03, 0.1)  # the first one is the default of Recipe
CANDIDATES = (SCALED, *(f"LARS, trust {trust}" for trust in TRUSTS))


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the points that a batch of ``COMPARED`` loses with both methods."""
    from hopsml import experiment

    seeds = list(range(options.choose(5, 2)))
    epochs = options.choose(EPOCHS, 2)
    batches = options.choose(BATCHES, (256, COMPARED))
    ways = (PLAIN, *options.choose(CANDIDATES, CANDIDATES[:2]))
    cases = [(way, batch, seed) for way in ways for batch in batches for seed in seeds]
    args = {"cases": cases, "epochs": epochs}
    found = experiment.torch(train_all, args=args, num_workers=WORKERS, progress=False).value
    validated = {case: each[0] for case, each in zip(cases, found, strict=True)}
    tested = {case: each[1] for case, each in zip(cases, found, strict=True)}
    chosen = {batch: choose(validated, ways[1:], batch, seeds) for batch in batches}
    lines = tuple(
        Line(label, {str(batch): [tested[label, batch, seed] for seed in seeds] for batch in batches})
        for label in (PLAIN, SCALED, DEFAULT)
    )
    best = {str(batch): [tested[chosen[batch], batch, seed] for seed in seeds] for batch in batches}
    reference = statistics.fmean(best[str(batches[0])])
    study = Study(
        "accuracy",
        f"Digits, convolutional net, {WORKERS} workers: accuracy after {epochs} epochs, mean of {len(seeds)} seeds",
        "global batch (samples)",
        "accuracy on 517 test digits (%)",
        (*lines, Line(CHOSEN, best)),
        (
            f"accuracy: {digits.FITTED} samples by {WORKERS} workers, tuned at a batch of {REFERENCE}; k = batch over that; "
            f"chosen by {digits.TRAINED - digits.FITTED} other digits: {chosen}",
        ),
        reference=reference,
        facts={
            "chosen": chosen,
            "validated": {
                f"{way}, batch {batch}, seed {seed}": value for (way, batch, seed), value in validated.items()
            },
        },
    )
    lost = {
        "lost_points": [reference - value for value in best[str(COMPARED)]],
        "plain_lost_points": [reference - tested[PLAIN, COMPARED, seed] for seed in seeds],
    }
    return study, [mean_of(f"large_batch.{name}", each) for name, each in lost.items()]


def choose(validated: dict[tuple[str, int, int], float], ways: tuple[str, ...], batch: int, seeds: list[int]) -> str:
    """Return the way with the highest mean accuracy on the validation digits for a batch size; the first of equal ones."""
    return max(ways, key=lambda way: statistics.fmean(validated[way, batch, seed] for seed in seeds))


def mean_of(name: str, points: list[float]) -> Figure:
    """Return a figure with the mean over seeds, and the smallest and largest value."""
    figure = measured(name, points, "points")
    return Figure(name, round(statistics.fmean(points), 2), "points", figure.n, min(points), max(points))


def train_all(cases: list[tuple[str, int, int]], epochs: int) -> list[tuple[float, float]]:
    """Return the accuracy on validation and test digits of each case; all workers train each together."""
    import torch

    torch.set_num_threads(1)
    return [train(case, epochs) for case in cases]


def train(case: tuple[str, int, int], epochs: int) -> tuple[float, float]:
    """Train one case and return its accuracy on the validation and on the test digits."""
    import torch

    import hopsml

    way, batch, seed = case
    rank, workers = hopsml.distributed.rank(), hopsml.distributed.world_size()
    images, targets = (torch.from_numpy(one[: digits.FITTED]) for one in digits.samples())
    net = hopsml.torch.prepare(digits.torch_net(seed))
    plan = hopsml.large_batch.Recipe(**settings(way, epochs)).at(batch, n_samples=len(images))
    optimizer, scheduler = plan.torch(net)
    loss = torch.nn.CrossEntropyLoss()
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=order).split(batch):
            own = chosen[rank::workers]  # equal parts: the batches and their last one are divisible
            net.train()
            optimizer.zero_grad()
            loss(net(images[own, None]), targets[own]).backward()
            optimizer.step()
            scheduler.step()
    return digits.torch_accuracy(net, digits.FITTED, digits.TRAINED), digits.torch_accuracy(net)


def settings(way: str, epochs: int) -> dict[str, Any]:
    """Return the settings of the recipe, tuned at the reference batch."""
    import hopsml

    tuned = {
        "reference_batch_size": REFERENCE,
        "learning_rate": 0.05,
        "epochs": epochs,
        "schedule": hopsml.large_batch.Polynomial(),
    }
    if way == PLAIN:
        return {**tuned, "warmup_epochs": 0.0, "momentum_correction": False}
    if way == SCALED:
        return tuned
    return {**tuned, "optimizer": "lars", "trust": float(way.split()[-1])}
