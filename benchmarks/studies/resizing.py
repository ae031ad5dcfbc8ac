"""Accuracy of a group that changes its size during training: the schedules of elastic deep learning, scaled down.

In units of the training's time: plus or minus one worker every 60 s of 20 minutes, three every 180 s, and doubling,
become shares of the samples. The batch grows and shrinks with the group, and the learning rate follows it
(``Sampler(scaling="linear")``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

WORKERS, BATCH = 4, 64  # of the group for which the learning rate is tuned
EPOCHS, RATE = 16, 0.1
ONE, THREE = (4, 5, 4, 3), (4, 7, 4, 1)  # sizes, one after the other


def sizes() -> dict[str, Callable[[float], int]]:
    """Return for each schedule the wanted number of workers as a function of the finished share of the training."""
    return {
        "fixed": lambda share: WORKERS,
        "plus or minus 1": lambda share: ONE[int(share * 20) % len(ONE)],
        "plus or minus 3": lambda share: THREE[int(share * 20 / 3) % len(THREE)],
        "doubling": lambda share: 2 ** min(3, int(share * 4)),
    }


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the distance of the worst schedule's mean from that of the fixed group.

    The unit is the fixed group's standard deviation.
    """
    from hopsml import experiment

    seeds = range(options.choose(5, 2))
    values: dict[str, list[float]] = {}
    seen: dict[str, list[int]] = {}
    for schedule in sizes():
        values[schedule] = []
        for seed in seeds:
            result = experiment.torch(
                train,
                args={"schedule": schedule, "seed": seed},
                min_workers=1,
                max_workers=8,
                progress=False,
                keep_warm=60.0,
            )
            values[schedule].append(result.value["accuracy"])
            seen[schedule] = result.value["sizes"]
            options.say(f"{schedule}, seed {seed}: {result.value}")
    fixed = values["fixed"]
    deviation = statistics.stdev(fixed)
    apart = {
        name: abs(statistics.fmean(each) - statistics.fmean(fixed)) / deviation
        for name, each in values.items()
        if name != "fixed"
    }
    study = Study(
        "resizing",
        f"Digits in groups that change: accuracy after {EPOCHS} epochs, mean of {len(seeds)} seeds",
        "schedule of the number of workers",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", values),),
        (f"resizing: {BATCH // WORKERS} samples a worker; sizes seen, one seed each: {seen}",),
        is_bar=True,
        reference=statistics.fmean(fixed),
        facts={"sizes": seen},
    )
    worst = max(apart.values())
    return study, [
        Figure("large_batch.resizing_sigma", round(worst, 2), "sigma", len(seeds), min(apart.values()), worst)
    ]


def train(schedule: str, seed: int) -> dict[str, Any]:
    """Train once by the workers of an elastic run; return the accuracy, and the sizes that the group had."""
    import torch

    import hopsml

    torch.set_num_threads(1)
    images, targets = (torch.from_numpy(one[: digits.TRAINED]) for one in digits.samples())
    net = hopsml.torch.prepare(digits.torch_net(seed))
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    loss = torch.nn.CrossEntropyLoss(reduction="sum")
    data = hopsml.elastic.Sampler(
        digits.TRAINED, BATCH, seed, epochs=EPOCHS, scaling="linear", reference_workers=WORKERS, ramp_epochs=1.0
    )
    state = hopsml.elastic.State(net=net, optimizer=optimizer, sizes=[], wanted=0)
    for batch in state.resume(data):
        done = (data.epoch + data.offset / digits.TRAINED) / EPOCHS
        if (wanted := sizes()[schedule](min(done, 1 - 1e-9))) != state.wanted:
            state.wanted = wanted
            hopsml.elastic.resize(wanted)
        if not state.sizes or state.sizes[-1] != data.world_size:
            state.sizes = [*state.sizes, data.world_size]
        for group in optimizer.param_groups:
            group["lr"] = RATE * data.learning_rate_scale * (1 - done) ** 2
        net.train()
        optimizer.zero_grad()
        # The mean of these over workers is that over all samples, even if the shares are uneven.
        (loss(net(images[batch, None]), targets[batch]) * data.world_size / data.batch_size).backward()
        optimizer.step()
        state.commit(every=4)
    return {"accuracy": digits.torch_accuracy(net), "sizes": state.sizes}
