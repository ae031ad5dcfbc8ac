"""Accuracy of a group that changes its size during training: the schedules of elastic deep learning, scaled down.

The schedules are a fixed group of two or of four workers, plus or minus one worker each minute of 20 minutes, plus or
minus three every third minute, a random number of workers each minute, and doubling every five minutes. A minute is a
twentieth of the samples here, so that sizes depend on the samples seen, never on time. The batch grows and shrinks
with the group, and the learning rate follows it (``Sampler(scaling="linear")``).
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

WORKERS, BATCH = 4, 64  # of the group for which the learning rate is tuned
LEAST, MOST = 1, 8  # workers
MINUTES = 20
EPOCHS, RATE = 16, 0.1
WAIT_S = 1.5  # for each step while the group has not the scheduled size yet: about three steps
FIXED, SCHEDULES = "fixed 4", ("fixed 2", "fixed 4", "plus or minus 1", "plus or minus 3", "random", "doubling")


def sizes(schedule: str, seed: int) -> list[int]:
    """Return the number of workers in each twentieth of the training's samples."""
    drawn = random.Random(f"{schedule}, {seed}")
    if schedule.startswith("fixed"):
        return [int(schedule.split()[1])] * MINUTES
    if schedule == "random":
        return [drawn.randint(LEAST, MOST) for _ in range(MINUTES)]
    if schedule == "doubling":
        return [min(MOST, LEAST * 2 ** (minute * 4 // MINUTES)) for minute in range(MINUTES)]
    step = int(schedule.split()[-1])
    found = [WORKERS]
    for minute in range(1, MINUTES):
        found.append(_moved(found[-1], step, drawn) if minute % step == 0 else found[-1])
    return found


def _moved(workers: int, step: int, drawn: random.Random) -> int:
    """Return a number of workers plus or minus ``step``: in a random direction, unless only one is within bounds."""
    allowed = [one for one in (workers - step, workers + step) if LEAST <= one <= MOST]
    return drawn.choice(allowed)


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the distance of the worst schedule's mean from that of the fixed group.

    The unit is the fixed group's standard deviation.
    """
    from hopsml import experiment

    seeds, epochs = range(options.choose(5, 2)), options.choose(EPOCHS, 2)
    values: dict[str, list[float]] = {}
    seen: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for schedule in options.choose(SCHEDULES, (FIXED, "doubling")):
        values[schedule], seen[schedule] = [], {}
        for seed in seeds:
            result = experiment.torch(
                train,
                args={"planned": sizes(schedule, seed), "seed": seed, "epochs": epochs},
                min_workers=LEAST,
                max_workers=MOST,
                first_workers=sizes(schedule, seed)[0],
                progress=False,
                keep_warm=60.0,
            )
            values[schedule].append(result.value["accuracy"])
            seen[schedule][str(seed)] = result.value["sizes"]
            options.say(f"{schedule}, seed {seed}: {result.value}")
    fixed = values[FIXED]
    deviation = statistics.stdev(fixed) or float("nan")  # of a quick run, whose seeds may be equal
    apart = {
        name: abs(statistics.fmean(each) - statistics.fmean(fixed)) / deviation
        for name, each in values.items()
        if name != FIXED
    }
    study = Study(
        "resizing",
        f"Digits in groups that change: accuracy after {epochs} epochs, mean of {len(seeds)} seeds",
        "schedule of the number of workers",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", values),),
        (f"resizing: {BATCH // WORKERS} samples a worker; the JSON has the sizes with each seed, with their epochs",),
        is_bar=True,
        reference=statistics.fmean(fixed),
        facts={"epoch and workers": seen},
    )
    worst = max(apart.values())
    return study, [
        Figure("large_batch.resizing_sigma", round(worst, 2), "sigma", len(seeds), min(apart.values()), worst)
    ]


def train(planned: list[int], seed: int, epochs: int) -> dict[str, Any]:
    """Train once by the workers of an elastic run.

    Returns the accuracy, and each size that the group had with the epoch at which it began.
    """
    import torch

    import hopsml

    torch.set_num_threads(1)
    images, targets = (torch.from_numpy(one[: digits.TRAINED]) for one in digits.samples())
    net = hopsml.torch.prepare(digits.torch_net(seed))
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    loss = torch.nn.CrossEntropyLoss(reduction="sum")
    data = hopsml.elastic.Sampler(
        digits.TRAINED, BATCH, seed, epochs=epochs, scaling="linear", reference_workers=WORKERS, ramp_epochs=1.0
    )
    state = hopsml.elastic.State(net=net, optimizer=optimizer, sizes=[], wanted=planned[0])
    for batch in state.resume(data):
        epoch = data.epoch + data.offset / digits.TRAINED
        done = min(epoch / epochs, 1 - 1e-9)
        if (wanted := planned[int(done * len(planned))]) != state.wanted:
            state.wanted = wanted
            hopsml.elastic.resize(wanted)
        if not state.sizes or state.sizes[-1][1] != data.world_size:
            state.sizes = [*state.sizes, (round(epoch, 3), data.world_size)]
        for group in optimizer.param_groups:
            group["lr"] = RATE * data.learning_rate_scale * (1 - done) ** 2
        net.train()
        optimizer.zero_grad()
        # The mean of these over workers is that over all samples, even if the shares are uneven.
        (loss(net(images[batch, None]), targets[batch]) * data.world_size / data.batch_size).backward()
        optimizer.step()
        state.commit(every=4 if data.world_size == state.wanted else 1)
        if data.world_size != state.wanted:
            time.sleep(WAIT_S)  # the group changes within a few steps then, however slowly a worker starts
    return {"accuracy": digits.torch_accuracy(net), "sizes": state.sizes}
