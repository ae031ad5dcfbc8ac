"""Short trials per second and lane, in a reused process and in a fork for each.

    python -m benchmarks.scripts.lanes --trials 400 --repeat 3

Local agents, no Spark. Each trial sleeps; each lane always has one waiting. Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pickle
import statistics
import tempfile
import time
from collections import Counter
from typing import Any

import msgspec

from hopsml import experiment
from hopsml.cluster.shared.spec import IndependentGroup
from hopsml.experiment import collective
from hopsml.experiment.options import RunOptions
from hopsml.experiment.run_role import SearchHost
from hopsml.experiment.searches.executors import Lanes
from hopsml.search.dispatch.events import AttemptEnded, LaneJoined
from hopsml.search.messages import RunTrial


def train(seconds: float) -> float:
    """Sleep for some seconds as a trial of a search."""
    time.sleep(seconds)
    return seconds


def start(count: int, preload: tuple[str, ...]) -> Lanes:
    """Start lanes that run ``train``."""
    options = RunOptions(train, num_workers=count, progress=False, args={"seconds": 0.0})
    plain = collective.build(options, "search")
    group = IndependentGroup(size=count)
    spec = msgspec.structs.replace(plain.spec, group=group, preload=preload, framework="none")
    return Lanes.start(dataclasses.replace(plain, spec=spec, arguments={}, standing=SearchHost()))


def measure(count: int, trials: int, seconds: float, isolated: bool, preload: tuple[str, ...]) -> dict[str, Any]:
    """Return the rate of one case, from the first assignment with all lanes ready to the last end.

    The first trial of each lane counts, too.
    """
    lanes = start(count, preload)
    try:
        joined: list[int] = []
        while len(joined) < count:
            news = lanes.get(120.0)
            assert news is not None, "no lane within 120 s"
            if isinstance(news.event, LaneJoined):
                joined.append(news.lane)
        config = pickle.dumps({"seconds": seconds})
        began, given, ended = time.monotonic(), 0, Counter[int]()
        for lane in joined * 2:
            lanes.assign(lane, RunTrial(given, 0, trial_id=f"t{given}", config=config, isolated=isolated))
            given += 1
        took: list[float] = []
        while ended.total() < trials:
            news = lanes.get(120.0)
            assert news is not None, "nothing for 120 s"
            if not isinstance(news.event, AttemptEnded):
                continue
            assert news.event.how == "finished", news.event
            ended[news.lane] += 1
            took.append(news.event.seconds - seconds)
            if given < trials:
                lanes.assign(news.lane, RunTrial(given, 0, trial_id=f"t{given}", config=config, isolated=isolated))
                given += 1
        wall = time.monotonic() - began
    finally:
        lanes.close()
        lanes.run.join(60)
    rate = trials / wall / count
    return {
        "case": f"{'forked' if isolated else 'reused'}{' with ' + ','.join(preload) if preload else ''}",
        "trials_per_s_and_lane": round(rate, 2),
        "overhead_ms": round(1000 * (1 / rate - seconds), 2),
        "within_the_trial_ms": round(1000 * statistics.median(took), 2),
        "behind_its_end_s": round(time.monotonic() - began - wall, 2),
    }


def main() -> None:
    """Measure every case, as many times as requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--preload", default="")
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    preload = tuple(filter(None, given.preload.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOPSML_PROJECT_URL"] = f"file://{folder}"
        try:
            for _ in range(given.repeat):
                for isolated in (False, True):
                    print(json.dumps(measure(given.lanes, given.trials, given.seconds, isolated, preload)), flush=True)
        finally:
            experiment.shutdown(spark=True)


if __name__ == "__main__":
    main()
