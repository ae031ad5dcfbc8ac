"""Convergence on one machine against several workers: accuracy over epochs and over seconds of training.

Each worker has the batch of the single machine; the learning rate and its warm-up follow from the global batch
(``hopsml.large_batch.Recipe``).
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import accuracy, digits
from benchmarks.studies.algorithms import curve
from benchmarks.studies.study import Line, Study

BATCH, RATE, EPOCHS = 32, 0.05, 20  # BATCH is that of each worker, RATE that of one
WORKERS = (1, 2, 4)


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the points that the largest group loses against one worker."""
    from hopsml import experiment

    seeds, epochs = list(range(options.choose(5, 2))), options.choose(EPOCHS, 2)
    groups = options.choose(WORKERS, WORKERS[:2])
    trained = {}
    for workers in groups:
        args = {"seeds": seeds, "epochs": epochs}
        given: dict[str, Any] = {"num_workers": workers, "progress": False, "keep_warm": 60.0}
        label = f"{workers} workers, batch {workers * BATCH}" if workers > 1 else f"one machine, batch {BATCH}"
        trained[label] = experiment.torch(train, args=args, **given).value
        options.say(f"{label}: {trained[label]}")
    curves = tuple(curve(label, of_seeds) for label, of_seeds in trained.items())
    study = Study(
        "convergence",
        f"Digits, convolutional net: accuracy on one machine and by several workers, mean of {len(seeds)} seeds",
        "training",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", {each.label: each.values[-1] for each in curves}),),
        (
            f"convergence: {BATCH} samples a worker and step, momentum SGD, the rate {RATE} of one worker scaled with the "
            "batch after a warm-up; seconds of training on two cores, without the first step and without evaluations",
        ),
        is_bar=True,
        facts={"seconds": {each.label: each.seconds[-1] for each in curves}},
        curves=curves,
    )
    lost = [before - now for before, now in zip(curves[0].values[-1], curves[-1].values[-1], strict=True)]
    return study, [accuracy.mean_of("convergence.lost_points", lost)]


def train(seeds: list[int], epochs: int) -> list[list[tuple[float, float]]]:
    """Return the seconds of training and the accuracy after each epoch, for each seed."""
    import torch

    torch.set_num_threads(1)
    return [train_one(seed, epochs) for seed in seeds]


def train_one(seed: int, epochs: int) -> list[tuple[float, float]]:
    """Train with one seed; return the seconds of training and the accuracy after each epoch."""
    import torch

    import hopsml

    rank, workers = hopsml.distributed.rank(), hopsml.distributed.world_size()
    images, targets = (torch.from_numpy(one[: digits.TRAINED]) for one in digits.samples())
    net = hopsml.torch.prepare(digits.torch_net(seed))
    schedule = hopsml.large_batch.Polynomial()
    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=BATCH, learning_rate=RATE, epochs=epochs, warmup_epochs=epochs / 6, schedule=schedule
    )
    optimizer, scheduler = recipe.at(BATCH * workers, n_samples=len(images)).torch(net)
    loss, order = torch.nn.CrossEntropyLoss(), torch.Generator().manual_seed(seed)
    found, seconds = [], 0.0
    for epoch in range(epochs):
        net.train()
        began = time.perf_counter()
        for number, chosen in enumerate(torch.randperm(len(images), generator=order).split(BATCH * workers)):
            own = chosen[rank::workers]  # equal parts: 1 280 samples are divisible by each batch
            optimizer.zero_grad()
            loss(net(images[own, None]), targets[own]).backward()
            optimizer.step()
            scheduler.step()
            if epoch == number == 0:
                began = time.perf_counter()
        seconds += time.perf_counter() - began
        found.append((seconds, digits.torch_accuracy(net)))
    return found
